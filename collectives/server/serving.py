"""A server: its parameters, and the loop in which it serves."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.errors import (
    CollectivesError,
    MismatchError,
    PeerAbortedError,
    PeerLostError,
    StallError,
    StallWarning,
)
from collectives.process import living
from collectives.process.waiting import Wait, move_on
from collectives.server.messages import MessageEndpoint
from collectives.server.optimizers import Update
from collectives.server.parameters import Parameter, Piece
from collectives.server.shared import SharedEndpoint
from collectives.server.training import Encoding, ServerTraining, Statistics
from collectives.server.transport import KINDS, NAPS, Claim, Event, Left, Push
from collectives.server.update_queue import BatchPieces, UpdateQueue
from collectives.text.words import count, error_text, spans

ServerEndpoint = SharedEndpoint | MessageEndpoint  # the connection of a server to workers

BATCHES = 2  # batches whose pieces may be asked for at a time


class Server:
    """A server of some pieces of the parameters."""

    training: ServerTraining
    number: int
    optimizer: Update
    parameters: Sequence[Parameter]
    members: Sequence[int]
    sent_bytes: int
    pieces: Sequence[Piece]
    encoding: Encoding

    def __init__(
        self,
        training: ServerTraining,
        number: int,
        parameters: Sequence[Parameter],
        optimizer: Update,
        endpoints: Sequence[ServerEndpoint],
        members: Sequence[int],
    ) -> None:
        self.training, self.number, self.optimizer = training, number, optimizer
        self.endpoints = endpoints
        self.parameters, self.members = parameters, members
        self.pieces, self.encoding = training.pieces[number], training.encoding(parameters, number)
        self.queue: UpdateQueue = UpdateQueue(training.policy, len(training.workers))
        self.memory: NDArray[np.uint8] = np.zeros(training.values[number], np.uint8)
        self.values: list[NDArray[Any]] = [each.of(self.memory) for each in self.pieces]
        for piece, values in zip(self.pieces, self.values, strict=True):
            values[:] = parameters[piece.parameter].flat[piece.start : piece.stop]
        self.states: list[dict[str, Any]] = [{} for _ in self.pieces]
        self.totals: list[NDArray[Any]] = []
        self.batches: dict[int, BatchPieces] = {}
        self.sent_bytes = 0
        self.wait: Wait = Wait(NAPS, self._look)
        self.since: float = 0.0  # the arrival of the first gradient that waits
        self.suspects: set[int] = set()
        self.has_warned: bool = False

    def serve(self) -> None:
        """Serve until all workers have finished. Local."""
        try:
            self._publish(True)
            while self.queue.steps:
                self.wait.turn(self._turn())
            while not all(endpoint.is_quiet() for endpoint in self.endpoints):
                self.wait.turn()
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self._write_back()

    def fail(self, error: BaseException) -> None:
        """Send an `error` to the workers, which raise it. Local."""
        if not isinstance(error, KINDS):
            rank = self.training.servers[self.number]
            error = PeerAbortedError(f"server {self.number} (rank {rank}): {error_text(error)}")
        for endpoint in self.endpoints:
            endpoint.fail(error)

    def _write_back(self) -> None:
        """Set the program's parameters to the values of this server."""
        for piece, values in zip(self.pieces, self.values, strict=True):
            self.parameters[piece.parameter].flat[piece.start : piece.stop] = values
        for each in {piece.parameter for piece in self.pieces}:
            self.parameters[each].commit()

    @property
    def statistics(self) -> Statistics:
        """The statistics of this server up to now."""
        queue = self.queue
        stale = {worker: dict(sorted(each.items())) for worker, each in queue.staleness.items()}
        return Statistics(
            queue.version,
            dict(queue.pushed),
            dict(queue.dropped),
            dict(sorted(sum(queue.staleness.values(), Counter()).items())),
            dict(queue.lost),
            sum(queue.pushed.values()) * self.encoding.payload,
            self.sent_bytes,
            0.0,
            dict(sorted(stale.items())),
            dict(queue.refused),
        )

    # -- events --------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Handle the messages that have come; return whether there were any."""
        moved = False
        for endpoint in self.endpoints:
            for event in endpoint.events():
                moved = True
                self._handle(event)
        return moved

    def _handle(self, event: Event) -> None:
        if isinstance(event, Claim):
            self._claim(event)
            return
        if isinstance(event, Left):
            self.sent_bytes += event.pulled_bytes
            if event.why:
                self._lose(event.worker, f"gave up: {event.why}", PeerAbortedError)
            else:
                self.queue.leave(event.worker)
        elif event.worker in self.queue.lost or not self.queue.arrive(event):
            event.release()
        elif len(self.queue.waiting) == 1:
            self.since = self.wait.now()
        self._update()

    def _claim(self, claim: Claim) -> None:
        batch = self.batches.get(claim.step)
        if batch is None:
            pieces = self.training.policy.pieces
            batch = self.batches[claim.step] = BatchPieces(claim.examples, self.queue.total, pieces)
            for step in [each for each in self.batches if each <= claim.step - BATCHES]:
                del self.batches[step]
        if batch.count != claim.examples:
            raise MismatchError(
                f"parts(): worker {claim.worker} passed {claim.examples} examples in step "
                f"{claim.step}, and another worker {batch.count}; all must pass the same"
            )
        claim.answer(batch.claim(claim.worker))

    def _update(self) -> None:
        """Make all updates that have enough gradients, and publish the new parameters."""
        has_changed = False
        while taken := self.queue.take():
            self.since = self.wait.now()
            used = [each for each in taken if not isnan(each.weight)]
            for i, values in enumerate(self.values if used else ()):
                self.optimizer(values, self._mean(used, i), self.states[i], self.queue.version)
            for each in taken:
                each.release()
            has_changed = True
        self._publish(has_changed)

    def _publish(self, has_changed: bool) -> None:
        for endpoint in self.endpoints:
            endpoint.publish(self.queue.version, self.queue.slowest, self.memory, has_changed)

    def _mean(self, taken: Sequence[Push], i: int) -> NDArray[Any]:
        """Return the mean of the gradients of a piece, by their weights."""
        read = self.encoding.read
        first = taken[0]
        if len(taken) == 1:
            return read(first.codes, i, first.call)
        if not self.totals:  # sums of halves would overflow, and weights that are no halves
            self.totals = [
                np.empty(each.shape, np.result_type(each, np.float32)) for each in self.values
            ]
        total = self.totals[i]
        most = max(each.weight for each in taken)
        shares = [each.weight / most if most else 1.0 for each in taken]
        total[:] = 0
        for share, each in zip(shares, taken, strict=True):
            codes = read(each.codes, i, each.call)
            total += codes if share == 1.0 else codes * total.dtype.type(share)
        total /= total.dtype.type(sum(shares))
        return total.astype(self.values[i].dtype, copy=False)

    # -- late and lost ranks ---------------------------------------------------------------------

    def _look(self, waited: float) -> None:
        """Find ranks that have ended, and raise an error if a wait is too long."""
        move_on()
        self._look_for_ended()
        if self.queue.waiting:  # others may be served in the meantime
            waited = max(waited, self.wait.now() - self.since)
        if waited > self.training.timeout:
            raise StallError(self._situation(waited))
        if waited > self.training.warning and not self.has_warned:
            self.has_warned = True
            warnings.warn(self._situation(waited), StallWarning, stacklevel=2)

    def _situation(self, waited: float) -> str:
        missing = self.queue.missing or list(self.queue.steps)
        ranks = spans([self.training.workers[worker] for worker in missing])
        many = "s" * (len(missing) > 1)
        rank = self.training.servers[self.number]
        text = (
            f"server {self.number} (rank {rank}) has waited {waited:.3g} s for worker{many} "
            f"{spans(missing)} (rank{many} {ranks})"
        )
        if not self.queue.waiting:
            return text
        return f"{text}; it has {count(len(self.queue.waiting), 'gradient')} of the other workers"

    def _look_for_ended(self) -> None:
        seen = set()
        for each in living.ended(self.members):
            rank = self.members.index(each.rank)
            seen.add(rank)
            if rank not in self.suspects:  # what it had sent before comes first
                continue
            if rank in self.training.workers:
                worker = self.training.workers.index(rank)
                if worker in self.queue.steps:
                    self._lose(worker, f"rank {rank} {each.how}", PeerLostError)
            elif rank in self.training.servers and not each.in_order:
                other = self.training.servers.index(rank)
                raise PeerLostError(f"server {other}: rank {rank} {each.how}")
        self.suspects = seen

    def _lose(self, worker: int, why: str, kind: type[CollectivesError]) -> None:
        """Continue without a worker if the policy allows it, or raise an error."""
        if not self.queue.lose(worker, why):
            rank, needs = self.training.workers[worker], f"{self.training.policy!r} needs it"
            if len(self.queue.lost) == self.queue.total > 1:
                needs = "no other is left"
            raise kind(f"worker {worker} (rank {rank}) is lost, and {needs}: {why}")
        self._update()
