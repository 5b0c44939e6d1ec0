"""The measurement of ``collectives tune``: for each collective and size, which is the fastest.

Of one size, all algorithms have a first lap of a few calls, and a second if that was slow; those
that are near to the fastest bring their segments; then, lap by lap with twice as many calls, the
slower half is dropped, until three are left, and all laps are run or the time of this size is up.
The smallest time of the slowest rank counts, of the long laps: in a short one ranks that share a
core may be lucky in their order. How far the next smallest is above it is its noise. What is hardly
slower than the fastest, by 3 % and the noise of the two, which counts as 3 % of each at most, is as
good. If what is chosen without a profile is as good, it stays; else the simplest of these is taken:
the one of the size before, or the one with the fewest rounds; for long arrays that whose busiest
rank has least to do. Where two sizes that follow each other have different choices, these two race
at a size between them.
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
from collectives.choice import model, select
from collectives.choice.profile import Row
from collectives.measuring.bench import Bench
from collectives.measuring.candidates import candidates, plain
from collectives.measuring.contest import BARRIER, Contest, Entry, Settings, segmented
from collectives.measuring.operations import OPERATIONS
from collectives.plans import program, schedule

__all__ = [
    "Point",
    "Result",
    "Step",
    "contest_at",
    "course",
    "points",
    "race",
    "rows",
    "simplest",
    "started",
    "without",
]

SEGMENTS = (32 << 10, 128 << 10, 512 << 10, 2 << 20)  # those over a lane are cut in shared memory
SIMPLER = 0.03  # keep the simpler choice unless it takes so much longer, beside the noise
NOISIEST = 0.03  # of the time: noise that counts
LEAST = 0.05  # of a barrier's time: what is left of a call when that of the barrier is subtracted
LONG = 128 << 10  # bytes from which on moving them takes longer than waiting for others
NEAR = 1.5  # in the first lap: what takes longer than this times the fastest is dropped
LAP = 4e-4  # seconds of the first lap; each has twice the time of the one before
CROWDED = 4e-3  # the same where ranks share cores, and take turns of about so long
LONGEST = 0.1  # seconds of a lap, at most
COUNTED = 4  # a lap counts unless another lasted more than so many times as long
FINALISTS = 3
MOST = 20_000  # calls of a lap
FEWEST = 5  # of them, where a call is brief: one alone lasts as long as ranks begin it apart
BRIEF = 2e-3  # seconds
BETWEEN = 0.3  # of a point's time, for one between it and the one before
UNMEASURED = 8 << 20  # bytes: if so many were measured, the last row is for all beyond


class Point(NamedTuple):
    """One size of one collective.

    Attributes
    ----------
    collective : str
    nbytes : int
        Of the whole array; 0 where nothing is moved.
    weight : float
        Its part of the time that there is; 0 of one that is put between two others.
    """

    collective: str
    nbytes: int
    weight: float


class Result(NamedTuple):
    """What the race of a point has shown; the same on all ranks.

    Attributes
    ----------
    nbytes : int
    seconds : dict of Entry to float
        Of one call, of those that were in the last lap.
    noise : dict of Entry to float
        Seconds between the fastest lap and the next.
    """

    nbytes: int
    seconds: dict[Entry, float]
    noise: dict[Entry, float]


def points(names: list[str], begin: int, end: int, factor: int) -> list[Point]:
    """Return the sizes from `begin` to `end` by `factor` of the collectives `names`. Local."""
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


class Step(NamedTuple):
    """What is known after a point.

    Attributes
    ----------
    point : Point
    chosen, default : Entry
        What goes into the profile, and what is chosen without one.
    result : Result
    """

    point: Point
    chosen: Entry
    default: Entry
    result: Result


def course(bench: Bench, todo: Sequence[Point], limit: float) -> Iterator[Step]:
    """Yield what is the fastest at one point after the other, until the time is up. Collective.

    Where two sizes that follow each other have different choices, these two race between them.

    Parameters
    ----------
    bench : Bench
    todo : sequence of Point
        Sizes of one collective follow each other.
    limit : float
        Seconds for all of them; they have parts by their weights.
    """
    end = time.monotonic() + limit
    ahead = (1 + BETWEEN) * sum(point.weight for point in todo)

    def share(weight: float) -> float:
        left: float = bench.mpi.bcast(end - time.monotonic())
        return left * weight / ahead

    for _, points in groupby(todo, key=attrgetter("collective")):
        steps: list[Step] = []
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
) -> Step:
    """Race at a point: all that can run; with a `rival` to what was chosen before, these two and
    what is chosen without a profile.
    """
    p = bench.comm.size
    default = default_entry(bench.comm.transport, p, point)
    keep = [default] if rival is None else [each for each in (default, before, rival) if each]
    result = race(bench, point, limit, keep, others=rival is None)
    chosen = simplest(point.collective, p, result, before, default)
    return Step(point, chosen, default, result)


def default_entry(family: str, p: int, point: Point) -> Entry:
    """Return what is chosen without a profile. Local.

    Parameters
    ----------
    family : str
        As for `select.decide`.
    p : int
    point : Point
    """
    decision = select.decide(point.collective, None, p=p, nbytes=point.nbytes, family=family)
    # A segment that is as long as the array is none.
    segment = decision.segment if decision.segment < point.nbytes else 0
    return plain(point.collective, Entry(decision.algorithm.name, segment), p)


def rows(steps: Sequence[Step], factor: int) -> dict[str, tuple[Row, ...]]:
    """Return the rows of a profile, by collective. Local.

    Parameters
    ----------
    steps : sequence of Step
        Of one number of ranks.
    factor : int
        Between sizes. The boundary of two is their geometric mean, and beyond the last it is as
        if another followed.
    """
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
    """Return a contest of one point that nobody has entered yet. Collective.

    Parameters
    ----------
    bench : Bench
    point : Point
    """
    settings = Settings(point.collective, (), np.dtype(np.float32), peer=False, verify=False)
    count = OPERATIONS[point.collective].elements(point.nbytes // 4, bench.comm.size)
    return Contest(bench, settings, count)


def started(contest: Contest, entry: Entry) -> None:
    """Let an entry take part, and make its first calls. Collective.

    Parameters
    ----------
    contest : Contest
    entry : Entry
    """
    contest.enter(entry)
    with segmented(entry.segment):  # its communicator decides now
        contest.block(str(entry), len(contest.calls[str(entry)]))


def without(barrier: float, seconds: float) -> float:
    """Return what a call takes without the `barrier` that is in its `seconds`. Local."""
    return max(seconds - barrier, LEAST * barrier, 1e-9)


def race(
    bench: Bench,
    point: Point,
    limit: float,
    keep: Sequence[Entry] = (),
    others: bool = True,
) -> Result:
    """Measure a point within about `limit` seconds. Collective.

    Parameters
    ----------
    bench : Bench
    point : Point
    limit : float
        Seconds; each candidate that can still be tried has one lap at least.
    keep : sequence of Entry, optional
        Those that are measured in every lap, whatever they take.
    others : bool
        Whether all others that can run take part.
    """
    p = bench.comm.size
    operation = OPERATIONS[point.collective]
    known = bench.comm._chooser.parameters or model.DEFAULT
    names = sorted(
        candidates(point.collective, p),
        key=lambda each: model.seconds(
            algorithms.get(point.collective, each), p, point.nbytes, known
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
        self.length = CROWDED if comm._place.is_crowded else LAP
        self.start = time.monotonic()
        self.elapsed = 0.0  # seconds on rank 0 when it was last asked
        self.laps: dict[str, list[_Lap]] = {}

    def is_up(self) -> bool:
        """Say whether the time is over, the same on all ranks."""
        return self.elapsed > self.limit

    def enter(self, entry: Entry) -> None:
        """Let an entry take part, with its first lap. Collective."""
        if str(entry) in self.laps:
            return
        started(self.contest, entry)
        self.lap(str(entry))
        if entry not in self.near(NEAR) and not self.is_up():
            self.lap(str(entry))  # nothing should be left out because of one disturbance

    def lap(self, label: str) -> None:
        """Time as many calls as take about as long as a lap. Collective."""
        known = label in self.laps
        guess = self.best(label)[0] if known else self._agreed(label, 1)
        number = min(MOST, round(self.length / max(guess, 1e-9)))
        number = max(number, FEWEST if guess < BRIEF else 1)
        took = self._agreed(label, number) if known or number > 1 else guess
        self.laps.setdefault(label, []).append(_Lap(took, number * took))

    def _agreed(self, label: str, number: int) -> float:
        """Return the seconds of a call on the slowest rank."""
        mine = self.contest.block(label, number), time.monotonic() - self.start
        everybody = self.contest.mpi.allgather(mine)
        self.elapsed = everybody[0][1]
        slowest: float = max(seconds for seconds, _ in everybody)
        return slowest

    def best(self, label: str) -> tuple[float, float]:
        """Return the least seconds of a call, and how far the next are above them."""
        laps = self.laps[label]
        longest = max(lap.lasted for lap in laps)
        counted = sorted(lap.seconds for lap in laps if COUNTED * lap.lasted >= longest)
        return counted[0], (counted[1] if len(counted) > 1 else math.inf) - counted[0]

    def time(self, entry: Entry) -> float:
        """Return the least seconds of a call."""
        return self.best(str(entry))[0]

    def near(self, factor: float) -> Iterator[Entry]:
        """Yield the entries that are within a factor of the fastest, the fastest first."""
        seconds = self.result(0, self.contest.entries.values()).seconds
        limit = factor * min(seconds.values())
        yield from sorted(
            (each for each in seconds if seconds[each] <= limit), key=seconds.__getitem__
        )

    def result(self, nbytes: int, entries: Iterable[Entry]) -> Result:
        """Return the times of some entries, without those of barriers."""
        barrier, wavers = self.best(BARRIER) if BARRIER in self.laps else (0.0, 0.0)
        seconds, noise = {}, {}
        for entry in entries:
            took, own = self.best(str(entry))
            seconds[entry] = without(barrier, took)
            noise[entry] = own + wavers
        return Result(nbytes, seconds, noise)


def simplest(
    name: str, p: int, result: Result, before: Entry | None, default: Entry | None = None
) -> Entry:
    """Return the fastest, or what is hardly slower and simpler. Local.

    Of short arrays that is the one with the fewest rounds, of long ones the one whose busiest rank
    has least to do: where ranks share cores it takes no longer if one rank does everything, but
    where each has a core it does.

    Parameters
    ----------
    name : str
    p : int
    result : Result
    before : Entry or None
        The choice at the size before.
    default : Entry, optional
        What is chosen without a profile.
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
    work = {each: busiest(name, each.algorithm or "", p) if long else 0 for each in close}
    least = min(work.values())
    if before in close and work[before] == least:
        return before

    def complexity(entry: Entry) -> tuple[Fraction | int, float, float, int, float]:
        algorithm = algorithms.get(name, entry.algorithm or "")
        rounds, _, folded = algorithm.totals(p) or (0.0, 0.0, 0.0)
        order = algorithms.names(name).index(algorithm.name.partition(":")[0])
        return work[entry], rounds, folded if long else 0, order, times[entry]

    return min(close, key=complexity)


@cache
def busiest(collective: str, algorithm: str, p: int) -> Fraction:
    """Return what the busiest rank of a host reads and writes, in arrays. Local."""
    most = Fraction(0)
    for rank in range(p):
        plan = schedule.compile(algorithms.get(collective, algorithm), p, rank)
        steps = program.pack(plan, whole=True, local=range(p)).steps
        blocks = 0
        for at in range(0, len(steps), program.STEP_FIELDS):
            space, _, publication, count, *_, first, end = steps[at : at + program.STEP_FIELDS]
            blocks += count * (end - first + (space != program.NOWHERE) + (publication >= 0))
        most = max(most, Fraction(blocks, plan.cut))
    return most
