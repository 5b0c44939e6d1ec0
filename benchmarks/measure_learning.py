"""Measure how good learned settings are: the time of a call over that of the best fixed setting.

Run it under the MPI that is to be measured, for each number of ranks, on a quiet machine::

    mpiexec -n 2 python benchmarks/measure_learning.py benchmarks/results/learning/mpich-2.json

At each point of a grid of collectives and sizes, in shared memory, one communicator learns from its
own calls, from nothing. Others have one setting each: all algorithms with all segments and ways to
store. Those that are near to the fastest in a short measurement are then timed with the learned
setting, and with the choice without learning ("rules"), in turns. It prints at how many points each
of these is within 10 % of the best. The goal is 95 % for learned settings.

With ``--loops`` it measures the cost of learning instead: the time of a loop of 1000 calls on a new
communicator, with learning and without, in turns.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI
from turns import in_turns, options, ratio

import collectives as cc
from collectives.choice import lessons, model, profile
from collectives.choice.chooser import Chooser
from collectives.choice.select import Decision
from collectives.cli.arguments import operations
from collectives.measuring import state, tuning
from collectives.measuring.bench import Bench
from collectives.measuring.candidates import candidates
from collectives.measuring.contest import BARRIER, Contestant
from collectives.process import environment
from collectives.text import files
from collectives.text.words import size_text

NEAR = 1.3  # settings that take more than this times the least time in the first measurement
FIRST, TURNS = 3, 9  # turns of the first measurement, and of the second
TURN = 5e-3  # seconds of calls in a turn
MOST = 300  # calls in a turn
GOAL = 0.95
LOOP, LOOPS, LOOPS_SECONDS = 1000, 101, 4.0  # calls of a loop; loops; seconds for these

fixed: dict[int, Decision] = {}  # of choosers
choose = Chooser.choose


def chosen(self: Chooser, *arguments: Any) -> Any:
    """Choose the fixed setting, if there is one."""
    decision = fixed.get(id(self))
    if decision is None:
        return choose(self, *arguments)
    return self.planned(decision, arguments[3], arguments[5])


Chooser.choose = chosen  # type: ignore[method-assign]


def settings(comm: cc.Communicator, point: tuning.Point) -> list[Decision]:
    """Return all settings of a class."""
    first = comm._chooser.decide(point.collective, None, None, point.nbytes)
    ways = [lessons.RULES]
    if point.nbytes >= lessons.STORED:
        ways = [lessons.CACHED, model.MEMCPY, model.PAYLOADS]
    if point.nbytes * comm.size >= lessons.LARGE:
        ways += [model.RESULTS, model.PAYLOADS | model.RESULTS]
    if comm._chooser.reads and point.nbytes >= lessons.READ:
        ways.append(model.LENDS)
    found = []
    for name in candidates(point.collective, comm.size):
        named = comm._chooser.decide(point.collective, name, None, point.nbytes)
        block = point.nbytes // named.algorithm.array_blocks(comm.size)
        for segment in lessons.SEGMENTS:
            if 2 * segment <= block:
                found += [replace(named, segment=segment, ways=each) for each in ways]
    rules = replace(first, ways=lessons.RULES)
    return [rules, *found]


class Ways:
    """Communicators for the settings of one point after the other."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.learns = bench.comm.dup()
        self.others: list[cc.Communicator] = []

    def calls(
        self, contest: Any, decision: Decision | None, number: int
    ) -> list[Callable[[], Any]]:
        """Return the calls of a setting, or those that learn. Collective."""
        comm = self.learns
        if decision is not None:
            while number >= len(self.others):
                self.others.append(self.bench.comm.dup())
            comm = self.others[number]
            fixed[id(comm._chooser)] = decision
            comm.forget()
        return [each.ours(comm, None) for each in contest._private]


