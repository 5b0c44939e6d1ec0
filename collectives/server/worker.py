"""A worker: pulls, pushes, and its waits for servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.errors import ArgumentError, PeerLostError, StallError
from collectives.process import living
from collectives.process.waiting import Wait, move_on
from collectives.server.messages import MessageLink
from collectives.server.parameters import Parameter, Piece
from collectives.server.shared import SharedLink
from collectives.server.training import Encoding, ServerTraining, Statistics
from collectives.server.transport import NAPS, Bytes
from collectives.server.update_queue import share

WorkerLink = SharedLink | MessageLink  # the connection of a worker to a server

# Seconds that a worker waits longer than a server, whose error names the late worker.
MORE = 2.0


class Worker:
    """A worker and its links to the servers."""

    training: ServerTraining
    number: int
    parameters: Sequence[Parameter]
    members: Sequence[int]
    pushes: int
    refused: int
    pulls: int
    waited: float
    encodings: list[Encoding]
    order: list[tuple[int, Piece]]

    def __init__(
        self,
        training: ServerTraining,
        number: int,
        parameters: Sequence[Parameter],
        members: Sequence[int],
    ) -> None:
        self.training, self.number = training, number
        self.parameters, self.members = parameters, members
        self.links: list[WorkerLink] = []  # one for each server; filled by the caller
        servers = range(len(training.servers))
        self.encodings: list[Encoding] = [
            training.encoding(parameters, server) for server in servers
        ]
        pieces = [(server, piece) for server in servers for piece in training.pieces[server]]
        self.order = sorted(pieces, key=lambda pair: training.order.index(pair[1].parameter))
        self.base: list[int] = [0 for _ in servers]
        self.pushes, self.refused, self.pulls, self.waited = 0, 0, 0, 0.0
        self.has_pulled: bool = True  # all begin with the parameters of rank 0
        self._pull: Generator[str, None, None] | None = None  # the last one

    # -- the calls of a program ----------------------------------------------------------------

    def pull_each(self) -> Iterator[str]:
        """Pull the parameters, and yield the name of each when it has come. Local."""
        self._finish_pull()
        self._pull = self._pulling()
        return self._pull

    def _finish_pull(self) -> None:
        """Receive the rest of a pull that the program has left before its end."""
        if self._pull is not None:
            self._pull.close()
            self._pull = None

    def _pulling(self) -> Generator[str, None, None]:
        policy = self.training.policy
        news = policy.waits_for_update and not self.has_pulled
        slowest = 0 if policy.bound is None else max(0, self.pushes - policy.bound)
        for link, base in zip(self.links, self.base, strict=True):
            link.ask(base + news, slowest)
        arrivals = [link.arriving() for link in self.links]
        have, memory = [0 for _ in self.links], [np.empty(0, np.uint8) for _ in self.links]
        left = Counter(piece.parameter for _, piece in self.order)
        is_wanted = True
        try:
            for server, piece in self.order:
                while have[server] < piece.offset + piece.nbytes:
                    got = next(arrivals[server])
                    self.base[server], have[server], memory[server] = got
                parameter = self.parameters[piece.parameter]
                parameter.flat[piece.start : piece.stop] = piece.of(memory[server])
                left[piece.parameter] -= 1
                if not left[piece.parameter]:
                    parameter.commit()
                    if is_wanted:
                        try:
                            yield parameter.name
                        except GeneratorExit:  # all parameters get one version all the same
                            is_wanted = False
            for server, arriving in enumerate(arrivals):
                for got in arriving:
                    self.base[server] = got[0]
            self.has_pulled = True
            self.pulls += 1
        finally:
            for each in arrivals:
                each.close()

    def push(self, gradients: Sequence[NDArray[Any]], weight: float) -> None:
        """Push gradients with a weight. Local."""
        self._finish_pull()
        if self.training.policy.waits_for_update and not self.has_pulled:
            raise ArgumentError(
                f"push() was called twice without a pull() between, and {self.training.policy!r} "
                f"applies one gradient of a worker to each version of the parameters"
            )
        if not all(np.isfinite(each).all() for each in gradients):
            gradients, weight = [np.zeros_like(each) for each in gradients], nan
            self.refused += 1
        for server, link in enumerate(self.links):
            encoding = self.encodings[server]

            def write(memory: Bytes, encoding: Any = encoding) -> None:
                encoding.write(memory, gradients, self.number)

            link.push((self.pushes, self.base[server], weight), write)
            error = link.failure()
            if error is not None:
                raise error
        self.has_pulled = False
        self.pushes += 1

    def parts(self, count: int) -> Iterator[slice]:
        """Yield the parts of a batch of `count` examples that are this worker's. Local."""
        if self.training.policy.pieces == 1:
            yield slice(*share(count, self.number, len(self.training.workers)))
            return
        while (piece := self.links[0].claim(self.pushes, count)) is not None:
            yield slice(*piece)

    def leave(self, why: str) -> None:
        """Tell the servers that this worker has finished, or `why` it gives up. Local."""
        if not why:
            self._finish_pull()
        for server, link in enumerate(self.links):
            link.leave(self.pulls, self.pulls * self.training.payloads[server], why)

    @property
    def statistics(self) -> Statistics:
        """The statistics of this worker up to now."""
        sent = self.pushes * sum(each.payload for each in self.encodings)
        received = self.pulls * sum(self.training.payloads)
        pushed = {self.number: self.pushes}
        refused = {self.number: self.refused} if self.refused else {}
        return Statistics(
            min(self.base), pushed, {}, {}, {}, received, sent, self.waited, {}, refused
        )

    # -- waiting ---------------------------------------------------------------------------------

    def wait_for(self, server: int) -> Callable[[Callable[[], Any], str], Any]:
        """Return the `transport.Wait` of a link to a server. Local."""
        return partial(self._wait, server)

    def _wait(self, server: int, function: Callable[[], Any], what: str) -> Any:
        found = function()
        if found:
            return found
        wait = Wait(NAPS, partial(self._look, server, what))
        try:
            while not (found := function()):
                wait.turn()
        finally:
            self.waited += wait.passed()
        return found

    def _look(self, server: int, what: str, waited: float) -> None:
        """Raise an error if a server has failed or ended, or the wait is too long."""
        move_on()
        ended = {self.members.index(each.rank): each for each in living.ended(self.members)}
        for link in self.links:
            error = link.failure()
            if error is not None:
                raise error
        for number, rank in enumerate(self.training.servers):
            if rank in ended and (number == server or not ended[rank].in_order):
                raise PeerLostError(
                    f"server {number}: rank {rank} {ended[rank].how} while worker {self.number} "
                    f"waits for server {server} to {what}"
                )
        if waited > self.training.timeout + MORE:
            mine, theirs = self.training.workers[self.number], self.training.servers[server]
            raise StallError(
                f"worker {self.number} (rank {mine}) has waited {waited:.3g} s for server {server} "
                f"(rank {theirs}) to {what}"
            )
