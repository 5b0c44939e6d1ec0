"""What a client does in a round, on whichever rank it is: train, and pack what it sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from collectives.errors import ArgumentError
from collectives.federated.parameters import Parameters
from collectives.federated.strategies import Arrays, Strategy, Update
from collectives.federated.tasks import Task, seed_of
from collectives.text.words import article, shown

Bytes = NDArray[np.uint8]
Fit = Callable[[list[Any], Task], tuple[Iterable[Any], int]]


class Wire(Protocol):
    """How updates are sent."""

    nbytes: int  # of every update
    least: int  # clients that a round must have
    needs_all: bool  # whether the updates of a round are of use only if none of them is missing

    def packed(self, update: Update, round: int, client: int, roster: Sequence[int]) -> Bytes:
        """Return the bytes of an update. Local."""

    def unpacked(self, received: Sequence[Bytes]) -> list[Update]:
        """Return the updates of a round. Local."""


class Plain:
    """Updates as they are: the count, and the bytes of the arrays."""

    least = 1
    needs_all = False

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.nbytes = 8 + parameters.nbytes

    def packed(self, update: Update, round: int, client: int, roster: Sequence[int]) -> Bytes:
        """Return the bytes of an update; see `Wire.packed`. Local."""
        count = np.array([update.count], np.int64).view(np.uint8)
        return np.concatenate([count, self._parameters.packed(update.arrays)])

    def unpacked(self, received: Sequence[Bytes]) -> list[Update]:
        """Return the updates of a round; see `Wire.unpacked`. Local."""
        return [
            Update(self._parameters.unpacked(each[8:]), int(each[:8].view(np.int64)[0]))
            for each in received
        ]


class Training:
    """The training of the clients of one rank."""

    def __init__(
        self,
        parameters: Parameters,
        fit: Fit,
        strategy: Strategy,
        wire: Wire,
        clients: range,
        seed: int,
    ) -> None:
        self.parameters, self.fit, self.strategy = parameters, fit, strategy
        self.wire, self.clients, self.seed = wire, clients, seed

    def train(self, round: int, client: int, roster: Sequence[int], initial: Arrays) -> Bytes:
        """Return the bytes of the update of one client. Local."""
        task = Task(
            round,
            client,
            client - self.clients.start,
            self.strategy.epochs,
            self.strategy.proximal,
            seed_of(self.seed, round, client),
            initial,
        )
        update = updated(self.parameters, self.fit, self.strategy, task)
        return self.wire.packed(update, round, client, roster)


def updated(parameters: Parameters, fit: Fit, strategy: Strategy, task: Task) -> Update:
    """Train one client, and return what it sends. Local."""
    for each in task.initial:
        each.flags.writeable = False
    parameters.write(task.initial)
    trained, count = _checked(fit(parameters.values, task))
    arrays = parameters.checked(trained, "what fit returned")
    return strategy.prepare(task.initial, arrays, count)


def _checked(returned: Any) -> tuple[Any, int]:
    """Return the parts of what `fit` has returned."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        what = shown(returned) if returned is None else article(type(returned).__name__)
        if isinstance(returned, list | tuple):
            what += f" of {len(returned)}"
        raise ArgumentError(
            f"fit returned {what}, and must return its parameters and the number of samples: "
            f"return parameters, count"
        )
    trained, count = returned
    try:
        number = index(count)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 53:
        raise ArgumentError(
            f"fit returned the count {shown(count)}, and must return a number of samples"
        )
    return trained, number
