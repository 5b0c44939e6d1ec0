"""A plain interpreter of programs, for all ranks at once: the reference for the executor.

It knows the format of `program.pack` and nothing of how programs are made or proven. Whatever may
happen next is drawn at random from a seeded generator: a message moves, a step runs, a rank posts
its next round. A message moves only when both sides have posted it (a rendezvous), and reads its
source at that moment, so that a program which overwrites a block that it still sends, or reads
one that has not arrived, gives a wrong result under some seed. A publication on a host is a copy,
or where the program lends it, the memory itself. Where the program says that a result may be
pushed into the outputs of others, some ranks get it so.

A part of m elements is cut into blocks at ``m * k // cut``, a block of c elements into T segments
at ``c * t // T``. Each segment runs the whole plan for itself. The blocks of a rank's input, output
and workspace lie one after the other, in the order in which its plan lists them; a message or step
names the place where its blocks begin, and how many they are.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, reduce
from itertools import accumulate

import numpy as np

from collectives.algorithms.registry import Algorithm
from collectives.plans.lending import APART, IN_PLACE
from collectives.plans.program import Program, StepRow, pack
from collectives.plans.schedule import Plan, compile

IN, OUT, WORK, TMP, SLOT = range(5)
NOWHERE = -1
Hosts = Sequence[Sequence[int]]
Op = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Deadlock(Exception):
    """Nothing can happen any more, and some rank is not done."""


class Broken(Exception):
    """A plan did what no plan may do: it changed its input, or lengths did not fit."""


class _Cursor:
    """One segment of one rank: its program, its temporary blocks, and where it stands."""

    def __init__(self, rank: int, segment: int, packed: Program) -> None:
        self.rank, self.segment = rank, segment
        self.rounds, self.messages, self.steps = packed.rounds, packed.messages, packed.steps
        self.operands, self.pushes = packed.operands, packed.pushes
        self.tmp: dict[int, np.ndarray] = {}
        self.round = -1
        self.step = self.end = 0
        self.flying: set[int] = set()

    @property
    def done(self) -> bool:
        return self.round == len(self.rounds)


class _Memory:
    """The input, the output and the workspace of one rank, and the places of blocks in them."""

    def __init__(
        self, plan: Plan, values: np.ndarray, sizes: Sequence[int], in_place: bool
    ) -> None:
        self.plan, self.sizes, self.given = plan, sizes, values
        lists = plan.held(), plan.wanted(), plan.workspace()
        self.starts = [
            [0, *accumulate(length(b, plan.cut, sizes) for b in blocks)] for blocks in lists
        ]
        totals = [starts[-1] for starts in self.starts]
        if len(values) != totals[IN]:
            raise ValueError(f"rank {plan.rank} has {len(values)} elements, not {totals[IN]}")
        held, wanted = plan.inputs(), plan.outputs()
        self.arrays = [values.copy(), *(poison(n, values.dtype) for n in totals[OUT:])]
        if in_place and set(held) <= set(wanted):
            self.arrays[OUT][self.where(OUT, held)] = values
            self.arrays[IN] = self.arrays[OUT][self.where(OUT, held)]
        elif in_place and set(wanted) <= set(held):
            self.arrays[OUT] = self.arrays[IN][self.where(IN, wanted)]
        elif in_place:
            raise ValueError("an alltoall has no place where both its input and its output fit")
        self.kept = [part for part in held if not in_place or part not in wanted]

    def where(self, space: int, parts: Iterable[int]) -> slice:
        """Return where parts lie that follow each other in the input or the output."""
        places = [(self.plan.inputs(), self.plan.outputs())[space].index(part) for part in parts]
        if not places:
            return slice(0, 0)
        first, last = places[0] * self.plan.cut, (places[-1] + 1) * self.plan.cut
        return slice(self.starts[space][first], self.starts[space][last])

    def intact(self) -> bool:
        """Say whether the parts of the input that no result replaces are what they were."""
        before = split(self.given, self.plan.inputs(), self.sizes)
        after = split(self.arrays[IN], self.plan.inputs(), self.sizes)
        return all(before[part].tobytes() == after[part].tobytes() for part in self.kept)


def length(block: int, cut: int, sizes: Sequence[int]) -> int:
    """Return the elements of a block."""
    size, k = sizes[block // cut], block % cut
    return size * (k + 1) // cut - size * k // cut


def split(values: np.ndarray, parts: Sequence[int], sizes: Sequence[int]) -> dict[int, np.ndarray]:
    """Take an array apart into its parts."""
    starts = accumulate((sizes[part] for part in parts), initial=0)
    return {part: values[start:][: sizes[part]] for part, start in zip(parts, starts, strict=False)}


class _Machine:
    """All cursors, the queues between ranks, and the memory of each rank."""

    def __init__(
        self,
        packed: Sequence[Program],
        memory: Sequence[_Memory],
        segments: int,
        op: Op,
        seed: int,
        hosts: Hosts,
        in_place: bool,
    ) -> None:
        self.lends = IN_PLACE if in_place else APART
        self.host_of = {rank: host for host in hosts for rank in host}
        # By rank, segment and number; and the cursors that wait for it.
        self.published: dict[tuple[int, int, int], np.ndarray] = {}
        self.waiting: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        self.memory, self.segments, self.op = memory, segments, op
        self.random = random.Random(seed)
        # The ranks into whose output others write, and the blocks that were written for each.
        self.accepts = {rank for rank in self.host_of if self.random.random() < 0.5}
        self.pushed: set[tuple[tuple[int, int, int], int]] = set()
        self.cursors = {
            (r, t): _Cursor(r, t, plan) for r, plan in enumerate(packed) for t in range(segments)
        }
        # Messages that are posted and have not moved yet, for each source, target and segment.
        self.sends: dict[tuple[int, int, int], deque[int]] = {}
        self.recvs: dict[tuple[int, int, int], deque[int]] = {}
        # Candidates to go on: cursors (two numbers) and pairs (three numbers).
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

    def span(self, cursor: _Cursor, space: int, first: int, count: int) -> slice:
        """Return where a run of blocks, or one segment of one block, lies in its space."""
        starts = self.memory[cursor.rank].starts[space]
        start, stop = starts[first], starts[first + count]
        if self.segments > 1:
            assert count == 1, "segments of different blocks are not adjacent"
            size, t = stop - start, cursor.segment
            return slice(start + size * t // self.segments, start + size * (t + 1) // self.segments)
        return slice(start, stop)

    def load(self, cursor: _Cursor, space: int, first: int, count: int) -> np.ndarray:
        if space == TMP:
            return cursor.tmp[first]
        return self.memory[cursor.rank].arrays[space][self.span(cursor, space, first, count)]

    def store(
        self, cursor: _Cursor, run: tuple[int, int, int], home: tuple[int, int], values: np.ndarray
    ) -> None:
        """Write values into a run of blocks; that at their home has as many elements."""
        space, first, count = run
        span = self.span(cursor, *home, count)
        if len(values) != span.stop - span.start:
            wanted = span.stop - span.start
            raise Broken(f"rank {cursor.rank}: {len(values)} elements where {wanted} belong")
        if space == TMP:
            cursor.tmp[first] = values.copy()
            return
        target = self.memory[cursor.rank].arrays[space][self.span(cursor, *run)]
        if len(target) != len(values):
            raise Broken(f"rank {cursor.rank}: {len(values)} elements in place of {len(target)}")
        target[:] = values

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
        posted = enumerate(cursor.messages[first:end])
        cursor.flying = {number for number, message in posted if not message.is_late}
        for number in cursor.flying:
            message, me, t = cursor.messages[first + number], cursor.rank, cursor.segment
            queues, key = self.recvs, (message.peer, me, t)
            if message.send:
                queues, key = self.sends, (me, message.peer, t)
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
        sent = giver.messages[giver.rounds[giver.round].message + given]
        got = taker.messages[taker.rounds[taker.round].message + taken]
        values = self.load(giver, sent.space, sent.first, sent.blocks).copy()
        self.store(taker, (got.space, got.first, got.blocks), (got.home_space, got.home), values)
        giver.flying.discard(given)
        taker.flying.discard(taken)
        self.pool += [key, (source, segment), (target, segment)]

    def local(self, cursor: _Cursor) -> bool:
        """Run the next step if its operands are there; return whether it did."""
        step = cursor.steps[cursor.step]
        operands = cursor.operands[step.operand : step.operands_end]
        if any(operand.need in cursor.flying for operand in operands):
            return False
        base = cursor.rounds[cursor.round].message
        if step.after_sends and any(cursor.messages[base + k].send for k in cursor.flying):
            return False
        me, t = cursor.rank, cursor.segment
        terms = []
        for space, place, peer, _, folds in operands:
            if space == SLOT:
                key = self.host_of[me][peer], t, place
                if key not in self.published:
                    self.waiting.setdefault(key, []).append((me, t))
                    return False
                terms.append((self.published[key], folds))
            else:
                terms.append((self.load(cursor, space, place, step.blocks), folds))
        values = []
        for term, folds in terms:
            values.append(term)
            for _ in range(abs(folds)):
                right, left = values.pop(), values.pop()
                if len(left) != len(right):
                    raise Broken(f"rank {me} folds {len(right)} elements into {len(left)}")
                values.append(self.op(right, left) if folds < 0 else self.op(left, right))
        (value,) = values
        arrived = space == SLOT and len(terms) == 1 and (key, me) in self.pushed
        if step.dst_space != NOWHERE and not arrived:
            run = step.dst_space, step.dst, step.blocks
            self.store(cursor, run, (step.home_space, step.home), value)
        self.push(cursor, step, value)
        if step.publication >= 0:
            key = me, t, step.publication
            if key in self.published:
                raise Broken(f"rank {me} publishes {step.publication} twice")
            self.published[key] = value.copy()
            if step.lends & self.lends:  # it stays where it is, whatever becomes of it
                space, place = step.dst_space, step.dst
                if space == NOWHERE:
                    space, place = operands[0].space, operands[0].first
                self.published[key] = self.load(cursor, space, place, step.blocks)
            self.pool += self.waiting.pop(key, [])
        cursor.step += 1
        return True

    def push(self, cursor: _Cursor, step: StepRow, value: np.ndarray) -> None:
        """Write a result into the outputs of those that accept it."""
        run, home = (step.dst_space, step.dst, step.blocks), (step.home_space, step.home)
        me, t = cursor.rank, cursor.segment
        for number, after, when in cursor.pushes[step.push : step.pushes_end]:
            peer = self.host_of[me][number]
            if (peer, t, after) not in self.published:
                raise Broken(f"rank {me} writes into rank {peer} without a sign")
            if when & self.lends and peer in self.accepts:
                self.store(self.cursors[peer, t], run, home, value)
                self.pushed.add(((me, t, step.publication), peer))


def poison(n: int, dtype: np.dtype) -> np.ndarray:
    """Return what an uninitialised array may hold at worst."""
    if dtype.kind == "O":
        return np.full(n, None, dtype)
    if dtype.kind in "fc":
        return np.full(n, np.nan, dtype)
    return np.full(n, -77777, dtype)


@lru_cache(maxsize=512)
def packed_plans(
    algorithm: Algorithm, p: int, root: int, merged: bool, whole: bool, hosts: Hosts
) -> list[tuple[Plan, Program]]:
    """Return the plan of each rank, and its program."""
    plans = [compile(algorithm, p, r, root, merged=merged) for r in range(p)]
    local = {rank: host for host in hosts for rank in host}
    return [
        (plan, pack(plan, whole=whole, local=local.get(plan.rank, ()), lend=True)) for plan in plans
    ]


def equal(algorithm: Algorithm, p: int, size: int) -> list[int]:
    """Return the sizes of all parts where they are equal."""
    return [size] * algorithm.collective.parts(p)


def make_inputs(
    algorithm: Algorithm,
    p: int,
    root: int,
    sizes: Sequence[int],
    make: Callable[[int, int], np.ndarray],
) -> list[np.ndarray]:
    """Return ``make(rank, elements)`` for each rank, as long as the parts of its input."""
    contract = algorithm.collective
    return [make(r, sum(sizes[part] for part in contract.inputs(r, p, root))) for r in range(p)]


def expected(
    algorithm: Algorithm, inputs: Sequence[np.ndarray], root: int, op: Op, sizes: Sequence[int]
) -> list[dict[int, np.ndarray]]:
    """Return the parts that each rank must end with, folded from the lowest rank to the highest."""
    contract, p = algorithm.collective, len(inputs)
    given = [split(values, contract.inputs(r, p, root), sizes) for r, values in enumerate(inputs)]
    results: list[dict[int, np.ndarray]] = []
    for r in range(p):
        parts = {}
        for part in contract.outputs(r, p, root):
            due = contract.sources(part, r, p, root)
            parts[part] = reduce(op, [given[q][part] for q in range(p) if due >> q & 1])
        results.append(parts)
    return results


def run(
    algorithm: Algorithm,
    inputs: Sequence[np.ndarray],
    root: int,
    op: Op,
    sizes: Sequence[int],
    *,
    merged: bool = True,
    in_place: bool = False,
    segments: int = 1,
    seed: int = 0,
    hosts: Hosts = (),
) -> list[dict[int, np.ndarray]]:
    """Run an algorithm on all ranks; return the parts that each ends with.

    Parameters
    ----------
    algorithm : Algorithm
    inputs : list of arrays
        One for each rank, of equal dtype, with the parts of its input one after the other. They
        are not changed.
    root : int
    op : callable
        ``op(left, right)``, where left comes before right.
    sizes : list of int
        The elements of each part.
    merged : bool
        Whether plans are merged.
    in_place : bool
        Whether the parts that are in the input and in the output of a rank lie in one place.
    segments : int
        In how many segments each block travels; with one, runs of blocks are one message.
    seed : int
        Of the order in which things happen.
    hosts : tuple of tuples of int
        The ranks that share memory; those that are in none send messages.
    """
    plans = packed_plans(algorithm, len(inputs), root, merged, segments == 1, hosts)
    memory = [
        _Memory(plan, values, sizes, in_place)
        for (plan, _), values in zip(plans, inputs, strict=True)
    ]
    _Machine([packed for _, packed in plans], memory, segments, op, seed, hosts, in_place).run()
    for r, each in enumerate(memory):
        if not each.intact():
            raise Broken(f"rank {r} changed its input")
    return [split(each.arrays[OUT], each.plan.outputs(), sizes) for each in memory]
