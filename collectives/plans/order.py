"""Compare algorithms: they are the same on so many ranks, or fold in the same order."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from collectives.algorithms.registry import Algorithm
from collectives.plans.replay import Expressions, Replay
from collectives.plans.schedule import compile


@lru_cache(maxsize=1024)
def exchanges(algorithm: Algorithm, p: int, root: int = 0) -> Hashable:
    """Return what all ranks do: algorithms may be alike on a few ranks. Local."""
    plans = [compile(algorithm, p, rank, root) for rank in range(p)]
    return tuple((plan.cut, repr(plan.rounds)) for plan in plans)


@lru_cache(maxsize=1024)
def order(algorithm: Algorithm, p: int, root: int = 0) -> Hashable:
    """Return in which order an algorithm folds: two with equal orders give the same bits. Local."""
    plans = [compile(algorithm, p, rank, root) for rank in range(p)]
    expressions = Expressions(algorithm.collective.idempotent)
    replay = Replay(plans, expressions, in_place=False)
    replay.run()
    trees: list[Hashable] = []  # of each expression, without its block
    for left, right, _ in expressions.index:  # a leaf is (-1, rank, block)
        if left < 0:
            trees.append(right)
        else:
            trees.append((trees[left], trees[right]))
    cut = plans[0].cut
    found: dict[tuple[int, int], list[Hashable]] = {}  # for each rank and part
    for rank, values in enumerate(replay.results()):
        for block, value in sorted(values.items()):
            found.setdefault((rank, block // cut), []).append(trees[value])
    if all(len(set(each)) == 1 for each in found.values()):
        # No block differs from another, so that it does not matter how many there are.
        return 1, frozenset((place, each[0]) for place, each in found.items())
    return cut, frozenset((place, tuple(each)) for place, each in found.items())
