"""The work of a client in a round, on any rank: train, and pack its update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.errors import ArgumentError
from collectives.federated.parameters import Parameters
from collectives.federated.parts import Parts
from collectives.federated.strategies import Arrays, Strategy, Update
from collectives.text.words import article, shown

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Task:
    """The task of a client in a round: the second argument of `fit`.

    Attributes
    ----------
    round : int
        From 1.
    client : int
        The number of the client among those of all ranks.
    index : int
        Its number among the clients of this rank.
    epochs : int
        The number of passes through its data.
    proximal : float
        The factor of the proximal term (`FedProx`); 0 for other strategies.
    seed : int
        Of 32 bits, for the order of samples: another for each round and client, and the same in
        every run with the same seed.
    initial : list of ndarray
        The parameters that it begins with. With ``parts=`` of `run`, some are its own of earlier
        rounds.
    """

    round: int
    client: int
    index: int
    epochs: int
    proximal: float
    seed: int
    initial: list[NDArray[Any]]

    def pull(self, parameters: Sequence[Any]) -> list[NDArray[Any]]:
        """Return the gradient of the proximal term, to be added to that of the loss. Local.

        Parameters
        ----------
        parameters : sequence of array
            The present values; arrays of NumPy, or arguments of `numpy.asarray`.
        """
        return [
            np.asarray(self.proximal * (np.asarray(now) - begun), begun.dtype)
            for now, begun in zip(parameters, self.initial, strict=True)
        ]


def seed_of(seed: int, round: int, client: int) -> int:
    """Return the seed of a task, of 32 bits. Local."""
    return int(np.random.SeedSequence([seed, round, client]).generate_state(1)[0])


Fit = Callable[[list[Any], Task], tuple[Iterable[Any], int]]


class Wire:
    """The plain form in which updates are sent: the count and the bytes of the arrays."""

    least = 1  # clients that a round must have
    needs_all = False  # whether a round needs all of its updates

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.nbytes: int = 8 + parameters.nbytes  # of every update

    def packed(self, update: Update, round: int, client: int, roster: Sequence[int]) -> Bytes:
        """Return the bytes of an update."""
        count = np.array([update.count], np.int64).view(np.uint8)
        return np.concatenate([count, self._parameters.packed(update.arrays)])

    def unpacked(self, received: Sequence[Bytes]) -> list[Update]:
        """Return the updates of a round."""
        return [
            Update(self._parameters.unpacked(each[8:]), int(each[:8].view(np.int64)[0]))
            for each in received
        ]


class ClientTraining:
    """The training of the clients of one rank."""

    parameters: Parameters
    fit: Fit
    strategy: Strategy
    wires: Sequence[Wire]
    clients: range
    seed: int

    def __init__(
        self,
        parameters: Parameters,
        fit: Fit,
        strategy: Strategy,
        wires: Sequence[Wire],
        clients: range,
        seed: int,
    ) -> None:
        self.parameters, self.fit, self.strategy = parameters, fit, strategy
        self.wires, self.clients, self.seed = wires, clients, seed
        self.parts: Parts = Parts(parameters, len(wires))
        self._kept: dict[int, tuple[int, Arrays]] = {}  # of clients: their last round, and ends

    def wire(self, round: int) -> Wire:
        """Return the form of the updates in a round. Local."""
        return self.wires[self.parts.due(round)]

    def update_bytes(self, round: int) -> int:
        """Return the bytes of an update in a round. Local."""
        return self.wire(round).nbytes

    def _initial(self, round: int, client: int, shared: Arrays) -> Arrays:
        """Return the parameters with which a client begins: its own values of the parts that had no
        turn since its last round, and the shared values of the others.
        """
        since, own = self._kept.get(client, (0, shared))
        changed = set(self.parts.changed(since, round))
        pairs = enumerate(zip(shared, own, strict=True))
        return [(new if k in changed else old).copy() for k, (new, old) in pairs]

    def train(self, round: int, client: int, roster: Sequence[int], shared: Arrays) -> Bytes:
        """Return the bytes of the update of one client, to the parameters that all share. Local."""
        initial = self._initial(round, client, shared)
        task = Task(
            round,
            client,
            client - self.clients.start,
            self.strategy.epochs,
            self.strategy.proximal,
            seed_of(self.seed, round, client),
            initial,
        )
        arrays, count = trained(self.parameters, self.fit, task)
        if len(self.wires) > 1:
            self._kept[client] = round, arrays
        part = self.parts.due(round)
        pair = self.parts.of(part, shared), self.parts.of(part, arrays)
        update = self.strategy.prepare(*pair, count)
        return self.wires[part].packed(update, round, client, roster)


def trained(parameters: Parameters, fit: Fit, task: Task) -> tuple[Arrays, int]:
    """Train one client; return its parameters and its number of samples. Local."""
    for each in task.initial:
        each.flags.writeable = False
    parameters.write(task.initial)
    returned, count = _checked(fit(parameters.values, task))
    return parameters.checked(returned, "what fit returned"), count


def _checked(returned: Any) -> tuple[Any, int]:
    """Return the parts of the result of `fit`."""
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
