"""Differential privacy: the contribution of one client is bounded, and noise hides it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from collectives.compression.codec import parameter
from collectives.errors import ArgumentError
from collectives.federated.strategies import ABOVE_ZERO, Arrays, FedAvg, Update


class DifferentialPrivacy:
    """A strategy whose results hardly depend on any single client.

    A client sends the change of its parameters, scaled down to a norm of `clipping_norm` at most.
    All clients have the same weight. Rank 0 adds normal noise to the sum, and divides it by the
    expected number of clients in a round. `strategy` uses the result as the mean.

    Each client takes part in a round with the probability ``strategy.fraction``, independently of
    the others, as the accountant assumes. So a round may have no client. Rank 0 draws with its own
    random numbers, and informs each rank only of its own clients; with `secure`, the clients of a
    round know each other.

    Parameters
    ----------
    strategy : FedAvg
        Or `FedProx`, `FedAdam`, `DiLoCo`.
    noise_multiplier : float
        The standard deviation of the noise, in units of `clipping_norm`.
    clipping_norm : float
        The largest Euclidean norm of a change, over all parameters.
    generator : numpy.random.Generator, optional
        Of the draws and the noise, for tests: anyone who knows its state can subtract the noise. By
        default it is seeded with random numbers of the operating system.

    Raises
    ------
    ArgumentError
        If `strategy` is none of these, or a number is not positive.

    Notes
    -----
    The guarantee is for whole clients, against anyone who sees the parameters after each round.
    Rank 0 sees updates without noise, unless sums are secure, and it sees the sum without noise
    even then. The finite precision of the numbers may in theory allow attacks.

    References
    ----------
    H. Brendan McMahan, Daniel Ramage, Kunal Talwar, Li Zhang: Learning Differentially Private
    Recurrent Language Models, 2018, arXiv:1710.06963
    """

    epochs: int
    proximal: float

    def __init__(
        self,
        strategy: FedAvg,
        noise_multiplier: float,
        clipping_norm: float,
        generator: np.random.Generator | None = None,
    ) -> None:
        if not isinstance(strategy, FedAvg):
            raise ArgumentError(
                f"strategy is {strategy!r}, and must be a FedAvg, FedProx, FedAdam or DiLoCo"
            )
        self.strategy = strategy
        self.noise_multiplier: Any = parameter(noise_multiplier, "noise_multiplier", ABOVE_ZERO)
        self.clipping_norm: Any = parameter(clipping_norm, "clipping_norm", ABOVE_ZERO)
        self.epochs, self.proximal = strategy.epochs, strategy.proximal
        self._generator = np.random.default_rng() if generator is None else generator

    def __repr__(self) -> str:
        return (
            f"DifferentialPrivacy({self.strategy!r}, noise_multiplier={self.noise_multiplier}, "
            f"clipping_norm={self.clipping_norm})"
        )

    def epsilon(self, rounds: int, delta: float) -> float:
        """Return the epsilon of a training, by the accountant of the package `dp-accounting`.
        Local.

        Parameters
        ----------
        rounds : int
            The number of rounds.
        delta : float
            The probability with which the bound may fail: less than one over the number of clients.

        Raises
        ------
        ArgumentError
            If the package is missing.

        Notes
        -----
        It holds if the drawn clients are secret: not against rank 0, nor, with `secure`, against
        the clients of the same round. Against these, it is the epsilon of ``fraction=1``.
        """
        try:
            import dp_accounting
            from dp_accounting import rdp
        except ImportError as error:
            raise ArgumentError(
                f"epsilon() needs the package dp-accounting ({error}): pip install dp-accounting"
            ) from error
        noisy = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        event = dp_accounting.PoissonSampledDpEvent(self.strategy.fraction, noisy)
        accountant = rdp.RdpAccountant(
            neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        )
        accountant.compose(event, rounds)
        return float(accountant.get_epsilon(delta))

    def sample(self, clients: int, round: int, seed: int) -> list[int]:
        """Return the clients that take part, each drawn independently. The seed is ignored, because
        the noise would hide less if the draws were known. See `Strategy.sample`. Local.
        """
        drawn = self._generator.random(clients)
        return np.flatnonzero(drawn < self.strategy.fraction).tolist()

    def prepare(self, initial: Arrays, trained: Arrays, count: int) -> Update:
        """Return the clipped change, with the count 1; see `Strategy.prepare`. Local.

        A change that is not finite is replaced by zeros.
        """
        changes = [
            (new.astype(np.float64) - old) for new, old in zip(trained, initial, strict=True)
        ]
        norm = float(np.sqrt(sum(float((each**2).sum()) for each in changes)))
        if not np.isfinite(norm):
            changes, norm = [np.zeros(each.shape) for each in changes], 0.0
        factor = min(1.0, self.clipping_norm / norm) if norm else 1.0
        clipped = [
            np.asarray(factor * each, old.dtype) for each, old in zip(changes, initial, strict=True)
        ]
        return Update(clipped, 1)

    def restricted(self, places: Sequence[int]) -> Any:
        """Return the strategy for some of the arrays, by their `places`. Local."""
        if not hasattr(self.strategy, "restricted"):
            return self
        made = copy.copy(self)
        made.strategy = self.strategy.restricted(places)
        return made

    def start(self, parameters: Arrays, clients: int) -> Any:
        """Return the state of the strategy, and the expected number of clients; see
        `Strategy.start`. Local.
        """
        return self.strategy.fraction * clients, self.strategy.start(parameters, clients)

    def aggregate(
        self, parameters: Arrays, updates: Sequence[Update], state: Any
    ) -> tuple[Arrays, Any]:
        """Return the parameters and the state after a round, with noise; see `Strategy.aggregate`.
        Local.
        """
        expected, inner = state
        deviation = self.noise_multiplier * self.clipping_norm
        moved = []
        for k, old in enumerate(parameters):
            total = self._generator.normal(0.0, deviation, old.shape)
            for each in updates:
                total = total + each.arrays[k] * np.float64(each.count)
            moved.append(np.asarray(old + total / expected, old.dtype))
        parameters, inner = self.strategy.aggregate(parameters, [Update(moved, 1)], inner)
        return parameters, (expected, inner)
