"""The common state of all ranks of a training: the parts of servers, encodings, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.compression.codec import Codec, State
from collectives.server.parameters import Parameter, Piece, cut, memory_bytes
from collectives.server.policies import Policy
from collectives.server.transport import Bytes
from collectives.text.words import count, time_text


class Encoding:
    """The encoding of the gradient of a server's pieces: plain, or compressed."""

    names: list[str]
    pieces: Sequence[Piece]
    codec: Codec | None

    def __init__(
        self, parameters: Sequence[Parameter], pieces: Sequence[Piece], codec: Codec | None
    ) -> None:
        self.pieces, self.codec = pieces, codec
        self.names = [f"{parameters[each.parameter].name} {each.start}" for each in pieces]
        self.states: list[State] = [State(each.stop - each.start) for each in pieces]
        self.places: list[slice] = []
        at = 0
        for each in pieces:
            part = parameters[each.parameter].flat[each.start : each.stop]
            nbytes = each.nbytes if codec is None else codec.message_bytes(part)
            self.places.append(slice(at, at + nbytes))
            at += nbytes + 15 & -16
        self.nbytes: int = max(at, 16)  # of the memory that a gradient takes
        # Of them, those that say something.
        self.payload: int = sum(each.stop - each.start for each in self.places)
        longest = max((each.stop - each.start for each in pieces), default=0)
        self._scratch = None if codec is None else np.empty(longest, np.float64)

    def write(self, memory: Bytes, gradients: Sequence[NDArray[Any]], rank: int) -> None:
        """Write gradients as bytes. Local."""
        for i, piece in enumerate(self.pieces):
            part = gradients[piece.parameter][piece.start : piece.stop]
            codes = memory[self.places[i]]
            if self.codec is None:
                codes.view(piece.dtype)[:] = part
            else:
                self.codec.pack(codes, part, self.names[i], self.states[i], rank)

    def read(self, memory: Bytes, i: int, call: int) -> NDArray[Any]:
        """Return the gradient of piece `i`, which is valid until the next call. Local."""
        piece, codes = self.pieces[i], memory[self.places[i]]
        if self.codec is None or self._scratch is None:
            return codes.view(piece.dtype)
        out = self._scratch.view(piece.dtype)[: piece.stop - piece.start]
        self.codec.unpack(out, codes, self.names[i], call)
        return out


class ServerTraining:
    """A training, the same on all ranks."""

    policy: Policy
    codec: Codec | None
    servers: list[int]
    workers: list[int]
    timeout: float
    warning: float

    def __init__(
        self,
        policy: Policy,
        servers: Sequence[int],
        workers: Sequence[int],
        parameters: Sequence[Parameter],
        order: Sequence[int],
        codec: Codec | None,
        timeout: float,
        warning: float,
    ) -> None:
        self.policy, self.codec = policy, codec
        self.servers, self.workers = list(servers), list(workers)
        self.timeout, self.warning = timeout, warning
        self.order: list[int] = list(order)
        self.pieces: list[list[Piece]] = cut(parameters, len(servers), order)
        # For each server, bytes: of its parameters, of these without the gaps between them, and
        # of a gradient.
        self.values: list[int] = [memory_bytes(each) for each in self.pieces]
        self.payloads: list[int] = [sum(piece.nbytes for piece in each) for each in self.pieces]
        numbers = range(len(servers))
        self.gradients: list[int] = [self.encoding(parameters, number).nbytes for number in numbers]

    def encoding(self, parameters: Sequence[Parameter], server: int) -> Encoding:
        """Return the encoding of gradients for a server. Local."""
        return Encoding(parameters, self.pieces[server], self.codec)


class Statistics(NamedTuple):
    """The statistics of a server or a worker: ``ps.statistics`` on each rank.

    Attributes
    ----------
    updates : int
        On a server, the number of its updates; on a worker, the version that it pulled last.
    pushed, dropped : dict
        On a server, the number of gradients that it received from each worker, by the worker's
        number, and the number of those that were too late for their update. On a worker, its own.
    staleness : dict
        On a server, the number of applied gradients by their staleness: the number of updates
        between the parameters that a gradient was computed from and those that it was applied to.
    lost : dict
        On a server, for each worker that was dropped, the reason.
    received_bytes, sent_bytes : int
        On a server, the bytes of received gradients, and of the parameters that its workers have
        pulled. On a worker, those of parameters and of gradients.
    waited : float
        On a worker, the seconds that it has waited for servers.
    staleness_of : dict
        On a server, `staleness` for each worker alone, by its number.
    refused : dict
        The number of gradients of each worker, by its number, that were not finite. They count as
        pushed, and are left out of the mean.
    """

    updates: int
    pushed: dict[int, int]
    dropped: dict[int, int]
    staleness: dict[int, int]
    lost: dict[int, str]
    received_bytes: int
    sent_bytes: int
    waited: float
    staleness_of: dict[int, dict[int, int]]
    refused: dict[int, int]

    @property
    def mean_staleness(self) -> float:
        """The mean of `staleness`; 0 if no gradient was applied."""
        total = sum(late * count for late, count in self.staleness.items())
        return total / max(1, sum(self.staleness.values()))

    def __str__(self) -> str:
        parts = [count(self.updates, "update"), count(sum(self.pushed.values()), "gradient")]
        if self.dropped:
            parts.append(f"{sum(self.dropped.values())} dropped")
        if self.refused:
            parts.append(f"{sum(self.refused.values())} not finite")
        if self.staleness:
            rows = ", ".join(f"{late}: {n}" for late, n in sorted(self.staleness.items()))
            parts.append(f"staleness {{{rows}}}")
        parts.append(f"{self.received_bytes} bytes received, {self.sent_bytes} sent")
        if self.waited:
            parts.append(f"{time_text(self.waited)} of waiting")
        parts += [f"worker {worker} was lost: {why}" for worker, why in self.lost.items()]
        return "; ".join(parts)
