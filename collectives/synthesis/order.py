"""The order of ranks in a ring whose steps cost little."""

from __future__ import annotations

import numpy as np

from collectives.synthesis.hops import Hop
from collectives.synthesis.matrices import Matrices, Matrix

SWAPS = 40  # times that all pairs of steps are looked at


def order(costs: Matrix) -> list[int]:
    """Return ranks in an order with cheap steps: the nearest one next, then pairs of steps crossed.

    `costs` are symmetric. Where costs are equal, the next rank is the one with the next number.
    """
    p = len(costs)
    tour = [0]
    out = np.ones(p, bool)
    out[0] = False
    for _ in range(p - 1):
        here = tour[-1]
        near = np.where(out, costs[here], np.inf)
        least = np.flatnonzero(near <= near.min() * (1 + 1e-9))
        tour.append(int(least[((least - here) % p).argmin()]))
        out[tour[-1]] = False
    ring = np.array(tour)
    for _ in range(SWAPS if p > 3 else 0):
        better = False
        for i in range(p - 2):
            a, b = ring[i], ring[i + 1]
            later = np.arange(i + 2, p if i else p - 1)
            c, d = ring[later], ring[(later + 1) % p]
            gain = costs[a, b] + costs[c, d] - costs[a, c] - costs[b, d]
            best = int(gain.argmax())
            if gain[best] > 1e-9 * costs[a, b]:
                j = int(later[best])
                ring[i + 1 : j + 1] = ring[i + 1 : j + 1][::-1].copy()
                better = True
        if not better:
            break
    found: list[int] = ring.tolist()
    return found


def ring_slots(tour: list[int]) -> list[list[Hop]]:
    """Return the slots of an allgather round a ring, whose block b is that of rank b."""
    p = len(tour)
    return [
        [Hop(tour[k], tour[(k + 1) % p], tour[(k - t) % p], False) for k in range(p)]
        for t in range(p - 1)
    ]


def distance(matrices: Matrices, prices: Matrix) -> Matrix:
    """Return what a step of a ring costs in either direction, mostly by `prices` of resources."""
    p = matrices.p
    even = np.full(matrices.resources, 1 / matrices.resources)
    costs = matrices.costs(prices) + 0.1 * matrices.costs(even)
    near = matrices.latency * float(costs.sum()) / max(float(matrices.latency.sum()), 1e-300)
    both = costs + 0.1 * near
    total: Matrix = both + both.T
    return total if p > 1 else both
