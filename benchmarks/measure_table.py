"""Measure which algorithm and segment size is fastest, and write the table that `select` reads.

Run it under the MPI that is to be measured, once for each number of ranks, on a quiet machine::

    mpiexec -n 2 python benchmarks/measure_table.py collectives/measured.json

It replaces the rows of that family of MPI and number of ranks, and leaves the others. Times are
those of ``collectives bench``: all candidates have a trial, and those within half again of the
fastest are measured in turns. The smallest time of the slowest rank wins. A simpler choice (the one
of the size before, or else the one with the fewest rounds) is kept where the winner gains less than
8 % and the noise of the two; for long arrays the simpler one is that whose busiest rank has least
to do. From 1 MiB on, an algorithm that was not near the fastest at the two
sizes before is not tried again.
"""

import argparse
import datetime
import json
import sys
import time
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import collectives as cc
from collectives import algorithms, binding, program, schedule
from collectives.cli import arguments, measure, report
from collectives.cli.measure import Entry
from collectives.cli.operations import OPERATIONS
from collectives.spec import COLLECTIVES

SEGMENTS = (32 << 10, 128 << 10, 512 << 10, 2 << 20)  # those over a lane are cut in shared memory
PARAMETERS = (2, 8)  # that are tried beside the default, where there are more ranks than that
SIMPLER = 1.08  # keep the simpler choice unless it is slower by this factor
LONG = 128 << 10  # bytes from which on moving them takes longer than waiting for others
NEAR = 1.5  # what takes longer than this times the fastest in its trial is not measured
LARGE = 1 << 20  # bytes from which on algorithms that are not near are given up

Rows = list[list[object]]


