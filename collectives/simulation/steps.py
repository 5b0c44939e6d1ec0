"""The steps of a rank's program with their times; `shared` has the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from collectives.plans.lending import SLOT
from collectives.plans.program import (
    MESSAGE_FIELDS,
    NOWHERE,
    OPERAND_FIELDS,
    ROUND_FIELDS,
    STEP_FIELDS,
    WINDOW,
    Program,
)
from collectives.plans.rounds import IN, OUT, TMP
from collectives.plans.schedule import Plan
from collectives.simulation.host import MessageHost, SharedMemory

INLINE = 80  # bytes of a publication that lie beside its flag: CC_INLINE in _core/shared/segment.h


class TimedStep(NamedTuple):
    """A step of a program: its time, the blocks that it waits for, and those that it publishes."""

    alone: float
    at_once: float
    needs: tuple[tuple[int, int], ...]  # (rank, publication)
    publication: int
    round: int
    fetched: tuple[tuple[int, float], ...]  # (rank, bytes)


def segments_of(plan: Plan, nbytes: int, segment: int, room: int) -> tuple[int, bool]:
    """Return the number of segments of a call, and whether runs of blocks stay whole. Local."""
    contract = plan.algorithm.collective
    block = -(-(nbytes // contract.per_array(plan.p)) // plan.cut)
    largest = min(segment or room, room)
    if block > largest:
        return -(-block // largest), False
    return 1, -(-block // 64) * 64 <= room


class Translation:
    """The conversion of a rank's program to steps with their times, for one segment."""

    plan: Plan
    segments: int
    host: SharedMemory

    def __init__(self, plan: Plan, nbytes: int, segments: int, host: SharedMemory) -> None:
        self.plan, self.segments, self.host = plan, segments, host
        part = nbytes // plan.algorithm.collective.per_array(plan.p)
        self.starts: list[list[float]] = []  # the start of each place in IN, OUT and WORK
        for blocks in (plan.held(), plan.wanted(), plan.workspace()):
            starts = [0.0]
            for b in blocks:
                k = b % plan.cut
                starts.append(starts[-1] + part * (k + 1) // plan.cut - part * k // plan.cut)
            self.starts.append(starts)
        # A broadcast has one array, which is input on the root and output on the others.
        is_one = self.starts[IN][-1] > 0 and plan.algorithm.collective.name == "broadcast"
        self.output: int = IN if is_one else OUT
        arrays = self.starts[IN][-1] + (0.0 if is_one else self.starts[OUT][-1])
        # Ranks that share a core use their arrays in turns, and share its caches.
        self.arrays: float = max(1.0, arrays * plan.p / min(plan.p, host.cores))
        self.touched: set[tuple[int, int]] = set()
        self.numbers: Counter[int] = Counter()  # messages to each rank, and (as ~rank) from it

    def steps(self, packed: Program) -> list[TimedStep]:
        """Return the steps; the messages of a round come before its own steps. Local."""
        made: list[TimedStep] = []
        for at in range(0, len(packed.rounds), ROUND_FIELDS):
            first, end, step, steps_end = packed.rounds[at : at + ROUND_FIELDS]
            rows = [
                packed.messages[k * MESSAGE_FIELDS : (k + 1) * MESSAGE_FIELDS]
                for k in range(first, end)
            ]
            for row in sorted(rows, key=lambda row: -row[0]):  # sends first
                made.append(self.message(at // ROUND_FIELDS, row))
            for k in range(step, steps_end):
                row = packed.steps[k * STEP_FIELDS : (k + 1) * STEP_FIELDS]
                made.append(self.step(at // ROUND_FIELDS, row, packed.operands))
        return made

    def length(self, space: int, first: int, count: int) -> float:
        """Return the bytes of a run in one segment, from its home."""
        return (self.starts[space][first + count] - self.starts[space][first]) / self.segments

    def passed(self, of: Any, n: float, space: int, first: int, count: int) -> tuple[float, float]:
        """Return the seconds in which a run is read or written, and record that it was used."""
        cells = {(space, b) for b in range(first, first + count)}
        known = space == TMP or cells <= self.touched
        self.touched.update(cells)
        # Memory that was used before in this segment is still in the cache.
        alone, at_once = of(min(self.arrays, WINDOW * n) if known else self.arrays)
        return n * alone, n * at_once

    def message(self, number: int, row: Sequence[int]) -> TimedStep:
        """Return the step that a message takes on its sender, or on its receiver."""
        host, plan = self.host, self.plan
        assert isinstance(host, MessageHost)
        send, peer, space, first, count, home_space, home = row
        way = peer if send else ~peer
        name = self.numbers[way] * plan.p  # plus the receiver, this is like a publication's number
        self.numbers[way] += 1
        if send:
            return TimedStep(host.send, host.send, (), name + peer, number, ())
        n = self.length(home_space, home, count)
        space = self.output if space == OUT else space
        self.touched.update((space, b) for b in range(first, first + count))
        alone, at_once = (host.receive + n * each for each in host.bytes(n))
        return TimedStep(alone, at_once, ((peer, name + plan.rank),), -1, number, ((peer, n),))

    def step(self, number: int, row: Sequence[int], operands: Sequence[int]) -> TimedStep:
        """Return a step with its times."""
        host = self.host
        dst_space, dst, publication, count, home_space, home, *_, begin, end = row
        dst_space = self.output if dst_space == OUT else dst_space
        n = self.length(home_space, home, count)
        times = [(host.step, host.step)]
        stays = False  # whether source and target are the same
        needs: list[tuple[int, int]] = []
        fetched: list[tuple[int, float]] = []
        for each in range(begin * OPERAND_FIELDS, end * OPERAND_FIELDS, OPERAND_FIELDS):
            space, first, peer, _, _ = operands[each : each + OPERAND_FIELDS]
            space = self.output if space == OUT else space
            stays = (dst_space, dst) == (space, first) and end - begin == 1
            if stays and publication < 0:
                continue
            if space != SLOT:
                times.append(self.passed(host.read, n, space, first, count))
                continue
            needs.append((peer, first))
            fetched.append((peer, n))
            if n > INLINE:
                alone, at_once = host.fetch(n)
                times.append((n * alone, n * at_once))
        if dst_space != NOWHERE and not stays:
            times.append(self.passed(host.write, n, dst_space, dst, count))
        if publication >= 0 and n > INLINE:
            alone, at_once = host.publish(n)
            times.append((n * alone, n * at_once))
        alone, at_once = (sum(each) for each in zip(*times, strict=True))
        return TimedStep(alone, at_once, tuple(needs), publication, number, tuple(fetched))
