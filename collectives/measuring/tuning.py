"""The measurement of ``collectives tune``: the fastest algorithm for each collective and size.

At each size, every algorithm runs a first lap of a few calls, and a second one if the first was
slow. The algorithms that are near to the fastest also run with different segments. Then each lap
has twice as many calls as the one before, and the slower half of the entries is dropped until three
are left. This ends when all laps are run, or the time for this size is up.

The time of an entry is the smallest time over its long laps, on the slowest rank. (In a short lap,
ranks that share a core may happen to run in a favourable order.) The difference to the next
smallest time is its noise. An entry counts as equally good if it is slower than the fastest by at
most 3 % plus the noise of both, where noise is limited to 3 % of each time. If the choice without a
profile is equally good, it is kept. Otherwise the simplest of the equally good entries is taken:
the choice at the size before, or the entry with the fewest rounds; for long arrays, the entry whose
busiest rank has the least work. If two consecutive sizes have different choices, these two are
compared at a size between them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import groupby, pairwise
from math import isqrt
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from collectives import algorithms
from collectives.algorithms import Algorithm
from collectives.algorithms.bits import ANY
from collectives.algorithms.groups import Groups
from collectives.choice import model, select
from collectives.choice.sections import Row
from collectives.measuring.bench import Bench
from collectives.measuring.candidates import candidates, place, plain
from collectives.measuring.contest import BARRIER, Contest, Entry, Settings, segmented
from collectives.measuring.operations import OPERATIONS
from collectives.plans import program, schedule

SEGMENTS = (32 << 10, 128 << 10, 512 << 10, 2 << 20)  # shortened to a lane in shared memory
SIMPLER = 0.03  # the simpler choice is kept unless it is slower by this fraction, plus the noise
NOISIEST = 0.03  # noise is limited to this fraction of the time
LEAST = 0.05  # a call without its barrier takes at least this fraction of the barrier's time
LONG = 128 << 10  # bytes from which moving data takes longer than waiting for other ranks
NEAR = 1.5  # entries that take longer than this times the fastest are dropped after the first lap
LAP = 4e-4  # seconds of the first lap; each lap has twice the time of the one before
CROWDED = 4e-3  # the same if ranks share cores, with time slices of about this length
LONGEST = 0.1  # seconds of the longest lap
COUNTED = 4  # a lap counts unless another one lasted more than so many times as long
FINALISTS = 3
MOST = 20_000  # maximum calls in a lap
FEWEST = 5  # minimum if a call is brief, because a single call would measure the ranks' skew
BRIEF = 2e-3  # seconds
BETWEEN = 0.3  # fraction of a point's time for a point between it and the one before
UNMEASURED = 8 << 20  # bytes; if so many were measured, the last row has no upper limit


class Point(NamedTuple):
    """One size of one collective.

    Attributes
    ----------
    collective : str
    nbytes : int
        Bytes of the whole array; 0 if nothing is moved.
    weight : float
        Its share of the available time; 0 for a point that is inserted between two others.
    """

    collective: str
    nbytes: int
    weight: float


class Result(NamedTuple):
    """The result of the race at a point, the same on all ranks.

    Attributes
    ----------
    nbytes : int
    seconds : dict of Entry to float
        The seconds of one call, for the entries in the last lap.
    noise : dict of Entry to float
        Seconds between the fastest lap and the next fastest.
    """

    nbytes: int
    seconds: dict[Entry, float]
    noise: dict[Entry, float]


def points(names: list[str], begin: int, end: int, factor: int) -> list[Point]:
    """Return the points of the collectives `names`: `begin` to `end` bytes by `factor`. Local."""
    found = []
    for name in names:
        if not OPERATIONS[name].moves:
            found.append(Point(name, 0, 1.0))
            continue
        nbytes = begin
        while nbytes <= end:
            found.append(Point(name, nbytes, 1.0 + nbytes / (1 << 20)))
            nbytes *= factor
    return found


class TunedPoint(NamedTuple):
    """A point with its result.

    Attributes
    ----------
    point : Point
    chosen, default : Entry
        The choice for the profile, and the choice without a profile.
    result : Result
    """

    point: Point
    chosen: Entry
    default: Entry
    result: Result


def course(bench: Bench, todo: Sequence[Point], limit: float) -> Iterator[TunedPoint]:
    """Yield the result of one point after the other, until the time is up. Collective.

    If two consecutive sizes have different choices, these two are compared at a size between them.
    """
    end = time.monotonic() + limit
    ahead = (1 + BETWEEN) * sum(point.weight for point in todo)

    def share(weight: float) -> float:
        left: float = bench.mpi.bcast(end - time.monotonic())
        return left * weight / ahead

    for _, points in groupby(todo, key=attrgetter("collective")):
        steps: list[TunedPoint] = []
        for point in points:
            part = share(point.weight)
            if part <= 0:
                return
            before = steps[-1].chosen if steps else None
            steps.append(_step(bench, point, part, before))
            ahead -= point.weight
            yield steps[-1]
        for low, high in pairwise(steps):
            if low.chosen != high.chosen:
                part = share(BETWEEN * high.point.weight)
                if part <= 0:
                    return
                nbytes = 4 * isqrt(low.point.nbytes // 4 * high.point.nbytes // 4)
                middle = high.point._replace(nbytes=nbytes, weight=0.0)
                if low.point.nbytes < nbytes < high.point.nbytes:
                    yield _step(bench, middle, part, low.chosen, high.chosen)
        ahead -= BETWEEN * sum(step.point.weight for step in steps)


def _step(
    bench: Bench, point: Point, limit: float, before: Entry | None, rival: Entry | None = None
) -> TunedPoint:
    """Race at a point. Without a `rival`, all entries take part; with one, only the rival, the
    choice before, and the choice without a profile.
    """
    p, groups = bench.comm.size, bench.comm._chooser.groups
    default = default_entry(bench.comm.transport, p, point, groups, bench.comm.bits)
    keep = [default] if rival is None else [each for each in (default, before, rival) if each]
    result = race(bench, point, limit, keep, others=rival is None)
    chosen = simplest(point.collective, p, result, before, default, groups)
    return TunedPoint(point, chosen, default, result)


def default_entry(
    family: str, p: int, point: Point, groups: Groups | None = None, bits: str = ANY
) -> Entry:
    """Return the choice without a profile. Local."""
    decision = select.decide(
        point.collective, None, p=p, nbytes=point.nbytes, family=family, groups=groups, bits=bits
    )
    # A segment that is as long as the array has no effect.
    segment = decision.segment if decision.segment < point.nbytes else 0
    entry = Entry(decision.algorithm.key, segment)
    return plain(point.collective, entry, p, groups)


def rows(steps: Sequence[TunedPoint], factor: int) -> dict[str, tuple[Row, ...]]:
    """Return the rows of a profile, by collective. Local."""
    found: dict[str, list[Row]] = {}
    for name in dict.fromkeys(step.point.collective for step in steps):
        own = [step for step in steps if step.point.collective == name]
        own.sort(key=lambda step: step.point.nbytes)
        sizes = [step.point.nbytes for step in own]
        limits: list[int | None] = [isqrt(low * high) - 1 for low, high in pairwise(sizes)]
        known = 0 < sizes[-1] < UNMEASURED
        limits.append(int(sizes[-1] * factor**0.5) - 1 if known else None)
        listed = found.setdefault(name, [])
        for step, nbytes, limit in zip(own, sizes, limits, strict=True):
            times: tuple[tuple[int, float], ...] = ((nbytes, step.result.seconds[step.chosen]),)
            name_of, segment = step.chosen.algorithm or "", step.chosen.segment or 0
            if listed and (listed[-1].algorithm, listed[-1].segment) == (name_of, segment):
                times = (*listed.pop().times, *times)
            listed.append(Row(limit, name_of, segment, times))
    return {name: tuple(listed) for name, listed in found.items()}


def contest_at(bench: Bench, point: Point) -> Contest:
    """Return a contest at one point, without entries. Collective."""
    settings = Settings(point.collective, (), np.dtype(np.float32), peer=False, verify=False)
    count = OPERATIONS[point.collective].elements(point.nbytes // 4, bench.comm.size)
    return Contest(bench, settings, count)


def started(contest: Contest, entry: Entry) -> None:
    """Add an entry to a contest, and make its first calls. Collective."""
    contest.enter(entry)
    with segmented(entry.segment):  # the communicator chooses in its first call
        contest.block(str(entry), len(contest.contestants[str(entry)].calls))


def without(barrier: float, seconds: float, noise: float = 0.0) -> float:
    """Return the time of a call from its `seconds` with a `barrier`, without the barrier. Local.

    A time below the `noise` of the barrier is as long as this: such calls are equally good.
    """
    return max(seconds - barrier, LEAST * barrier, noise, 1e-9)


def race(
    bench: Bench,
    point: Point,
    limit: float,
    keep: Sequence[Entry] = (),
    others: bool = True,
) -> Result:
    """Measure a point within about `limit` seconds. Collective."""
    p, groups = bench.comm.size, bench.comm._chooser.groups
    operation = OPERATIONS[point.collective]
    known = bench.comm._chooser.parameters or model.DEFAULT
    names = sorted(
        candidates(point.collective, p, groups, bench.comm.bits),
        key=lambda each: model.seconds(
            algorithms.get(point.collective, each, groups),
            p,
            point.nbytes,
            known,
            groups=groups,
        ),
    )
    whole = [Entry(each, 0) for each in names]
    clock = _Clock(contest_at(bench, point), limit)
    if operation.runs_ahead:
        clock.lap(BARRIER)
    for entry in dict.fromkeys([*keep, *(whole if others else ())]):
        if clock.is_up() and entry not in keep:
            break
        clock.enter(entry)
    for entry in list(clock.near(NEAR)):
        for segment in SEGMENTS if operation.moves and others else ():
            if 2 * segment <= point.nbytes and not clock.is_up():
                clock.enter(Entry(entry.algorithm, segment))
    last = live = list(clock.near(NEAR))
    while 2 * clock.length <= LONGEST and not clock.is_up():
        clock.length *= 2
        if operation.runs_ahead:
            clock.lap(BARRIER)
        for entry in dict.fromkeys([*live, *keep]):
            clock.lap(str(entry))
        last = live
        live = sorted(live, key=clock.time)[: max(FINALISTS, (len(live) + 1) // 2)]
    return clock.result(point.nbytes, dict.fromkeys([*last, *keep]))


class _Lap(NamedTuple):
    seconds: float  # of one call
    lasted: float


class _Clock:
    """The laps of one point."""

    def __init__(self, contest: Contest, limit: float) -> None:
        comm = contest.comm
        self.contest, self.limit = contest, limit
        self.length = CROWDED if comm._hosts.is_crowded else LAP
        self.start = time.monotonic()
        self.elapsed = 0.0  # seconds on rank 0, at the last check
        self.laps: dict[str, list[_Lap]] = {}

    def is_up(self) -> bool:
        """Return whether the time is up, the same on all ranks."""
        return self.elapsed > self.limit

    def enter(self, entry: Entry) -> None:
        """Add an entry, and run its first lap. Collective."""
        if str(entry) in self.laps:
            return
        started(self.contest, entry)
        self.lap(str(entry))
        if entry not in self.near(NEAR) and not self.is_up():
            self.lap(str(entry))  # no entry should be left out because of a single disturbance

    def lap(self, label: str) -> None:
        """Time a lap of `label`, with as many calls as fit in its length. Collective."""
        known = label in self.laps
        guess = self.best(label)[0] if known else self._agreed(label, 1)
        number = min(MOST, round(self.length / max(guess, 1e-9)))
        number = max(number, FEWEST if guess < BRIEF else 1)
        took = self._agreed(label, number) if known or number > 1 else guess
        self.laps.setdefault(label, []).append(_Lap(took, number * took))

    def _agreed(self, label: str, number: int) -> float:
        """Return the seconds per call of `number` calls, on the slowest rank. Collective."""
        mine = self.contest.block(label, number), time.monotonic() - self.start
        everybody = self.contest.mpi.allgather(mine)
        self.elapsed = everybody[0][1]
        slowest: float = max(seconds for seconds, _ in everybody)
        return slowest

    def best(self, label: str) -> tuple[float, float]:
        """Return the least seconds of a call, and the distance to the next larger time."""
        laps = self.laps[label]
        longest = max(lap.lasted for lap in laps)
        counted = sorted(lap.seconds for lap in laps if COUNTED * lap.lasted >= longest)
        return counted[0], (counted[1] if len(counted) > 1 else math.inf) - counted[0]

    def time(self, entry: Entry) -> float:
        """Return the least seconds of a call."""
        return self.best(str(entry))[0]

    def near(self, factor: float) -> Iterator[Entry]:
        """Yield the entries within a factor of the fastest one's time, the fastest first."""
        seconds = self.result(0, self.contest.entries).seconds
        limit = factor * min(seconds.values())
        yield from sorted(
            (each for each in seconds if seconds[each] <= limit), key=seconds.__getitem__
        )

    def result(self, nbytes: int, entries: Iterable[Entry]) -> Result:
        """Return the times of some entries, without the time of barriers."""
        barrier, wavers = self.best(BARRIER) if BARRIER in self.laps else (0.0, 0.0)
        seconds, noise = {}, {}
        for entry in entries:
            took, own = self.best(str(entry))
            seconds[entry] = without(barrier, took, wavers if math.isfinite(wavers) else 0.0)
            noise[entry] = own + wavers
        return Result(nbytes, seconds, noise)