def main() -> None:
    """Measure all collectives at all sizes and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--collectives", type=arguments.operations, default=list(COLLECTIVES))
    parser.add_argument("--begin", type=arguments.nbytes, default=8, help="smallest, bytes")
    parser.add_argument("--end", type=arguments.nbytes, default=64 << 20, help="largest, bytes")
    parser.add_argument("--factor", type=int, default=4, help="between sizes")
    parser.add_argument("--repeat", type=int, default=5, help="blocks of each")
    options = parser.parse_args()
    comm = cc.Communicator(timeout=300)
    bench = measure.Bench(comm, comm.mpi.Dup())
    family = comm.transport
    for name in options.collectives:
        start = time.monotonic()
        rows = choose(bench, name, options)
        if comm.rank == 0:
            save(options.file, family, name, comm.size, rows)
            seconds = time.monotonic() - start
            print(f"{family} {name} on {comm.size} ranks, {seconds:.0f} s: {rows}", flush=True)


def choose(bench: measure.Bench, name: str, options: argparse.Namespace) -> Rows:
    """Return rows [largest number of bytes or None, algorithm, segment], ascending."""
    operation = OPERATIONS[name]
    p = bench.comm.size
    sizes = [options.begin]
    while operation.moves and sizes[-1] * options.factor <= options.end:
        sizes.append(sizes[-1] * options.factor)
    rows: Rows = []
    before: Entry | None = None
    left = candidates(name, p)
    near: list[set[str | None]] = [set(left), set(left)]  # at the two sizes before
    for nbytes in sizes:
        if nbytes > LARGE:
            left = [each for each in left if any(each in fast for fast in near)]
        segments = [0, *(each for each in SEGMENTS if operation.moves and each * 2 <= nbytes)]
        settings = measure.Settings(
            operation=name,
            entries=tuple(Entry(each, segment) for segment in segments for each in left),
            dtype=np.dtype(np.float32),
            warmup=1,
            repeat=options.repeat,
            verify=False,
            peer=False,
            block=0.01,
            fewest=1,
            prune=NEAR,
        )
        measured = bench.measure(settings, operation.elements(nbytes // 4, p))
        near = [near[1], {row["entry"].algorithm for row in measured}]
        before = simplest(name, p, nbytes, measured, before)
        # The boundary between two measured sizes is their geometric mean.
        limit = int(nbytes * options.factor**0.5) - 1 if nbytes != sizes[-1] else None
        if rows and rows[-1][1:] == list(before):
            rows[-1][0] = limit
        else:
            rows.append([limit, *before])
        if bench.comm.rank == 0:
            times = {row["entry"]: max(row["seconds"]) for row in measured}
            ranking = sorted(times, key=lambda each: times[each])[:4]
            text = "  ".join(f"{each} {1e6 * times[each]:.1f}" for each in ranking)
            print(f"  {name} {nbytes}: {before}   ({text})", file=sys.stderr, flush=True)
    return rows


def candidates(name: str, p: int) -> list[str]:
    """Return the names of all algorithms that can run, with other values of their parameters."""
    able, _ = arguments.chosen("all", name, p)
    found = []
    for each in able:
        found.append(each)
        if algorithms.get(name, each).parameters:
            found += [f"{each}:{value}" for value in PARAMETERS if value < p - 1]
    return found


def simplest(
    name: str,
    p: int,
    nbytes: int,
    measured: list[dict[str, Any]],
    before: Entry | None,
) -> Entry:
    """Return the fastest, or what is hardly slower and simpler. All ranks have the same times.

    Of short arrays that is the one with the fewest rounds, of long ones the one whose busiest rank
    has least to do: where ranks share cores it takes no longer if one rank does everything, but
    where each has a core it does.
    """
    times = {row["entry"]: max(row["seconds"]) for row in measured}
    noise = {row["entry"]: row["noise"] for row in measured}
    best = min(times, key=lambda each: times[each])
    close = [
        each for each in times if times[each] <= SIMPLER * times[best] + noise[each] + noise[best]
    ]
    work = {each: busiest(name, each.algorithm, p) if nbytes >= LONG else 0 for each in close}
    least = min(work.values())
    if before in close and work[before] == least:
        return before

    def complexity(entry: Entry) -> tuple[Fraction | int, float, float, int, float]:
        rounds, _, folded = algorithms.get(name, entry.algorithm).totals(p)
        order = algorithms.names(name).index(entry.algorithm.partition(":")[0])
        return work[entry], rounds, folded if nbytes >= LONG else 0, order, times[entry]

    return min(close, key=complexity)


@cache
def busiest(collective: str, algorithm: str, p: int) -> Fraction:
    """Return what the busiest rank of a host reads and writes, in arrays."""
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


def save(path: Path, family: str, name: str, size: int, rows: Rows) -> None:
    """Put the rows into the table, beside machine, date and command."""
    table = json.loads(path.read_text()) if path.exists() else {"measured": {}, "tables": {}}
    table["tables"].setdefault(family, {}).setdefault(name, {})[str(size)] = rows
    here = report.host()
    table["measured"][family] = {
        "machine": f"{here['cores']} cores, {here['cpu']}",
        "library": binding.library_name(MPI),
        "date": datetime.date.today().isoformat(),
        "command": "mpiexec -n RANKS python benchmarks/measure_table.py collectives/measured.json",
    }
    lines = []
    for key, value in table["measured"].items():
        lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    blocks = []
    for key, collectives in table["tables"].items():
        inner = []
        for each, sizes in collectives.items():
            parts = ",\n".join(
                f"    {json.dumps(p)}: {json.dumps(sizes[p])}" for p in sorted(sizes, key=int)
            )
            inner.append(f"   {json.dumps(each)}: {{\n{parts}\n   }}")
        blocks.append(f"  {json.dumps(key)}: {{\n" + ",\n".join(inner) + "\n  }")
    path.write_text(
        '{\n "measured": {\n'
        + ",\n".join(lines)
        + '\n },\n "tables": {\n'
        + ",\n".join(blocks)
        + "\n }\n}\n"
    )


if __name__ == "__main__":
    main()
