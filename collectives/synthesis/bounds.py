"""Times that no algorithm can beat: by latency, and by what ports and links have to carry."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from collectives.synthesis.machine import Machine
from collectives.text.words import time_text

NAMED = 3  # resources that a bound names


@dataclass(frozen=True)
class Bound:
    """A lower bound in seconds, and the prices that prove it.

    Attributes
    ----------
    latency, throughput : float
        Seconds that messages take before their first bytes, and that some port or link is busy.
    prices : array of float64
        The prices of resources, which sum to 1; see `collectives.synthesis.packing`.
    scarce : list of str
        The resources with the highest prices.
    """

    latency: float
    throughput: float
    prices: NDArray[np.float64]
    scarce: list[str]

    @property
    def seconds(self) -> float:
        """The larger of the two."""
        return max(self.latency, self.throughput)

    def __str__(self) -> str:
        if self.latency >= self.throughput:
            return f"{time_text(self.seconds, 4)}, the latency from rank to rank"
        return f"{time_text(self.seconds, 4)}, limited by {', '.join(self.scarce)}"


def latency_bound(machine: Machine, root: int | None) -> float:
    """Return the seconds that the news of one rank, or of `root`, need to come to all others.

    A rank sends and receives one message at a time, so that each time of the least latency doubles
    how many know of something; and no news is faster than the fastest way over other ranks.
    """
    from scipy.sparse.csgraph import shortest_path

    p = machine.p
    if p == 1:
        return 0.0
    hops = machine.latency + machine.delay
    apart = ~np.eye(p, dtype=bool)
    least = float(hops[apart].min())
    far = shortest_path(np.where(apart, np.maximum(hops, 1e-300), 0.0), method="D")
    longest = far.max() if root is None else far[root].max()
    return max(ceil(log2(p)) * least, float(longest))


def bound(
    machine: Machine, nbytes: float, per_byte: float, prices: NDArray[np.float64], root: int | None
) -> Bound:
    """Return the bound for an array of `nbytes`, of which each byte costs `per_byte`."""
    order = np.argsort(-prices, kind="stable")
    scarce = [k for k in order.tolist() if prices[k] > 1e-6]
    names = [machine.name(k) for k in scarce[:NAMED]]
    if len(scarce) > NAMED:
        names = [*names[: NAMED - 1], f"{len(scarce) - NAMED + 1} more"]
    return Bound(latency_bound(machine, root), nbytes * per_byte, prices, names)