def simplest(
    name: str,
    p: int,
    result: Result,
    before: Entry | None,
    default: Entry | None = None,
    groups: Groups | None = None,
) -> Entry:
    """Return the fastest entry, or a simpler one that is hardly slower. Local.

    For short arrays, the simpler entry is the one with the fewest rounds. For long ones, it is the
    one whose busiest rank has the least work: if ranks share cores, it takes no longer when one
    rank does all the work, but if each rank has a core, it does.
    """
    times, noise = result.seconds, result.noise
    best = min(times, key=lambda each: times[each])

    def heard(entry: Entry) -> float:
        return min(noise[entry], NOISIEST * times[entry])

    close = [
        each
        for each in times
        if times[each] - times[best] <= SIMPLER * times[best] + heard(each) + heard(best)
    ]
    if default in close:
        return default
    long = result.nbytes >= LONG
    rows = {each: algorithms.get(name, each.algorithm or "", groups) for each in close}
    work = {each: busiest(row, p) if long else 0 for each, row in rows.items()}
    least = min(work.values())
    if before in close and work[before] == least:
        return before

    every = algorithms.names(name)

    def complexity(
        entry: Entry,
    ) -> tuple[Fraction | int, float, float, tuple[int, int, str], float]:
        rounds, _, folded = rows[entry].totals(p) or (0.0, 0.0, 0.0)
        order = place(rows[entry].name, every)
        return work[entry], rounds, folded if long else 0, order, times[entry]

    return min(close, key=complexity)


@cache
def busiest(algorithm: Algorithm, p: int) -> Fraction:
    """Return the reads and writes of the busiest rank of a host, in arrays. Local."""
    most = Fraction(0)
    for rank in range(p):
        plan = schedule.compile(algorithm, p, rank)
        blocks = 0
        for step in program.pack(plan, whole=True, local=range(p)).steps:
            written = (step.dst_space != program.NOWHERE) + (step.publication >= 0)
            blocks += step.blocks * (step.operands_end - step.operand + written)
        most = max(most, Fraction(blocks, plan.cut))
    return most
