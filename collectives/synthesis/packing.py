"""Spanning trees that fill a network evenly, and the bound that no algorithm can beat.

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

import time
from collections.abc import Callable, Sequence

import numpy as np

from collectives.synthesis import trees
from collectives.synthesis.machine import Machine, Matrix
from collectives.synthesis.trees import Parents

SWEEPS = 8  # times that each block gets a new tree
EXACT = 1e-4  # relative distance at which bound and program count as equal
MIXED = 0.3  # how far a trial goes from the best prices to those of the program


class Demand:
    """What a collective needs of each byte: trees out of these ranks, or both ways (no ranks).

    `roots` are the ranks that parts of the array go out from, all of them equally large.
    """

    def __init__(self, machine: Machine, roots: Sequence[int] | None) -> None:
        self.machine, self.roots = machine, roots

    def cheapest(self, prices: Matrix) -> tuple[float, Matrix]:
        """Return the least cost of a byte, and for how long it then occupies each resource."""
        machine, costs = self.machine, self.machine.costs(prices)
        if self.roots is None:
            either = np.minimum(costs, costs.T)
            up, down = trees.edges(trees.spanning(either, 0))
            ahead = costs[up, down] <= costs[down, up]
            busy = 2 * machine.loads(np.where(ahead, up, down), np.where(ahead, down, up))
        else:
            found = [trees.edges(trees.arborescence(costs, root)) for root in self.roots]
            up, down = (np.concatenate(side) for side in zip(*found, strict=True))
            busy = machine.loads(up, down) / len(self.roots)
        return float(busy @ prices), busy


def best_prices(
    demand: Demand, seconds: float, tell: Callable[[float], None] = lambda bound: None
) -> tuple[float, Matrix]:
    """Return the largest bound that is found in so many `seconds`, in seconds per byte, and prices.

    `tell` is called with each bound.
    """
    from scipy.optimize import linprog

    n, p = demand.machine.resources, demand.machine.p
    end = time.monotonic() + seconds
    best, center, rows = 0.0, np.full(n, 1 / n), list[Matrix]()

    def tried(prices: Matrix) -> None:
        nonlocal best, center
        cost, busy = demand.cheapest(prices)
        rows.append(busy)
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
    return best, center


class Packing:
    """A tree for each block, so that no resource has much more to do than others."""

    def __init__(
        self, machine: Machine, roots: Sequence[int], both: bool, allowed: Matrix | None
    ) -> None:
        self.machine, self.roots, self.both = machine, roots, both
        self.allowed = allowed
        self.random = np.random.default_rng(1)
        near = machine.latency + machine.latency.T
        self.near = near / (near.max() or 1.0)

    def trees(self, goal: float, seconds: float) -> list[Parents]:
        """Return a tree for each root; `goal` is the bound, at which the search ends."""
        end = time.monotonic() + seconds
        blocks = len(self.roots)
        found: list[Parents] = [np.empty(0, np.int64)] * blocks
        busy = np.zeros((blocks, self.machine.resources))
        total = np.zeros(self.machine.resources)
        best, least = list[Parents](), np.inf
        for sweep in range(SWEEPS):
            sharp = min(200.0, 8.0 * 2**sweep)
            for block in self.random.permutation(blocks):
                total = total - busy[block]
                top = max(float(total.max()), goal * blocks / (2 if sweep == 0 else 1), 1e-300)
                found[block] = self._tree(np.exp(sharp * (total / top - 1)), self.roots[block])
                up, down = trees.edges(found[block])
                busy[block] = self.machine.loads(up, down)
                if self.both:
                    busy[block] += self.machine.loads(down, up)
                total = total + busy[block]
            total = busy.sum(axis=0)
            if total.max() < least:
                best, least = list(found), float(total.max())
            if least <= blocks * goal * 1.005 or time.monotonic() > end:
                break
        return best

    def _tree(self, prices: Matrix, root: int) -> Parents:
        """Return the cheapest tree; among almost equal ones, any of those with short ways."""
        p = self.machine.p
        costs = self.machine.costs(prices / prices.sum() + 0.05 / len(prices))
        if self.both:
            costs = costs + costs.T
        costs = (
            costs * (1 + 1e-4 * self.random.random((p, 1))) + 1e-3 * np.median(costs) * self.near
        )
        if self.allowed is not None:
            costs = np.where(self.allowed, costs, 1e6 * costs.max())
        if self.both:
            return trees.spanning(np.maximum(costs, costs.T), root)
        return trees.arborescence(costs, root)


def leaders(machine: Machine) -> Matrix | None:
    """Return which pairs may use links that several ranks share: one rank on each side of a link.

    Two messages that share a link occupy their ports twice as long. If one rank sends all that goes
    over the link, its port puts the messages in order. None where no such link is.
    """
    p, links = machine.p, len(machine.capacities) - 1
    allowed = np.ones((p, p), bool)
    away = ~np.eye(p, dtype=bool)
    for link in range(links):
        crosses = (machine.ways == link).any(axis=2)
        sources, targets = crosses.any(axis=1), crosses.any(axis=0)
        if (sources & targets).any() or sources.sum() == 1 or targets.sum() == 1:
            continue
        alone = machine.seconds_per_byte[crosses]
        if not len(alone) or machine.capacities[link] < 0.6 * alone.min():
            continue
        if sources.sum() <= targets.sum():
            allowed &= ~crosses | (np.arange(p) == sources.argmax())[:, None]
        if targets.sum() <= sources.sum():
            allowed &= ~crosses | (np.arange(p) == targets.argmax())[None, :]
    return None if allowed[away].all() else allowed
