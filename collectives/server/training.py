"""What all ranks of a training have in common: who serves what, and how large everything is."""

from __future__ import annotations

from collections.abc import Sequence

from collectives.compression.codec import Codec
from collectives.server.encoding import Encoding
from collectives.server.parameters import Parameter, cut, memory_bytes
from collectives.server.policies import Policy


class Training:
    """A training, the same on all ranks.

    Attributes
    ----------
    pieces : list of list of Piece
        Of each server.
    values, gradients : list of int
        For each server, the bytes of its parameters and of a gradient.
    payloads : list of int
        For each server, the bytes of its parameters without what is between them.
    """

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
        self.order = list(order)
        self.pieces = cut(parameters, len(servers), order)
        self.values = [memory_bytes(each) for each in self.pieces]
        self.payloads = [sum(piece.nbytes for piece in each) for each in self.pieces]
        numbers = range(len(servers))
        self.gradients = [self.encoding(parameters, number).nbytes for number in numbers]

    def encoding(self, parameters: Sequence[Parameter], server: int) -> Encoding:
        """Return how gradients are sent to a server. Local."""
        return Encoding(parameters, self.pieces[server], self.codec)
