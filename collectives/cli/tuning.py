"""The measurement of ``collectives tune``: for each collective and size, which is the fastest.

Of one size, all algorithms have a first lap of a few calls, and a second if that was slow; those
that are near to the fastest bring their segments; then, lap by lap with twice as many calls, the
slower half is dropped, until three are left, and all laps are run or the time of this size is up.
The smallest time of the slowest rank counts; how far the next smallest is above it is its noise.
What is hardly slower than the fastest, by 3 % and the noise of the two, which counts as 3 % of each
at most, is as good. If what is chosen without a profile is as good, it stays; else the simplest of
these is taken: the one of the size before, or the one with the fewest rounds; for long arrays that
whose busiest rank has least to do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np

from collectives import algorithms, model, program, schedule, select
from collectives.cli import arguments
from collectives.cli.contest import BARRIER, Contest, Entry, Settings, segmented
from collectives.cli.measure import Bench
from collectives.cli.operations import OPERATIONS
from collectives.profile import Row

__all__ = ["Point", "Result", "Step", "course", "points", "race", "rows", "simplest"]

SEGMENTS = (32 << 10, 128 << 10, 512 << 10, 2 << 20)  # those over a lane are cut in shared memory
PARAMETERS = (2, 8)  # that are tried beside the default, where there are more ranks than that
SIMPLER = 0.03  # keep the simpler choice unless it takes so much longer, beside the noise
NOISIEST = 0.03  # of the time: noise that counts
LEAST = 0.05  # of a barrier's time: what is left of a call when that of the barrier is subtracted
LONG = 128 << 10  # bytes from which on moving them takes longer than waiting for others
NEAR = 1.5  # in the first lap: what takes longer than this times the fastest is dropped
LAP = 4e-4  # seconds of the first lap; each has twice the time of the one before
LAPS = 9
FINALISTS = 3
MOST = 2000  # calls of a lap
FEWEST = 5  # of them, where a call is brief: one alone lasts as long as ranks begin it apart
BRIEF = 2e-3  # seconds
UNMEASURED = 8 << 20  # bytes: if so many were measured, the last row is for all beyond


class Point(NamedTuple):
    """One size of one collective.

    Attributes
    ----------
    collective : str
    nbytes : int
        Of the whole array; 0 where nothing is moved.
    weight : float
        Its part of the time that there is.
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
        Of one call.
    noise : dict of Entry to float
        Seconds between the fastest lap and the next.
    """

    nbytes: int
    seconds: dict[Entry, float]
    noise: dict[Entry, float]


def points(names: list[str], begin: int, end: int, factor: int) -> list[Point]:
    """Return all sizes of some collectives. Local."""
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

    Parameters
    ----------
    bench : Bench
    todo : sequence of Point
        Sizes of one collective follow each other.
    limit : float
        Seconds for all of them; they have parts by their weights.
    """
    comm = bench.comm
    end = time.monotonic() + limit
    before: tuple[str, Entry | None] = ("", None)
    for number, point in enumerate(todo):
        left: float = bench.mpi.bcast(end - time.monotonic())
        if left <= 0:
            return
        share = left * point.weight / sum(each.weight for each in todo[number:])
        default = default_entry(comm.transport, comm.size, point)
        result = race(bench, point, share, [default])
        simpler = before[1] if before[0] == point.collective else None
        chosen = simplest(point.collective, comm.size, result, simpler, default)
        before = point.collective, chosen
        yield Step(point, chosen, default, result)


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
    return Entry(decision.algorithm.name, segment)


def rows(steps: Sequence[Step], factor: int) -> dict[str, tuple[Row, ...]]:
    """Return the rows of a profile, by collective. Local.

    Parameters
    ----------
    steps : sequence of Step
        Of one number of ranks.
    factor : int
        Between sizes: the boundary of two of them is their geometric mean.
    """
    found: dict[str, list[Row]] = {}
    for step in steps:
        listed = found.setdefault(step.point.collective, [])
        nbytes = step.point.nbytes
        limit = int(nbytes * factor**0.5) - 1 if 0 < nbytes < UNMEASURED else None
        times: tuple[tuple[int, float], ...] = ((nbytes, step.result.seconds[step.chosen]),)
        name, segment = step.chosen.algorithm or "", step.chosen.segment or 0
        if listed and (listed[-1].algorithm, listed[-1].segment) == (name, segment):
            times = (*listed.pop().times, *times)
        elif listed and listed[-1].limit is None:
            last = listed.pop()
            listed.append(last._replace(limit=int(last.times[-1][0] * factor**0.5) - 1))
        listed.append(Row(limit, name, segment, times))
    return {name: tuple(listed) for name, listed in found.items()}