def measured(ways: Ways, point: tuning.Point) -> dict[str, Any]:
    """Return the result of one point. Collective."""
    bench = ways.bench
    contest = tuning.contest_at(bench, point)
    every = settings(bench.comm, point)
    names = {"learned": None} | {f"{k} {each.name()}": each for k, each in enumerate(every)}
    for number, (name, decision) in enumerate(names.items()):
        calls = ways.calls(contest, decision, number - 1)
        contest.contestants[name] = Contestant(calls)
        contest.block(name, 2 * len(calls))
    contest.settle("learned", ways.learns)

    def clock(name: str, calls: int) -> float:
        return contest.agreed(contest.block(name, calls))

    extra = [BARRIER] if BARRIER in contest.contestants else []
    guess = max(clock("learned", 3), 1e-7)
    number = max(3, min(MOST, round(TURN / guess)))

    def turns(of: list[str], times: int) -> dict[str, list[float]]:
        found = in_turns(
            {each: each for each in [*of, *extra]},
            times,
            clock,
            calls=dict.fromkeys(of + extra, number),
        )
        barrier = statistics.median(found.get(BARRIER, [0.0]))
        return {each: [tuning.without(barrier, t) for t in found[each]] for each in of}

    medians = {name: statistics.median(each) for name, each in turns(list(names), FIRST).items()}
    rules = next(name for name, each in names.items() if each is every[0])
    limit = NEAR * min(medians.values())
    near = sorted((name for name in names if medians[name] <= limit), key=medians.__getitem__)[:6]
    final = turns(list(dict.fromkeys(["learned", rules, *near])), TURNS)
    best = min((n for n in final if n != "learned"), key=lambda n: statistics.median(final[n]))
    return {
        "collective": point.collective,
        "bytes": point.nbytes,
        "settings": len(every),
        "best": best.partition(" ")[2],
        "best_us": round(1e6 * statistics.median(final[best]), 3),
        "learned": ways.learns.explain(point.collective, point.nbytes).name(),
        "learned_over": round(ratio(final["learned"], final[best]), 3),
        "rules": rules.partition(" ")[2],
        "rules_over": round(ratio(final[rules], final[best]), 3),
    }


def looped(bench: Bench, point: tuning.Point) -> dict[str, Any]:
    """Return the times of a loop of calls on a new communicator. Collective."""
    contest = tuning.contest_at(bench, point)
    arrays = contest._private[0]

    def clock(tune: str, calls: int) -> float:
        with environment.having(COLLECTIVES_TUNE=tune), bench.comm.dup() as comm:
            contest.contestants[tune] = Contestant([arrays.ours(comm, None)])
            return contest.agreed(contest.block(tune, calls))

    least = clock("0", 20)
    turns = max(1, min(LOOPS, round(LOOPS_SECONDS / (2 * LOOP * least))))
    times = in_turns({"": "", "0": "0"}, turns, clock, warm=0, calls=dict.fromkeys(["", "0"], LOOP))
    return {
        "collective": point.collective,
        "bytes": point.nbytes,
        "turns": turns,
        "with_us": round(1e6 * statistics.median(times[""]), 3),
        "without_us": round(1e6 * statistics.median(times["0"]), 3),
    }


def line(row: dict[str, Any], loops: bool) -> str:
    """Return the printed line of a point."""
    point = f"{row['state']} {row['collective']} {size_text(row['bytes'])}"
    if loops:
        return f"{point}: {row['with_us']:.4g} us, without learning {row['without_us']:.4g}"
    return (
        f"{point}: learned {row['learned_over']:.2f} ({row['learned']}), rules "
        f"{row['rules_over']:.2f} ({row['rules']}) of {row['best_us']:.3g} us ({row['best']})"
    )


def main() -> None:
    """Measure the grid, and write the points."""
    arguments = options(
        __doc__,
        file=Path,
        collectives=(operations, "all"),
        begin=8,
        end=64 << 20,
        factor=8,
        seconds=170.0,
        loops=False,
    )
    comm = cc.world()
    bench = Bench(comm, comm.mpi.Dup())
    ways = Ways(bench)
    rows = []
    began = MPI.Wtime()
    for point in tuning.points(
        arguments.collectives, arguments.begin, arguments.end, arguments.factor
    ):
        if bench.mpi.bcast(MPI.Wtime() - began > arguments.seconds):
            break
        trip = state.name(state.round_trip(comm, bench.mpi))
        found = looped(bench, point) if arguments.loops else measured(ways, point)
        rows.append({"state": trip, **found})
        if comm.rank == 0:
            print(line(rows[-1], arguments.loops), flush=True)
    if comm.rank:
        return
    shares = (
        {}
        if arguments.loops
        else {
            name: sum(row[f"{name}_over"] <= 1.1 for row in rows) / len(rows)
            for name in ("learned", "rules")
        }
    )
    for name, share in shares.items():
        print(f"{name}: {100 * share:.0f} % of {len(rows)} points within 10 % of the best")
    if shares:
        print(f"(goal: {100 * GOAL:.0f} % of what is learned)")
    document = {
        "command": f"mpiexec -n {comm.size} python {' '.join(sys.argv)}",
        "mpi": MPI.Get_library_version().splitlines()[0].strip("\0"),
        "ranks": comm.size,
        "cpu": profile.machine()[0],
        "cores": profile.machine()[1],
        "shares": shares,
        "rows": rows,
    }
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(arguments.file, document)


if __name__ == "__main__":
    main()
