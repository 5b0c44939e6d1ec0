"""What a client is asked to do, and what comes of a round and of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.records.trace import Trace
from collectives.text.words import count


@dataclass(frozen=True)
class Task:
    """What a client is asked to do in a round: the second argument of `fit`.

    Attributes
    ----------
    round : int
        From 1.
    client : int
        The number of the client among those of all ranks.
    index : int
        Its number among the clients of this rank.
    epochs : int
        How often to go through its data.
    proximal : float
        The factor of the proximal term (`FedProx`); 0 for other strategies.
    seed : int
        Of 32 bits, for the order of samples: another for each round and client, and the same in
        every run with the same seed.
    initial : list of ndarray
        The parameters that it begins with.
    """

    round: int
    client: int
    index: int
    epochs: int
    proximal: float
    seed: int
    initial: list[NDArray[Any]]

    def pull(self, parameters: Sequence[Any]) -> list[NDArray[Any]]:
        """Return the gradient of the proximal term: what to add to that of the loss. Local.

        Parameters
        ----------
        parameters : sequence of array
            As they are now; arrays of NumPy, or what `numpy.asarray` takes.
        """
        return [
            np.asarray(self.proximal * (np.asarray(now) - begun), begun.dtype)
            for now, begun in zip(parameters, self.initial, strict=True)
        ]


def seed_of(seed: int, round: int, client: int) -> int:
    """Return the seed of a task, of 32 bits. Local."""
    return int(np.random.SeedSequence([seed, round, client]).generate_state(1)[0])


class Round(NamedTuple):
    """What came of a round.

    Attributes
    ----------
    number : int
        From 1.
    sampled : list of int
        The clients that were drawn.
    taken : list of int
        Those whose updates are in the new parameters. If sums are secure, it is all or none.
    missed : list of int
        Those that were drawn and are not in them: too late, stopped, dead, refused, or with a rank
        that was not back from an earlier round.
    late : list of (int, int)
        The client and the round of each update that came after its round and was discarded.
    metric : object
        What `evaluate` has returned; None without it.
    seconds : float
        From the start of the round to the new parameters.
    refused : list of int
        Those whose updates had infinite numbers or NaN.
    """

    number: int
    sampled: list[int]
    taken: list[int]
    missed: list[int]
    late: list[tuple[int, int]]
    metric: Any
    seconds: float
    refused: list[int]


class Result(NamedTuple):
    """What came of a training.

    Attributes
    ----------
    parameters : list of ndarray
        The final ones, the same on all ranks.
    rounds : list of Round
        On rank 0; empty on the others.
    lost : dict of int to str
        On rank 0, the ranks that were not there at the end, and why. Empty on the others.
    traces : dict of int to Trace
        The messages of this rank to and from each other rank, as the core has recorded them. Rank 0
        exchanges messages with all others, and these with rank 0 only.
    """

    parameters: list[NDArray[Any]]
    rounds: list[Round]
    lost: dict[int, str]
    traces: dict[int, Trace]

    def __str__(self) -> str:
        numbers = sum(each.size for each in self.parameters)
        parts = [f"{count(len(self.parameters), 'array')} of {count(numbers, 'number')}"]
        if self.rounds:
            parts.insert(0, count(len(self.rounds), "round"))
            taken = sum(len(each.taken) for each in self.rounds)
            missed = sum(len(each.missed) for each in self.rounds)
            parts.append(f"{count(taken, 'update')} taken, {missed} missed")
            if self.rounds[-1].metric is not None:
                parts.append(f"last metric {self.rounds[-1].metric}")
        return "; ".join(parts + list(self.lost.values()))
