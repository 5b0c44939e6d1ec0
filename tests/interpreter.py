"""A plain interpreter of packed plans, for all ranks at once: the reference for the executor.

It knows the format of `schedule.pack` and nothing of how plans are made or proven. Whatever may
happen next is drawn at random from a seeded generator: a message moves, a local step runs, a
rank posts its next round. A message moves only when both sides have posted it (a rendezvous),
and reads its source at that moment, so that a plan which overwrites what it still sends, or
reads what has not arrived, gives a wrong result under some seed.

A buffer of n elements is cut into blocks at ``n * b // nblocks``, a block of c elements into T
segments at ``c * t // T``. Each segment runs the whole plan for itself.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from collectives.registry import Algorithm
from collectives.schedule import MESSAGE_FIELDS, ROUND_FIELDS, STEP_FIELDS, compile, pack

IN, OUT, WORK, TMP = range(4)
Op = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Deadlock(Exception):
    """Nothing can happen any more, and some rank is not done."""


class Broken(Exception):
    """A plan did what no plan may do: it changed its input, or lengths did not fit."""


def _rows(flat: Sequence[int], width: int) -> list[tuple[int, ...]]:
    return [tuple(flat[i : i + width]) for i in range(0, len(flat), width)]


class _Cursor:
    """One segment of one rank: its plan, its temporary blocks, and where it stands."""

    def __init__(self, rank: int, segment: int, packed: Sequence[Sequence[int]]) -> None:
        self.rank, self.segment = rank, segment
        rounds, messages, steps = packed
        self.rounds = _rows(rounds, ROUND_FIELDS)
        self.messages = _rows(messages, MESSAGE_FIELDS)
        self.steps = _rows(steps, STEP_FIELDS)
        self.tmp: dict[int, np.ndarray] = {}
        self.round = -1
        self.step = self.end = 0
        self.flying: set[int] = set()

    @property
    def done(self) -> bool:
        return self.round == len(self.rounds)


class _Machine:
    """All cursors, the queues between ranks, and the memory of each rank."""

    def __init__(
        self,
        packed: list[Sequence[Sequence[int]]],
        memory: list[dict[int, np.ndarray]],
        nblocks: int,
        segments: int,
        op: Op,
        seed: int,
    ) -> None:
        self.memory, self.nblocks, self.segments, self.op = memory, nblocks, segments, op
        self.n = len(memory[0][IN])
        self.random = random.Random(seed)
        self.cursors = {
            (r, t): _Cursor(r, t, plan) for r, plan in enumerate(packed) for t in range(segments)
        }
        # What is posted and has not moved yet, for each source, target and segment.
        self.sends: dict[tuple[int, int, int], deque[int]] = {}
        self.recvs: dict[tuple[int, int, int], deque[int]] = {}
        # What may be able to go on: cursors (two numbers) and pairs (three numbers).
        self.pool: list[tuple[int, ...]] = list(self.cursors)

    def run(self) -> None:
        while self.pool:
            pick = self.random.randrange(len(self.pool))
            self.pool[pick], self.pool[-1] = self.pool[-1], self.pool[pick]
            key = self.pool.pop()
            if len(key) == 2:
                self.advance(*key)
            else:
                self.move(*key)
        stuck = [cursor for cursor in self.cursors.values() if not cursor.done]
        if stuck:
            where = "; ".join(f"rank {c.rank} in round {c.round + 1}" for c in stuck)
            raise Deadlock(f"nothing moves: {where}")

    def span(self, segment: int, block: int, count: int) -> slice:
        """Return where a run of blocks, or one segment of one block, lies in the array."""
        start, stop = (self.n * b // self.nblocks for b in (block, block + count))
        if self.segments > 1:
            assert count == 1, "segments of different blocks are not adjacent"
            size = stop - start
            edges = [start + size * t // self.segments for t in (segment, segment + 1)]
            return slice(*edges)
        return slice(start, stop)

    def load(self, cursor: _Cursor, space: int, first: int, count: int) -> np.ndarray:
        if space == TMP:
            return cursor.tmp[first]
        return self.memory[cursor.rank][space][self.span(cursor.segment, first, count)]

    def store(
        self, cursor: _Cursor, run: tuple[int, int, int], block: int, values: np.ndarray
    ) -> None:
        """Write values that belong to the run of blocks from `block` on."""
        space, first, count = run
        span = self.span(cursor.segment, block, count)
        if len(values) != span.stop - span.start:
            wanted = span.stop - span.start
            raise Broken(f"rank {cursor.rank}: {len(values)} elements where {wanted} belong")
        if space == TMP:
            cursor.tmp[first] = values.copy()
        elif first == block:
            self.memory[cursor.rank][space][span] = values
        else:
            raise Broken(f"rank {cursor.rank} stores block {block} as block {first}")

    def advance(self, rank: int, segment: int) -> None:
        """Run one local step, or post the next round."""
        cursor = self.cursors[rank, segment]
        if cursor.done:
            return
        if cursor.step < cursor.end:
            if not self.local(cursor):
                return
        elif cursor.flying:
            return
        else:
            cursor.round += 1
            if cursor.done:
                return
            self.post(cursor)
        self.pool.append((rank, segment))

    def post(self, cursor: _Cursor) -> None:
        first, end, cursor.step, cursor.end = cursor.rounds[cursor.round]
        cursor.flying = set(range(end - first))
        for number in cursor.flying:
            send, peer = cursor.messages[first + number][:2]
            me, t = cursor.rank, cursor.segment
            queues, key = (self.sends, (me, peer, t)) if send else (self.recvs, (peer, me, t))
            queues.setdefault(key, deque()).append(number)
            self.pool.append(key)

    def move(self, source: int, target: int, segment: int) -> None:
        """Carry the oldest message between two ranks, if both sides have posted it."""
        key = source, target, segment
        sends, recvs = self.sends.get(key), self.recvs.get(key)
        if not sends or not recvs:
            return
        giver, taker = self.cursors[source, segment], self.cursors[target, segment]
        given, taken = sends.popleft(), recvs.popleft()
        _, _, *source_run, _ = giver.messages[giver.rounds[giver.round][0] + given]
        _, _, *target_run, block = taker.messages[taker.rounds[taker.round][0] + taken]
        self.store(taker, tuple(target_run), block, self.load(giver, *source_run).copy())
        giver.flying.discard(given)
        taker.flying.discard(taken)
        self.pool += [key, (source, segment), (target, segment)]

    def local(self, cursor: _Cursor) -> bool:
        """Run the next local step if what it needs has come; say whether it did."""
        step = cursor.steps[cursor.step]
        dst, left, right = step[0:2], step[2:4], step[4:6]
        count, block, *needs, after_sends, is_copy = step[6:]
        if any(need in cursor.flying for need in needs):
            return False
        first = cursor.rounds[cursor.round][0]
        if after_sends and any(cursor.messages[first + k][0] for k in cursor.flying):
            return False
        value = self.load(cursor, *left, count)
        if not is_copy:
            other = self.load(cursor, *right, count)
            if len(value) != len(other):
                raise Broken(f"rank {cursor.rank} folds {len(other)} elements into {len(value)}")
            value = self.op(value, other)
        self.store(cursor, (*dst, count), block, value)
        cursor.step += 1
        return True


def poison(n: int, dtype: np.dtype) -> np.ndarray:
    """Return what an uninitialised array may hold at worst."""
    if dtype.kind == "O":
        return np.full(n, None, dtype)
    if dtype.kind in "fc":
        return np.full(n, np.nan, dtype)
    return np.full(n, -77777, dtype)


def run(
    algorithm: Algorithm,
    inputs: Sequence[np.ndarray],
    root: int = 0,
    op: Op = np.add,
    merged: bool = True,
    in_place: bool = False,
    segments: int = 1,
    seed: int = 0,
) -> list[np.ndarray | None]:
    """Run an algorithm on all ranks; return what each ends with, None where it gets no result.

    Parameters
    ----------
    algorithm : Algorithm
    inputs : list of arrays
        One for each rank, equal in length and dtype. They are not changed; those that
        contribute nothing are not read.
    root : int
    op : callable
        ``op(left, right)``, where left comes before right.
    merged : bool
        Whether plans are merged.
    in_place : bool
        Whether input and output are the same memory.
    segments : int
        In how many segments each block travels; with one, runs of blocks are one message.
    seed : int
        Of the order in which things happen.
    """
    contract, p = algorithm.collective, len(inputs)
    n, dtype = len(inputs[0]), inputs[0].dtype
    plans = [compile(algorithm, p, r, root, merged=merged) for r in range(p)]
    packed = [pack(plan, whole=segments == 1) for plan in plans]
    memory: list[dict[int, np.ndarray]] = []
    for r, values in enumerate(inputs):
        source = values.copy() if contract.contributes(r, root) else poison(n, dtype)
        spaces = {IN: source, WORK: poison(n, dtype)}
        if contract.receives(r, root):
            spaces[OUT] = source if in_place else poison(n, dtype)
        memory.append(spaces)
    _Machine(packed, memory, plans[0].nblocks, segments, op, seed).run()
    for r, spaces in enumerate(memory):
        mine = contract.contributes(r, root) and spaces.get(OUT) is not spaces[IN]
        if mine and spaces[IN].tobytes() != inputs[r].tobytes():
            raise Broken(f"rank {r} changed its input")
    return [spaces.get(OUT) for spaces in memory]
