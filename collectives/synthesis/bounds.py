"""Times that no algorithm can beat: by latency, and by what ports and links have to carry.

Prices of resources (ports and links) that sum to 1 prove a bound. A collective that takes T seconds
keeps each resource busy for T at most, so that all its messages cost T at most. But each byte of
the array costs at least as much as the cheapest messages that can bring it where it belongs:

- broadcast: a tree out of the root, because each rank receives the byte; allgather likewise, out of
  the rank whose byte it is; reduce and reduce_scatter: a tree into the rank that gets the sum;
- allreduce: if ranks are joined to parts wherever a message costs no more than c, each part gives
  and takes a sum, so that of k parts there are 2 (k - 1) messages that cost more than c. The sum
  over all c is twice the cost of the cheapest spanning tree.

The best prices are found by a linear program whose rows are trees: the cheapest tree at the prices
is a new row, until it is as costly as the program says.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from collectives.synthesis import trees
from collectives.synthesis.matrices import Matrices, Matrix
from collectives.synthesis.trees import Parents
from collectives.text.words import time_text

NAMED = 3  # resources that a bound names
EXACT = 1e-4  # relative distance at which bound and program count as equal
MIXED = 0.3  # how far a trial goes from the best prices to those of the program


@dataclass(frozen=True)
class Bound:
    """A lower bound in seconds, and the prices that prove it.

    Attributes
    ----------
    latency, throughput : float
        Seconds that messages take before their first bytes, and that some port or link is busy.
    prices : array of float64
        The prices of resources, which sum to 1.
    scarce : list of str
        The resources with the highest prices.
    """

    latency: float
    throughput: float
    prices: Matrix
    scarce: list[str]

    @property
    def seconds(self) -> float:
        """The larger of the two."""
        return max(self.latency, self.throughput)

    def __str__(self) -> str:
        if self.latency >= self.throughput:
            return f"{time_text(self.seconds, 4)}, the latency from rank to rank"
        return f"{time_text(self.seconds, 4)}, limited by {', '.join(self.scarce)}"


class Demand:
    """The demand of a collective on each byte: trees out of these ranks, or both ways (no ranks).

    `roots` are the ranks that parts of the array go out from, all of them equally large.
    """

    matrices: Matrices
    roots: Sequence[int] | None

    def __init__(self, matrices: Matrices, roots: Sequence[int] | None) -> None:
        self.matrices, self.roots = matrices, roots

    def cheapest(self, prices: Matrix) -> tuple[float, Matrix, Parents]:
        """Return the least cost of a byte, for how long it then occupies each resource, and a tree.

        The tree is that of the last root.
        """
        matrices, costs = self.matrices, self.matrices.costs(prices)
        if self.roots is None:
            either = np.minimum(costs, costs.T)
            every = [trees.spanning(either, 0)]
            up, down = trees.edges(every[0])
            ahead = costs[up, down] <= costs[down, up]
            busy = 2 * matrices.loads(np.where(ahead, up, down), np.where(ahead, down, up))
        else:
            every = [trees.arborescence(costs, root) for root in self.roots]
            up, down = np.concatenate([trees.edges(tree) for tree in every], axis=1)
            busy = matrices.loads(up, down) / len(self.roots)
        return float(busy @ prices), busy, every[-1]


def best_prices(
    demand: Demand, seconds: float, tell: Callable[[float], None] = lambda bound: None
) -> tuple[float, Matrix, list[Parents]]:
    """Return the largest bound that is found in so many `seconds`, in seconds per byte, and prices.

    Third, return the trees that were the cheapest at some prices. `tell` is called with each bound.
    """
    from scipy.optimize import linprog

    n, p = demand.matrices.resources, demand.matrices.p
    end = time.monotonic() + seconds
    best, center, rows = 0.0, np.full(n, 1 / n), list[Matrix]()
    found = list[Parents]()

    def tried(prices: Matrix) -> None:
        nonlocal best, center
        cost, busy, tree = demand.cheapest(prices)
        rows.append(busy)
        found.append(tree)
        if cost > best:
            best, center = cost, prices
            tell(best)

    ports = np.where(np.arange(n) < 2 * p, 1.0, 0.0)
    for start in (ports, 1 - ports, np.ones(n)):
        if start.any():
            tried(start / start.sum())
    while time.monotonic() < end:
        table = np.array(rows)
        scale = float(table.max()) or 1.0
        program = linprog(
            np.append(np.zeros(n), -1.0),
            A_ub=np.column_stack([-table / scale, np.ones(len(table))]),
            b_ub=np.zeros(len(table)),
            A_eq=[np.append(np.ones(n), 0.0)],
            b_eq=[1.0],
            bounds=[(0, None)] * n + [(None, None)],
            method="highs",
        )
        if program.x is None or -program.fun * scale <= best * (1 + EXACT):
            break
        prices = np.maximum(program.x[:n], 0)
        prices /= prices.sum()
        tried(MIXED * prices + (1 - MIXED) * center)
        tried(prices)
    return best, center, found


def latency_bound(matrices: Matrices, root: int | None) -> float:
    """Return the seconds that the news of one rank, or of `root`, need to come to all others.

    A rank sends one message at a time, and each takes its ports for the least latency at least. The
    ports are free during a delay, so that the next message can start before the last has arrived.
    And no news is faster than the fastest way over other ranks.
    """
    from scipy.sparse.csgraph import shortest_path

    p = matrices.p
    if p == 1:
        return 0.0
    hops = matrices.latency + matrices.delay
    apart = ~np.eye(p, dtype=bool)
    spread = _spread(p, float(matrices.latency[apart].min()), float(hops[apart].min()))
    far = shortest_path(np.where(apart, np.maximum(hops, 1e-300), 0.0), method="D")
    longest = far.max() if root is None else far[root].max()
    return max(spread, float(longest))


def _spread(p: int, port: float, hop: float) -> float:
    """Return the least seconds until `p` ranks know the news of one.

    A rank that knows sends a message each `port` seconds, which arrives `hop` seconds after its
    start (A. Bar-Noy, S. Kipnis: Designing broadcasting algorithms in the postal model, 1994).
    """
    arrivals, now = [hop], 0.0  # the next arrival of each rank that knows
    for _ in range(p - 1):
        now = heapq.heappop(arrivals)
        heapq.heappush(arrivals, now + port)
        heapq.heappush(arrivals, now + hop)
    return now


def bound(
    matrices: Matrices, nbytes: float, per_byte: float, prices: Matrix, root: int | None
) -> Bound:
    """Return the bound for an array of `nbytes`, of which each byte costs `per_byte`."""
    order = np.argsort(-prices, kind="stable")
    scarce = [k for k in order.tolist() if prices[k] > 1e-6]
    names = [matrices.name(k) for k in scarce[:NAMED]]
    if len(scarce) > NAMED:
        names = [*names[: NAMED - 1], f"{len(scarce) - NAMED + 1} more"]
    return Bound(latency_bound(matrices, root), nbytes * per_byte, prices, names)
