"""Hops of blocks in slots of time, and the rounds that they make of each rank.

Time is cut into slots, and ports and links into their bytes. Blocks go down a tree, in an
allreduce after their sums have gone up. A *hop* is one of these steps, of one block. Blocks
with the same trees are alike, so that a *step* stands for the hops of all of them, in order.
In each slot, those happen whose blocks are there, and whose ports and links are free for so long.
Where there are several, an assignment of ranks to ranks of the most weight decides: those weigh
more whose ports or links have the most left to do, those that many others wait for, and those of
which the least is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collectives.algorithms.exchange import Exchange
from collectives.synthesis.matrices import Matrices, Matrix, Numbers
from collectives.synthesis.trees import Parents

# Weights: how sharply a resource that has more left to do than others is preferred, that others
# wait, and that little is done. By trial on the networks of benchmarks/measure_synthesis.py; none
# is the best on all of them, so that the one with the fewest slots is taken.
WEIGHTS = ((250.0, 1.0, 3.0), (4.0, 8.0, 0.0), (250.0, 2.0, 10.0))
ROUNDING = 1 + 1e-9


class Hop(NamedTuple):
    """A block on its way from one rank to another, to be folded there or not."""

    source: int
    target: int
    block: int
    fold: bool


class Trees(NamedTuple):
    """The trees of so many consecutive blocks: up to the root, and down from there.

    Blocks go only up, or only down, if the other tree is None.
    """

    up: Parents | None
    down: Parents | None
    blocks: int


Slots = Sequence[Sequence[Hop]]


class _Steps:
    """The steps of trees as arrays: ranks, numbers of blocks, and the steps that each waits for."""

    def __init__(self, every: Sequence[Trees]) -> None:
        self.rows: list[tuple[int, int, bool, int, int, int]] = []
        self.waits: list[list[int]] = []
        first = 0
        for each in every:
            self._add(each, first)
            first += each.blocks
        source, target, fold, tail, blocks, start = np.array(self.rows, np.int64).T
        self.source, self.target, self.fold = source, target, fold
        self.blocks, self.start = blocks, start
        self.tail: Matrix = tail / max(1, tail.max(initial=0))

    def _add(self, each: Trees, first: int) -> None:
        rising: dict[int, int] = {}
        under: list[int] = []
        below = 0 if each.down is None else max(_walk(each.down)[2])
        if each.up is not None:
            order, children, _, depth = _walk(each.up)
            for node in reversed(order[1:]):
                before = [rising[c] for c in children[node]]
                ends = node, int(each.up[node])
                rising[node] = self._one(ends, True, depth[node] - 1 + below, each, first, before)
            under = [rising[c] for c in children[order[0]]]
        if each.down is None:
            return
        falling: dict[int, int] = {}
        order, _, height, _ = _walk(each.down)
        for node in order[1:]:
            above = int(each.down[node])
            before = under if above == order[0] else [falling[above]]
            falling[node] = self._one((above, node), False, height[node], each, first, before)

    def _one(
        self,
        ends: tuple[int, int],
        fold: bool,
        tail: int,
        each: Trees,
        first: int,
        before: list[int],
    ) -> int:
        self.rows.append((*ends, fold, tail, each.blocks, first))
        self.waits.append(before)
        return len(self.rows) - 1


def _walk(parent: Parents) -> tuple[list[int], list[list[int]], list[int], list[int]]:
    """Return the nodes of a tree from its root on, children of each, its height and its depth."""
    children: list[list[int]] = [[] for _ in parent]
    for child, above in enumerate(parent.tolist()):
        if above >= 0:
            children[above].append(child)
    order = [int(np.flatnonzero(parent < 0)[0])]
    depth, height = [0] * len(parent), [0] * len(parent)
    for node in order:
        for child in children[node]:
            depth[child] = depth[node] + 1
        order += children[node]
    for node in reversed(order[1:]):
        above = int(parent[node])
        height[above] = max(height[above], height[node] + 1)
    return order, children, height, depth


class _Filling:
    """The blocks of each step that are done, and the time that is left of each port and link.

    A slot has room for so many blocks between the ranks that take the longest.
    """

    def __init__(
        self,
        matrices: Matrices,
        every: _Steps,
        nbytes: float,
        room: float,
        weights: tuple[float, float, float],
    ) -> None:
        p = matrices.p
        self.p, self.every, self.weights = p, every, weights
        pairs = every.source, every.target
        self.last = nbytes * matrices.seconds_per_byte[pairs]
        self.latency = matrices.latency[pairs]
        self.length = float((self.last * room + self.latency).max()) * ROUNDING
        # A block occupies these resources for so long; the last one is no resource.
        self.busy = np.append(np.zeros(2 * p), nbytes * matrices.capacities)
        self.ways = matrices.ways[pairs] + 2 * p
        self.done = np.zeros(len(self.last), np.int64)
        # For each step, the numbers of those that it waits for; the last number is that of none.
        none = len(self.last)
        before = [each or [none] for each in every.waits]
        self.before: Numbers = np.array([k for each in before for k in each])
        self.begin: Numbers = np.cumsum([0] + [len(each) for each in before[:-1]])
        self.free = np.array([not each for each in every.waits])
        self.ends = self._ends()

    def _ends(self) -> tuple[Numbers, Numbers]:
        """Return for each step the resources that take one block at a time, at its two ends.

        They are its ports, or else links of its way that carry no more than one such message.
        """
        narrow = self.busy[self.ways] > 0.6 * self.last[:, None]
        first, last = self.every.source.copy(), self.p + self.every.target
        rows = np.flatnonzero(narrow.sum(axis=1) > 1)
        if len(rows):
            width = narrow.shape[1]
            first[rows] = self.ways[rows, narrow[rows].argmax(axis=1)]
            last[rows] = self.ways[rows, width - 1 - narrow[rows, ::-1].argmax(axis=1)]
        return first, last

    def _weigh(self) -> Matrix:
        """Return the weight of a second of each step."""
        sharp, awaited, early = self.weights
        every, left = self.every, self.every.blocks - self.done
        load = np.zeros(len(self.busy))
        np.add.at(load, every.source, left * self.last)
        np.add.at(load, self.p + every.target, left * self.last)
        np.add.at(load, self.ways, left[:, None] * self.busy[self.ways])
        load[-1] = 0
        load = (load / max(float(load.max()), 1e-300)) ** sharp
        weights: Matrix = load[every.source] + load[self.p + every.target] + 1e-6
        if self.ways.shape[1]:
            weights += load[self.ways].max(axis=1)
        weights += awaited * every.tail + early * left / every.blocks
        return weights

    def take(self) -> list[Hop]:
        """Return the hops of the next slot."""
        every = self.every
        came = np.minimum.reduceat(np.append(self.done, 0)[self.before], self.begin)
        self.there = np.where(self.free, every.blocks, came) - self.done
        self.used = np.zeros(len(self.busy))
        self.kinds = np.full(self.p, -1)  # whether what a rank receives in the slot is folded
        weights = self._weigh()
        taken: list[Hop] = []
        while self._match(weights, taken):
            pass
        return taken

    def _room(self, k: Numbers) -> Numbers:
        """Return how many blocks of each of these steps the slot still has room for."""
        every = self.every
        ports = np.maximum(self.used[every.source[k]], self.used[self.p + every.target[k]])
        room = (self.length - self.latency[k] - ports) / np.maximum(self.last[k], 1e-300)
        if self.ways.shape[1]:
            left = (self.length - self.used[self.ways[k]]) / np.maximum(
                self.busy[self.ways[k]], 1e-300
            )
            room = np.minimum(room, left.min(axis=1))
        kinds = self.kinds[every.target[k]]
        fits = (kinds < 0) | (kinds == every.fold[k])
        return np.where(fits, np.clip(room, 0, 1 << 30), 0).astype(np.int64)

    def _match(self, weights: Matrix, taken: list[Hop]) -> bool:
        """Take blocks of different ranks to different ranks; return whether there are any."""
        from scipy.optimize import linear_sum_assignment

        every = self.every
        ready = np.flatnonzero(self.there > 0)
        room = self._room(ready)
        ready, room = ready[room > 0], room[room > 0]
        if not len(ready):
            return False
        # Steps of the same kind between the same ranks are one group, the heaviest first.
        name = (every.source[ready] * self.p + every.target[ready]) * 2 + every.fold[ready]
        order = np.lexsort((-weights[ready], name))
        ready, room, name = ready[order], room[order], name[order]
        new = np.diff(name, prepend=-1) != 0
        first, group = np.flatnonzero(new), np.cumsum(new) - 1
        before = np.cumsum(self.there[ready]) - self.there[ready]
        number = np.clip(room - (before - before[first][group]), 0, self.there[ready])
        value = np.bincount(group, weights[ready] * number * np.maximum(self.last[ready], 1e-300))
        rows, row = np.unique(self.ends[0][ready[first]], return_inverse=True)
        columns, column = np.unique(self.ends[1][ready[first]], return_inverse=True)
        table = np.zeros((len(rows), len(columns)))
        best = np.full(table.shape, -1)
        rising = np.argsort(value, kind="stable")  # the most of those with the same ends
        table[row[rising], column[rising]] = value[rising]
        best[row[rising], column[rising]] = rising
        chosen = best[linear_sum_assignment(table, maximize=True)]
        chosen = chosen[chosen >= 0]
        some = False
        for g in chosen[np.argsort(-value[chosen], kind="stable")].tolist():
            some = self._take(ready[group == g], taken) or some
        return some

    def _take(self, steps: Numbers, taken: list[Hop]) -> bool:
        """Take blocks of steps between the same ranks, as many as there is room for."""
        every = self.every
        k = int(steps[0])
        source, target = int(every.source[k]), int(every.target[k])
        room = total = int(self._room(steps[:1])[0])
        for step in steps.tolist():
            number = min(int(self.there[step]), room)
            start = int(every.start[step] + self.done[step])
            fold = bool(every.fold[step])
            taken += [Hop(source, target, start + i, fold) for i in range(number)]
            self.there[step] -= number
            self.done[step] += number
            room -= number
        total -= room
        if total:
            last = total * self.last[k] + self.latency[k]
            self.used[source] += last
            self.used[self.p + target] += last
            way = self.ways[k][self.ways[k] < len(self.used) - 1]
            self.used[way] += total * self.busy[way]
            self.kinds[target] = every.fold[k]
        return total > 0


def slots(
    matrices: Matrices, every: Sequence[Trees], nbytes: float, room: float = 1.0
) -> list[list[Hop]]:
    """Return the hops of blocks of `nbytes` along their trees, by slots."""
    steps = _Steps(every)
    total = int(steps.blocks.sum())
    best = list[list[Hop]]()
    for weights in WEIGHTS:
        state = _Filling(matrices, steps, nbytes, room, weights)
        found = list[list[Hop]]()
        while state.done.sum() < total and (not best or len(found) < len(best)):
            found.append(state.take())
        if not best or len(found) < len(best):
            best = found
    return best


def there_and_back(matrices: Matrices, every: Sequence[Trees], nbytes: float) -> list[list[Hop]]:
    """Return the slots of blocks that go up their trees, and then back on the same ways.

    The way back is the way up in reversed time, except that of the blocks with the same trees, the
    first ones come back first. So each hop of it may happen earlier than in its slot.
    """
    up = slots(matrices, every, nbytes)
    number = np.concatenate([np.arange(each.blocks)[::-1] for each in every])
    sizes = [each.blocks for each in every]
    number += np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
    back = [
        [each._replace(block=int(number[each.block])) for each in slot] for slot in returned(up)
    ]
    return _earlier(matrices, [*up, *back], nbytes)


def _earlier(matrices: Matrices, every: Slots, nbytes: float) -> list[list[Hop]]:
    """Return slots in which each hop is in the first slot that has room for it."""
    p, n = matrices.p, len(every)
    last = matrices.latency + nbytes * matrices.seconds_per_byte
    busy = nbytes * matrices.capacities
    length = float(last.max()) * ROUNDING
    used = np.zeros((n, 2 * p + len(busy)))
    kinds = np.full((n, p), -1)
    came: dict[tuple[int, int], int] = {}  # the slot in which a block came to a rank
    found: list[list[Hop]] = [[] for _ in every]
    for number, slot in enumerate(every):
        for each in slot:
            source, target = each.source, p + each.target
            way = matrices.ways[source, each.target]
            way = way[way < len(busy) - 1]
            seconds = last[source, each.target]
            some = slice(came.get((source, each.block), -1) + 1, number)
            fits = np.maximum(used[some, source], used[some, target]) + seconds <= length
            fits &= (kinds[some, each.target] < 0) | (kinds[some, each.target] == each.fold)
            if len(way):
                fits &= (used[some, 2 * p + way] + busy[way] <= length).all(axis=1)
            k = some.start + int(fits.argmax()) if fits.any() else number
            used[k, source] += seconds
            used[k, target] += seconds
            used[k, 2 * p + way] += busy[way]
            kinds[k, each.target] = each.fold
            key = each.target, each.block
            came[key] = max(came.get(key, -1), k)
            found[k].append(each)
    return [slot for slot in found if slot]


def reversed_in_time(slots: Slots) -> list[list[Hop]]:
    """Return slots that gather sums, where `slots` spread blocks: the last first, and backward."""
    return [
        [Hop(each.target, each.source, each.block, True) for each in slot]
        for slot in reversed(slots)
    ]


def returned(slots: Slots) -> list[list[Hop]]:
    """Return slots that spread blocks, where `slots` gather sums: the last first, and backward."""
    return [
        [Hop(each.target, each.source, each.block, False) for each in slot]
        for slot in reversed(slots)
    ]


def rounds(p: int, slots: Slots) -> list[list[Exchange]]:
    """Return the rounds of each rank.

    A slot is one round, in which all that a rank receives is folded, or nothing of it. Blocks for
    one rank go in one message; if they are folded, in several, so that a fold can begin earlier.
    """
    found: list[list[Exchange]] = [[] for _ in range(p)]
    for slot in slots:
        pairs: dict[tuple[int, int], list[int]] = {}
        for each in slot:
            pairs.setdefault((each.source, each.target), []).append(each.block)
        folds = {each.target: each.fold for each in slot}
        sends: dict[int, list[tuple[int, int | list[int]]]] = {}
        receives: dict[int, list[tuple[int, int | list[int]]]] = {}
        for (source, target), blocks in pairs.items():
            for some in _messages(blocks, folds[target]):
                sends.setdefault(source, []).append((target, some))
                receives.setdefault(target, []).append((source, some))
        for rank in sends.keys() | receives.keys():
            give, take = sends.get(rank, []), receives.get(rank, [])
            found[rank].append(Exchange(give, take, folds.get(rank, False)))
    return found


def _messages(blocks: list[int], fold: bool) -> list[int | list[int]]:
    """Return the blocks of each message; the last fold is short, because no message hides it."""
    size = max(1, len(blocks) * 3 // 4) if fold else len(blocks)
    parts = [blocks[k : k + size] for k in range(0, len(blocks), size)]
    return [part[0] if len(part) == 1 else part for part in parts]
