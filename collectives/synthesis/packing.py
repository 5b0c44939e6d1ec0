"""Spanning trees that fill a network evenly, as near to its bound as they come."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from collectives.synthesis import trees
from collectives.synthesis.hops import Trees
from collectives.synthesis.matrices import Matrices, Matrix
from collectives.synthesis.trees import Parents

SWEEPS = 8  # times that each block gets a new tree
# Of `spread`: how far resources may be above the bound, from which part of it on their time costs,
# and the cost of the square of the depth of a tree. By trial on the networks of
# benchmarks/measure_synthesis.py.
OVER, KNEE, FLAT = 0.01, 0.6, 0.02


class Packing:
    """A tree for each block, so that no resource has much more to do than others."""

    matrices: Matrices
    roots: Sequence[int]
    both: bool

    def __init__(self, matrices: Matrices, roots: Sequence[int], both: bool) -> None:
        self.matrices, self.roots, self.both = matrices, roots, both
        self.random: np.random.Generator = np.random.default_rng(1)
        near = matrices.latency + matrices.latency.T
        self.near: Matrix = near / (near.max() or 1.0)

    def trees(self, goal: float, seconds: float) -> list[Parents]:
        """Return a tree for each root; `goal` is the bound, at which the search ends."""
        end = time.monotonic() + seconds
        blocks = len(self.roots)
        found: list[Parents] = [np.empty(0, np.int64)] * blocks
        busy = np.zeros((blocks, self.matrices.resources))
        total = np.zeros(self.matrices.resources)
        best, least = list[Parents](), np.inf
        for sweep in range(SWEEPS):
            sharp = min(200.0, 8.0 * 2**sweep)
            for block in self.random.permutation(blocks):
                total = total - busy[block]
                top = max(float(total.max()), goal * blocks / (2 if sweep == 0 else 1), 1e-300)
                found[block] = self._tree(np.exp(sharp * (total / top - 1)), self.roots[block])
                up, down = trees.edges(found[block])
                busy[block] = self.matrices.loads(up, down)
                if self.both:
                    busy[block] += self.matrices.loads(down, up)
                total = total + busy[block]
            total = busy.sum(axis=0)
            if total.max() < least:
                best, least = list(found), float(total.max())
            if least <= blocks * goal * 1.005 or time.monotonic() > end:
                break
        return best

    def _tree(self, prices: Matrix, root: int) -> Parents:
        """Return the cheapest tree; among almost equal ones, any of those with short ways."""
        p = self.matrices.p
        costs = self.matrices.costs(prices / prices.sum() + 0.05 / len(prices))
        if self.both:
            costs = costs + costs.T
        costs = (
            costs * (1 + 1e-4 * self.random.random((p, 1))) + 1e-3 * np.median(costs) * self.near
        )
        if self.both:
            return trees.spanning(np.maximum(costs, costs.T), root)
        return trees.arborescence(costs, root)


def spread(
    matrices: Matrices, known: Sequence[Parents], goal: float, seconds: float
) -> list[tuple[float, Parents]]:
    """Return trees for an allreduce, with the part of the bytes that each is to carry.

    No resource is busy for much longer than `goal`, the bound, in seconds per byte. Of all such
    parts, a linear program finds those with flat trees, and with few resources that have almost as
    much to do. Its columns are trees: first those that are `known`, and stars; then the cheapest
    tree at the prices of the last solution.
    """
    from scipy.optimize import linprog

    n, p = matrices.resources, matrices.p
    end = time.monotonic() + seconds
    found = dict[bytes, tuple[Parents, Matrix, int]]()

    def add(tree: Parents) -> None:
        tree = trees.centered(tree)
        up, down = trees.edges(tree)
        name = np.sort(np.minimum(up, down) * p + np.maximum(up, down)).tobytes()
        if name not in found:
            busy = (matrices.loads(up, down) + matrices.loads(down, up)) / max(goal, 1e-300)
            found[name] = tree, busy, trees.depth(tree)

    for tree in [*known, *(np.where(np.arange(p) == r, -1, r) for r in range(p))]:
        add(tree)
    random = np.random.default_rng(1)
    while True:
        columns = list(found.values())
        table = np.array([busy for _, busy, _ in columns]).T
        program = linprog(
            np.append([FLAT * deep**2 for _, _, deep in columns], np.full(n, 1 / p)),
            A_ub=np.block([[table, np.zeros((n, n))], [table, -np.eye(n)]]),
            b_ub=np.repeat([1 + OVER, KNEE], n),
            A_eq=[np.append(np.ones(len(columns)), np.zeros(n))],
            b_eq=[1.0],
            method="highs",
        )
        if program.x is None:
            return []
        prices = np.maximum(-program.ineqlin.marginals, 0).reshape(2, n).sum(axis=0)
        if time.monotonic() < end and prices.sum() > 0:
            costs = matrices.costs(prices / prices.sum() + 1e-6 / n)
            for root in random.choice(p, min(p, 4), replace=False).tolist():
                add(trees.spanning(costs + costs.T, root))
        if len(found) == len(columns) or time.monotonic() > end:
            parts = program.x[: len(columns)].tolist()
            return [(part, c[0]) for part, c in zip(parts, columns, strict=True) if part > 1e-9]


def shared_out(parts: Sequence[tuple[float, Parents]], blocks: int) -> list[Trees]:
    """Return the trees of so many blocks, by the parts that the trees are to carry."""
    wanted = np.array([part for part, _ in parts])
    wanted *= blocks / wanted.sum()
    number = wanted.astype(np.int64)
    number[np.argsort(number - wanted)[: blocks - number.sum()]] += 1
    pairs = zip(number.tolist(), parts, strict=True)
    return [Trees(tree, tree, each) for each, (_, tree) in pairs if each]


def hosts(matrices: Matrices) -> list[list[int]]:
    """Return the ranks of each host: those whose messages to all others share links.

    Hosts are two or more, and one of them has two ranks at least; otherwise the list is empty.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    p, links = matrices.p, len(matrices.capacities) - 1
    away = np.zeros((p, p), bool)
    for link in range(links):
        crosses = (matrices.ways == link).any(axis=2)
        sources, targets = crosses.any(axis=1), crosses.any(axis=0)
        if not (sources ^ targets).all() or 1 in (sources.sum(), targets.sum()):
            continue
        if matrices.capacities[link] > 0.6 * matrices.seconds_per_byte[crosses].min(initial=np.inf):
            away |= crosses
    number, label = connected_components(csr_matrix(~(away | away.T)))
    found = [np.flatnonzero(label == host).tolist() for host in range(number)]
    return found if 1 < number < p else []


def chains(
    matrices: Matrices, tour: Sequence[list[int]], roots: Sequence[int], blocks: int
) -> list[Trees]:
    """Return trees up to these roots, for so many blocks each, along hosts that are in a ring.

    Messages that share a link occupy the ports of their ranks for longer. So all that a host sends
    to the next one comes from its first rank, whose port puts it in order, and goes to the last
    rank there. Within a host, one of the other ranks collects the sums, by turns.
    """
    found = []
    for number, root in enumerate(roots):
        turn = number // len(tour)
        parent = np.full(matrices.p, -1)
        for k, host in enumerate(tour):
            top, entry = root if root in host else host[0], host[-1]
            between = [rank for rank in host if rank not in (top, entry)]
            between = [between[(turn + k + i) % len(between)] for i in range(len(between))]
            for i, rank in enumerate(between[1:]):
                parent[rank] = between[i // 2]
            parent[entry] = between[0] if between else top
            if between:
                parent[between[0]] = top
            parent[top] = -1 if root in host else tour[(k + 1) % len(tour)][-1]
        found.append(Trees(parent, None, blocks))
    return found
