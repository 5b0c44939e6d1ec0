"""Spanning trees that fill a network evenly, as near to its bound as they come."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from collectives.synthesis import trees
from collectives.synthesis.machine import Machine, Matrix
from collectives.synthesis.trees import Parents

SWEEPS = 8  # times that each block gets a new tree


class Packing:
    """A tree for each block, so that no resource has much more to do than others."""

    machine: Machine
    roots: Sequence[int]
    both: bool

    def __init__(
        self, machine: Machine, roots: Sequence[int], both: bool, allowed: Matrix | None
    ) -> None:
        self.machine, self.roots, self.both = machine, roots, both
        self.allowed = allowed
        self.random: np.random.Generator = np.random.default_rng(1)
        near = machine.latency + machine.latency.T
        self.near: Matrix = near / (near.max() or 1.0)

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
