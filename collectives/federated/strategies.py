"""Strategies: the clients of a round, the parts that they send, and the new parameters.

They are functions of lists of arrays and counts, and do not depend on ranks or messages: `run` and
:mod:`collectives.federated.flower` use the same objects.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from collectives.compression.codec import (
    DECAY,
    POSITIVE,
    PROPORTION,
    Range,
    integer_from,
    parameter,
)

Arrays = list[NDArray[Any]]

ABOVE_ZERO = Range(float, lambda number: 0 < number < inf, "positive")
FROM_ZERO = integer_from(0)
FACTOR = Range(float, lambda number: 0 <= number < inf, "0 or more")


@dataclass(frozen=True)
class Update:
    """An update that a client sends.

    Attributes
    ----------
    arrays : list of ndarray
        One for each parameter, of its shape.
    count : int
        Its weight: for most strategies, the number of samples that the client has trained on.
    """

    arrays: Arrays
    count: int

    @property
    def is_finite(self) -> bool:
        """True if all numbers are finite; others would make the mean of all clients not finite."""
        return all(bool(np.isfinite(each).all()) for each in self.arrays)


class Strategy(Protocol):
    """The interface of a strategy for `run`; `FedAvg` is one, and the base of the others.

    It has two numbers for the clients: ``epochs``, the number of passes of a client through its
    data in a round, and ``proximal``, the factor of the proximal term of its loss (`FedProx`).
    """

    epochs: int
    proximal: float

    def sample(self, clients: int, round: int, seed: int) -> list[int]:
        """Return the clients that take part in a round. Local; only rank 0 draws.

        Parameters
        ----------
        clients : int
            The number of clients; they are numbered from 0.
        round, seed : int
            Draws that need not be secret depend only on these.
        """

    def prepare(self, initial: Arrays, trained: Arrays, count: int) -> Update:
        """Return the update that a client sends. Local.

        Parameters
        ----------
        initial, trained : list of ndarray
            Its parameters before and after the training.
        count : int
            The number of samples that it has trained on.
        """

    def start(self, parameters: Arrays, clients: int) -> Any:
        """Return the state before the first round. Local.

        Parameters
        ----------
        parameters : list of ndarray
            The initial parameters.
        clients : int
            The number of clients.
        """

    def aggregate(
        self, parameters: Arrays, updates: Sequence[Update], state: Any
    ) -> tuple[Arrays, Any]:
        """Return the parameters and the state after a round; no argument is changed. Local.

        Parameters
        ----------
        parameters : list of ndarray
            Those that the clients began with.
        updates : sequence of Update
            The updates, in the order of the clients; it may be empty. If sums are secure, it is one
            update, the mean of all, and its count is the sum of their counts.
        state : object
            The state that `start` or the last call has returned.
        """


def mean(updates: Sequence[Update]) -> Arrays:
    """Return the mean of updates, weighted by their counts, computed in float64. Local."""
    whole = float(sum(each.count for each in updates))
    means = []
    for k, first in enumerate(updates[0].arrays):
        total = np.zeros(first.shape)
        for each in updates:
            total += each.arrays[k] * np.float64(each.count)
        means.append(np.asarray(total / whole, first.dtype))
    return means


class FedAvg:
    """Federated averaging: the new parameters are the mean of those of the clients, weighted by
    their numbers of samples.

    Parameters
    ----------
    fraction : float
        The share of the clients that takes part in a round, at least one; drawn without
        replacement.
    epochs : int
        The number of passes of a client through its data in a round; `fit` reads it from its task.

    Raises
    ------
    ArgumentError
        If `fraction` is not above 0 and at most 1, or `epochs` not a positive integer.

    References
    ----------
    H. Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson, Blaise Aguera y Arcas:
    Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017,
    arXiv:1602.05629

    Examples
    --------
    >>> import numpy as np
    >>> from collectives.federated import FedAvg, Update
    >>> strategy = FedAvg(fraction=0.5)
    >>> strategy.sample(clients=8, round=1, seed=0)
    [2, 4, 5, 6]
    >>> updates = [Update([np.array([1.0])], 30), Update([np.array([5.0])], 10)]
    >>> strategy.aggregate([np.zeros(1)], updates, None)[0]
    [array([2.])]
    """

    proximal: float = 0.0

    def __init__(self, fraction: float = 1.0, epochs: int = 1) -> None:
        self.fraction: float = parameter(fraction, "fraction", PROPORTION)
        self.epochs: int = parameter(epochs, "epochs", POSITIVE)

    def __repr__(self) -> str:
        words = [f"{name}={value}" for name, value in vars(self).items() if name[0] != "_"]
        return f"{type(self).__name__}({', '.join(words)})"

    def sample(self, clients: int, round: int, seed: int) -> list[int]:
        """Return the clients that take part in a round; see `Strategy.sample`. Local."""
        many = max(1, int(self.fraction * clients + 0.5))
        rng = np.random.default_rng([seed, round])
        return sorted(rng.choice(clients, many, replace=False).tolist())

    def prepare(self, initial: Arrays, trained: Arrays, count: int) -> Update:
        """Return the trained parameters and their count; see `Strategy.prepare`. Local."""
        return Update(trained, count)

    def start(self, parameters: Arrays, clients: int) -> Any:
        """Return None: there is no state; see `Strategy.start`. Local."""
        return None

    def aggregate(
        self, parameters: Arrays, updates: Sequence[Update], state: Any
    ) -> tuple[Arrays, Any]:
        """Return the weighted mean; see `Strategy.aggregate`. Local."""
        if not sum(each.count for each in updates):
            return parameters, state
        return mean(updates), state


class FedProx(FedAvg):
    """Federated averaging whose clients stay near the parameters with which they begin.

    A client minimises its loss plus ``proximal / 2`` times the squared distance from these
    parameters. `fit` adds the gradient of this term, which `Task.pull` returns. The means are those
    of `FedAvg`.

    Parameters
    ----------
    proximal : float
        The factor, mu in the paper; 0 is `FedAvg`.
    fraction, epochs
        As for `FedAvg`.

    Raises
    ------
    ArgumentError
        If `proximal` is negative, or as for `FedAvg`.

    References
    ----------
    Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith:
    Federated Optimization in Heterogeneous Networks, 2020, arXiv:1812.06127
    """

    def __init__(self, proximal: float = 0.1, fraction: float = 1.0, epochs: int = 1) -> None:
        super().__init__(fraction, epochs)
        self.proximal: Any = parameter(proximal, "proximal", FACTOR)


class _Stepping(FedAvg):
    """Federated averaging whose server makes a step, except for some arrays."""

    def __init__(self, fraction: float, epochs: int, averaged: Sequence[int]) -> None:
        super().__init__(fraction, epochs)
        self.averaged: list[int] = [parameter(k, "averaged", FROM_ZERO) for k in averaged]

    def restricted(self, places: Sequence[int]) -> Any:
        """Return the strategy for some of the arrays, by their `places`. Local."""
        made = copy.copy(self)
        made.averaged = [k for k, place in enumerate(places) if place in self.averaged]
        return made


class FedAdam(_Stepping):
    """Federated averaging whose server takes a step of Adam towards the mean.

    The difference between the mean of the clients and the parameters that they began with is used
    as the negative gradient.

    Parameters
    ----------
    rate : float
        The learning rate of the server.
    beta1, beta2 : float
        The factors by which the first and second moments decay in a round.
    tau : float
        The least denominator; steps are less adaptive with a larger one.
    averaged : sequence of int
        The numbers of the arrays that are only averaged, from 0: those that are not trained, such
        as the running mean and variance of a batch normalisation.
    fraction, epochs
        As for `FedAvg`.

    Raises
    ------
    ArgumentError
        If a number is out of range.

    References
    ----------
    Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub Konecny,
    Sanjiv Kumar, H. Brendan McMahan: Adaptive Federated Optimization, 2021, arXiv:2003.00295
    """

    def __init__(
        self,
        rate: float = 0.1,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        fraction: float = 1.0,
        epochs: int = 1,
        averaged: Sequence[int] = (),
    ) -> None:
        super().__init__(fraction, epochs, averaged)
        self.rate: float = parameter(rate, "rate", ABOVE_ZERO)
        self.beta1: float = parameter(beta1, "beta1", DECAY)
        self.beta2: float = parameter(beta2, "beta2", DECAY)
        self.tau: float = parameter(tau, "tau", ABOVE_ZERO)

    def start(self, parameters: Arrays, clients: int) -> Any:
        """Return the moments; see `Strategy.start`. Local."""
        zeros = [np.zeros(each.shape) for each in parameters]
        return zeros, [each + self.tau**2 for each in zeros]

    def aggregate(
        self, parameters: Arrays, updates: Sequence[Update], state: Any
    ) -> tuple[Arrays, Any]:
        """Return the parameters after a step of Adam; see `Strategy.aggregate`. Local."""
        if not sum(each.count for each in updates):
            return parameters, state
        firsts, seconds, new = [], [], []
        for k, (x, target, m, v) in enumerate(zip(parameters, mean(updates), *state, strict=True)):
            change = target.astype(np.float64) - x
            m = self.beta1 * m + (1 - self.beta1) * change
            v = self.beta2 * v + (1 - self.beta2) * change**2
            stepped = np.asarray(x + self.rate * m / (np.sqrt(v) + self.tau), x.dtype)
            new.append(target if k in self.averaged else stepped)
            firsts.append(m)
            seconds.append(v)
        return new, (firsts, seconds)


class DiLoCo(_Stepping):
    """Federated averaging whose server makes a step of SGD with Nesterov momentum.

    It uses the difference between the clients' mean and the parameters that they began with as the
    negative gradient. It is the outer step of `collectives.torch.DiLoCo`, for clients that
    train for many steps with an optimizer of their own. If `rate` is 1 and `momentum` 0, it is
    `FedAvg`.

    Parameters
    ----------
    rate : float
        The learning rate of the server.
    momentum : float
        The factor by which the momentum decays in a round.
    averaged : sequence of int
        The numbers of the arrays that are only averaged, from 0: those that are not trained, such
        as the running mean and variance of a batch normalisation.
    fraction, epochs
        As for `FedAvg`.

    Raises
    ------
    ArgumentError
        If a number is out of range.

    References
    ----------
    Arthur Douillard, Qixuan Feng, Andrei A. Rusu, Rachita Chhaparia, Yani Donchev, Adhiguna
    Kuncoro, Marc'Aurelio Ranzato, Arthur Szlam, Jiajun Shen: DiLoCo: Distributed Low-Communication
    Training of Language Models, 2023, arXiv:2311.08105
    """

    def __init__(
        self,
        rate: float = 0.7,
        momentum: float = 0.9,
        fraction: float = 1.0,
        epochs: int = 1,
        averaged: Sequence[int] = (),
    ) -> None:
        super().__init__(fraction, epochs, averaged)
        self.rate: float = parameter(rate, "rate", ABOVE_ZERO)
        self.momentum: float = parameter(momentum, "momentum", DECAY)

    def start(self, parameters: Arrays, clients: int) -> Any:
        """Return the momentum; see `Strategy.start`. Local."""
        return [np.zeros(each.shape) for each in parameters]

    def aggregate(
        self, parameters: Arrays, updates: Sequence[Update], state: Any
    ) -> tuple[Arrays, Any]:
        """Return the parameters after a step of SGD; see `Strategy.aggregate`. Local."""
        if not sum(each.count for each in updates):
            return parameters, state
        new, momenta = [], []
        for k, (x, target, m) in enumerate(zip(parameters, mean(updates), state, strict=True)):
            change = target.astype(np.float64) - x
            m = self.momentum * m + change
            step = change + self.momentum * m
            stepped = np.asarray(x + self.rate * step, x.dtype)
            new.append(target if k in self.averaged else stepped)
            momenta.append(m)
        return new, momenta
