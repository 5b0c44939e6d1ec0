"""Schedules of transfers, and the rounds that they make of each rank.

Time is cut into slots, and ports and links into their bytes. Each block has a spanning tree: it
goes down the tree, in an allreduce after its sums have gone up. A *transfer* is one of
these steps. In each slot, those happen whose blocks are there, and whose ports and links are free
for so long. Where there are several, an assignment of ranks to ranks of the most weight decides:
those weigh more whose ports or links have the most left to do, and those that many others wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.algorithms.exchange import Exchange
from collectives.synthesis.machine import Machine, Numbers
from collectives.synthesis.trees import Parents

# Weights: that others wait for a transfer, and how sharply a resource that has more left
# to do than others is preferred. By trial on the networks of benchmarks/measure_synthesis.py.
AWAITED, SHARP = 0.5, 4
SLACK = 1.15  # the length of a slot in transfers of the longest kind; the rest is for short ones


class Transfer(NamedTuple):
    """A block on its way from one rank to another, to be folded there or not."""

    source: int
    target: int
    block: int
    fold: bool


Slots = Sequence[Sequence[Transfer]]
Side = dict[tuple[int, int], list[int]]  # blocks, by the peer and the block that goes alone


class Transfers:
    """All transfers of trees, as arrays: ranks, blocks, what each waits for, and who waits for it.

    `tail` is the number of transfers that follow one after the other.
    """

    def __init__(self, trees: Sequence[Parents], up: bool) -> None:
        self.source: list[int] = []
        self.target: list[int] = []
        self.block: list[int] = []
        self.fold: list[bool] = []
        self.waits: list[int] = []
        self.tail: list[int] = []
        self.followers: list[list[int]] = []
        for block, parent in enumerate(trees):
            self._add(block, parent.tolist(), up)

    def _add(self, block: int, parent: list[int], up: bool) -> None:
        children: list[list[int]] = [[] for _ in parent]
        for child, above in enumerate(parent):
            if above >= 0:
                children[above].append(child)
        root = parent.index(-1)
        order = [root]
        for node in order:
            order += children[node]
        depth, height = [0] * len(parent), [0] * len(parent)
        for node in order[1:]:
            depth[node] = depth[parent[node]] + 1
        for node in reversed(order[1:]):
            height[parent[node]] = max(height[parent[node]], height[node] + 1)
        rising: dict[int, int] = {}
        if up:
            for node in reversed(order[1:]):
                after = depth[node] - 1 + height[root]
                rising[node] = self._one(
                    node, parent[node], block, True, len(children[node]), after
                )
            for node in order[1:]:
                if parent[node] != root:
                    self.followers[rising[node]].append(rising[parent[node]])
        falling: dict[int, int] = {}
        for node in order[1:]:
            above = parent[node]
            before = [rising[c] for c in children[root] if up]
            if above != root:
                before = [falling[above]]
            falling[node] = self._one(above, node, block, False, len(before), height[node])
            for each in before:
                self.followers[each].append(falling[node])

    def _one(self, source: int, target: int, block: int, fold: bool, waits: int, tail: int) -> int:
        self.source.append(source)
        self.target.append(target)
        self.block.append(block)
        self.fold.append(fold)
        self.waits.append(waits)
        self.tail.append(tail)
        self.followers.append([])
        return len(self.source) - 1

    def transfer(self, k: int) -> Transfer:
        """Return a transfer by its number."""
        return Transfer(self.source[k], self.target[k], self.block[k], self.fold[k])


class _Slots:
    """The transfers that are ready, and the work that is left for each port and link."""

    def __init__(self, machine: Machine, every: Transfers, nbytes: float) -> None:
        p = machine.p
        self.p, self.every = p, every
        self.source, self.target = np.array(every.source), np.array(every.target)
        pairs = self.source, self.target
        self.last = machine.latency[pairs] + nbytes * machine.seconds_per_byte[pairs]
        self.length = float(self.last.max(initial=0.0)) * SLACK
        # Each transfer occupies these resources for so long; the last one is no resource.
        self.busy = np.append(np.zeros(2 * p), nbytes * machine.capacities)
        self.ways = machine.ways[pairs] + 2 * p
        self.left = np.zeros(len(self.busy))
        np.add.at(self.left, self.source, self.last)
        np.add.at(self.left, p + self.target, self.last)
        np.add.at(self.left, self.ways, self.busy[self.ways])
        self.waits = np.array(every.waits)
        self.ready = self.waits == 0
        tail = np.array(every.tail, float)
        self.awaited = AWAITED * tail / max(1.0, tail.max(initial=0.0))
        self.ends = self._ends()
        self.folding: dict[int, bool] = {}  # whether what a rank receives in the slot is folded

    def _ends(self) -> tuple[Numbers, Numbers]:
        """Return for each transfer the resources that take one at a time, at its two ends.

        They are its ports, or else links of its way that carry no more than one such message.
        """
        narrow = self.busy[self.ways] > 0.6 * self.last[:, None]
        first, last = self.source.copy(), self.p + self.target
        several = narrow.sum(axis=1) > 1
        if several.any():
            width = narrow.shape[1]
            rows = np.flatnonzero(several)
            first[rows] = self.ways[rows, narrow[rows].argmax(axis=1)]
            last[rows] = self.ways[rows, width - 1 - narrow[rows, ::-1].argmax(axis=1)]
        return first, last

    def _weights(self, ready: Numbers) -> NDArray[np.float64]:
        left = self.left / max(float(self.left.max()), 1e-300)
        ports = left[self.source[ready]], left[self.p + self.target[ready]]
        most = np.maximum(*ports)
        if self.ways.shape[1]:
            most = np.maximum(most, left[self.ways[ready]].max(axis=1))
        weights: NDArray[np.float64] = most**SHARP + 0.1 * (ports[0] + ports[1])
        weights += self.awaited[ready]
        return weights

    def take(self) -> list[int]:
        """Return the transfers of the next slot, and have others follow them."""
        from scipy.optimize import linear_sum_assignment

        ready = np.flatnonzero(self.ready)
        weights = self._weights(ready)
        order = np.argsort(-weights, kind="stable")
        ready, weights = ready[order], weights[order]
        used = np.zeros(len(self.left))
        taken: list[int] = []
        rows, row = np.unique(self.ends[0][ready], return_inverse=True)
        columns, column = np.unique(self.ends[1][ready], return_inverse=True)
        table = np.zeros((len(rows), len(columns)))
        best = np.full(table.shape, -1)
        _, first = np.unique(row * len(columns) + column, return_index=True)
        table[row[first], column[first]] = weights[first]  # the most of those with the same ends
        best[row[first], column[first]] = first
        chosen = best[linear_sum_assignment(table, maximize=True)]
        for place in np.sort(chosen[chosen >= 0]).tolist():
            self._try(int(ready[place]), used, taken)
        least = float(self.last.min())
        out, into = used[self.source[ready]], used[self.p + self.target[ready]]
        for k in ready[np.maximum(out, into) + least <= self.length].tolist():
            if self.ready[k]:
                self._try(k, used, taken)
        for k in taken:
            for other in self.every.followers[k]:
                self.waits[other] -= 1
                self.ready[other] = self.waits[other] == 0
        return sorted(taken, key=lambda k: -self.last[k])

    def _try(self, k: int, used: NDArray[np.float64], taken: list[int]) -> None:
        """Take a transfer if its ports and links have room in the slot.

        A round of a rank folds all that it receives, or nothing of it.
        """
        u, v, last = int(self.source[k]), self.p + int(self.target[k]), self.last[k]
        if used[u] + last > self.length or used[v] + last > self.length:
            return
        if used[v] and self.every.fold[k] is not self.folding.get(v):
            return
        way = self.ways[k]
        way = way[way < len(used) - 1]
        busy = self.busy[way]
        if (used[way] + busy > self.length).any():
            return
        for amounts, sign in ((used, 1), (self.left, -1)):
            amounts[u] += sign * last
            amounts[v] += sign * last
            amounts[way] += sign * busy
        self.folding[v] = self.every.fold[k]
        self.ready[k] = False
        taken.append(k)


def slots(
    machine: Machine, trees: Sequence[Parents], nbytes: float, up: bool
) -> list[list[Transfer]]:
    """Return the transfers of blocks of `nbytes` down their trees, or `up` and down, by slots."""
    every = Transfers(trees, up)
    state = _Slots(machine, every, nbytes)
    found: list[list[Transfer]] = []
    left = len(every.source)
    while left:
        taken = state.take()
        left -= len(taken)
        found.append([every.transfer(k) for k in taken])
    return found


def reversed_in_time(slots: Slots) -> list[list[Transfer]]:
    """Return slots that gather sums, where `slots` spread blocks: the last first, and backward."""
    return [
        [Transfer(each.target, each.source, each.block, True) for each in slot]
        for slot in reversed(slots)
    ]


def rounds(p: int, slots: Slots) -> list[list[Exchange]]:
    """Return the rounds of each rank.

    A slot is one round, in which all that a rank receives is folded, or nothing of it. Blocks that
    are folded go one by one, others for one rank in one message.
    """
    found: list[list[Exchange]] = [[] for _ in range(p)]
    for slot in slots:
        sends: dict[int, Side] = {}
        receives: dict[int, Side] = {}
        folds = {each.target: each.fold for each in slot}
        for each in slot:
            alone = each.block if each.fold else -1
            sends.setdefault(each.source, {}).setdefault((each.target, alone), []).append(
                each.block
            )
            takes = receives.setdefault(each.target, {})
            takes.setdefault((each.source, alone), []).append(each.block)
        for rank in sends.keys() | receives.keys():
            give, take = (_messages(side.get(rank, {})) for side in (sends, receives))
            found[rank].append(Exchange(give, take, folds.get(rank, False)))
    return found


def _messages(side: Side) -> list[tuple[int, int | list[int]]]:
    return [(peer, b[0] if len(b) == 1 else b) for (peer, _), b in side.items()]
