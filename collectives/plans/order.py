"""Comparisons of algorithms by their exchanges, and by the order of their folds."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache, reduce
from typing import Any

from collectives.algorithms.bits import MOST_AT_ONCE
from collectives.algorithms.butterfly import folded_in_pairs
from collectives.algorithms.registry import Algorithm
from collectives.algorithms.schedule import Schedule
from collectives.plans.garbage import no_garbage
from collectives.plans.replay import Expressions, Replay
from collectives.plans.schedule import Plan, compile

# Ranks beyond which only algorithms that promise rank order are replayed: that of round_robin,
# which is the longest, takes 0.3 s on 64 ranks (EPYC, 2026-11-26, by
# python -m timeit -p -n 1 -r 1 "order._replayed(get('allreduce', 'round_robin'), 64, 0)").
MANY = 16


@lru_cache(maxsize=1024)
def exchanges(algorithm: Algorithm, p: int, root: int = 0) -> Hashable:
    """Return the rounds of all ranks; on a few ranks, two algorithms may have equal ones. Local."""
    plans = [compile(algorithm, p, rank, root) for rank in range(p)]
    return tuple((plan.cut, repr(plan.rounds)) for plan in plans)


@lru_cache(maxsize=1024)
def order(algorithm: Algorithm, p: int, root: int = 0) -> Hashable:
    """Return the order of an algorithm's folds; two with equal orders give the same bits. Local."""
    replay, expressions = _replayed(algorithm, p, root)
    trees: list[Hashable] = []  # of each expression, without its block
    for left, right, _ in expressions.index:  # a leaf is (-1, rank, block)
        if left < 0:
            trees.append(right)
        else:
            trees.append((trees[left], trees[right]))
    cut = replay.plans[0].cut
    found: dict[tuple[int, int], list[Hashable]] = {}  # for each rank and part
    for rank, values in enumerate(replay.results()):
        for block, value in sorted(values.items()):
            found.setdefault((rank, block // cut), []).append(trees[value])
    if all(len(set(each)) == 1 for each in found.values()):
        # All blocks are folded alike, so their number does not matter.
        return 1, frozenset((place, each[0]) for place, each in found.items())
    return cut, frozenset((place, tuple(each)) for place, each in found.items())


@lru_cache(maxsize=4096)
def has_fixed_order(algorithm: Algorithm, p: int, root: int = 0) -> bool:
    """Return whether an algorithm folds every block in the fixed order of its collective, so that
    the bits of an element depend only on the contributions to it. Local.

    For a scan, that is the order of the ranks: the lowest rank's contribution and the next, then
    the result and the next, and so on, since only a chain moves each array once. For all others, it
    is the order of a butterfly, which is the fastest for short arrays.
    """
    if p > MANY and not algorithm.keeps_order:
        return False
    replay, expressions = _replayed(algorithm, p, root)
    fold = reduce if algorithm.collective.name in ("scan", "exscan") else folded_in_pairs

    def wanted(value: int) -> int:
        block, mask = expressions.block[value], expressions.mask[value]
        ranks = [rank for rank in range(p) if mask >> rank & 1]  # as the contract says
        return fold(expressions.fold, [expressions.leaf(rank, block) for rank in ranks])

    ends = {value for values in replay.results() for value in values.values()}
    return all(wanted(value) == value for value in ends)


@lru_cache(maxsize=1024)
def folds_at_once(algorithm: Algorithm, p: int, root: int = 0) -> bool:
    """Return whether each rank that folds a block folds all contributions to it in one round, so
    that the executor does it in one step, which may round once. Local.
    """
    if p > MOST_AT_ONCE or (p > MANY and not algorithm.keeps_order):
        return False
    expressions = _Places(algorithm.collective.idempotent)
    with no_garbage():
        schedule = Schedule(algorithm, p, root)
        plans = _plans(schedule, merged=False)
        _Placed(schedule, plans, expressions).run()
    return not expressions.is_continued


class _Places(Expressions):
    """Expressions with the rank and the round of their last fold."""

    def __init__(self, idempotent: bool) -> None:
        super().__init__(idempotent)
        self.place = -1, -1
        self.of: dict[int, tuple[int, int]] = {}
        self.is_continued = False  # whether a fold takes the result of another rank or round

    def fold(self, left: int, right: int) -> int:
        for each in (left, right):
            self.is_continued |= self.of.get(each, self.place) != self.place
        number = super().fold(left, right)
        self.of[number] = self.place
        return number


class _Placed(Replay):
    """A replay that passes the rank and the round of each fold to its expressions."""

    expressions: _Places

    def _fold(self, rank: Any, shape: Any) -> None:
        self.expressions.place = rank.plan.rank, rank.round
        super()._fold(rank, shape)


def _plans(schedule: Schedule, merged: bool) -> list[Plan]:
    row, p, root = schedule.algorithm, schedule.p, schedule.root
    return [
        compile(row, p, rank, root, merged=merged, rounds=own)
        for rank, own in enumerate(schedule.rounds)
    ]


def _replayed(algorithm: Algorithm, p: int, root: int) -> tuple[Replay, Expressions]:
    expressions = Expressions(algorithm.collective.idempotent)
    with no_garbage():
        schedule = Schedule(algorithm, p, root)
        replay = Replay(schedule, _plans(schedule, merged=True), expressions)
        replay.run()
    return replay, expressions