def candidates(name: str, p: int) -> list[str]:
    """Return the names of all algorithms that can run, with other values of their parameters."""
    able, _ = arguments.chosen("all", name, p)
    found = []
    for each in filter(None, able):
        found.append(each)
        if algorithms.get(name, each).parameters:
            found += [f"{each}:{value}" for value in PARAMETERS if value < p - 1]
    return found


def race(
    bench: Bench, point: Point, limit: float, keep: Sequence[Entry] = (), laps: int = LAPS
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
    laps : int
        At most.
    """
    p = bench.comm.size
    operation = OPERATIONS[point.collective]
    known = bench.comm._parameters or model.DEFAULT
    names = sorted(
        candidates(point.collective, p),
        key=lambda each: model.seconds(
            algorithms.get(point.collective, each), p, point.nbytes, known
        ),
    )
    whole = [Entry(each, 0) for each in names]
    settings = Settings(point.collective, (), np.dtype(np.float32), peer=False, verify=False)
    contest = Contest(bench, settings, operation.elements(point.nbytes // 4, p))
    clock = _Clock(contest, limit)
    if operation.runs_ahead:
        clock.lap(BARRIER, LAP)
    for entry in dict.fromkeys([*keep, *whole]):
        if clock.is_up() and entry not in keep:
            break
        clock.enter(entry)
    for entry in list(clock.near(NEAR)):
        for segment in SEGMENTS if operation.moves else ():
            if 2 * segment <= point.nbytes and not clock.is_up():
                clock.enter(Entry(entry.algorithm, segment))
    live = list(clock.near(NEAR))
    for number in range(1, laps):
        if clock.is_up():
            break
        for label in [BARRIER] * operation.runs_ahead:
            clock.lap(label, LAP * 2**number)
        for entry in dict.fromkeys([*live, *keep]):
            clock.lap(str(entry), LAP * 2**number)
        live = sorted(live, key=lambda each: min(clock.times[str(each)]))
        live = live[: max(FINALISTS, (len(live) + 1) // 2)]
    return clock.result(point.nbytes)


class _Clock:
    """The laps of one point."""

    def __init__(self, contest: Contest, limit: float) -> None:
        self.contest, self.limit = contest, limit
        self.start = time.monotonic()
        self.elapsed = 0.0  # seconds on rank 0 when it was last asked
        self.times: dict[str, list[float]] = {}

    def is_up(self) -> bool:
        """Say whether the time is over, the same on all ranks."""
        return self.elapsed > self.limit

    def enter(self, entry: Entry) -> None:
        """Let an entry take part, with its first lap. Collective."""
        if str(entry) in self.times:
            return
        self.contest.enter(entry)
        with segmented(entry.segment):  # its communicator decides now
            self.contest.block(str(entry), len(self.contest.calls[str(entry)]))
        self.lap(str(entry), LAP)
        if entry not in self.near(NEAR) and not self.is_up():
            self.lap(str(entry), LAP)  # nothing should be left out because of one disturbance

    def lap(self, label: str, seconds: float) -> None:
        """Time as many calls as take about so many seconds. Collective."""
        before = self.times.get(label)
        if before is None:
            before = [self._agreed(label, 1)]
        fewest = FEWEST if min(before) < BRIEF else 1
        number = max(fewest, min(MOST, round(seconds / max(min(before), 1e-9))))
        took = self._agreed(label, number) if number > 1 or label in self.times else before[0]
        self.times.setdefault(label, []).append(took)

    def _agreed(self, label: str, number: int) -> float:
        """Return the seconds of a call on the slowest rank."""
        mine = self.contest.block(label, number), time.monotonic() - self.start
        everybody = self.contest.mpi.allgather(mine)
        self.elapsed = everybody[0][1]
        slowest: float = max(seconds for seconds, _ in everybody)
        return slowest

    def near(self, factor: float) -> Iterator[Entry]:
        """Yield the entries that are within a factor of the fastest, the fastest first."""
        seconds = self.result(0).seconds
        limit = factor * min(seconds.values())
        yield from sorted(
            (each for each in seconds if seconds[each] <= limit), key=seconds.__getitem__
        )

    def result(self, nbytes: int) -> Result:
        """Return all times, without those of barriers."""
        barriers = self.times.get(BARRIER, [0.0])
        barrier, wavers = min(barriers), _noise(barriers)
        seconds, noise = {}, {}
        for label, entry in self.contest.entries.items():
            took = min(self.times[label])
            seconds[entry] = max(took - barrier, LEAST * barrier, 1e-9)
            noise[entry] = _noise(self.times[label]) + wavers
        return Result(nbytes, seconds, noise)


def _noise(laps: list[float]) -> float:
    fastest, second = sorted([*laps, math.inf])[:2]
    return second - fastest


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
