"""Measure which algorithm and segment size is fastest, and write the table that `select` reads.

Run it under the MPI that is to be measured, once for each number of ranks, on a quiet machine::

    mpiexec -n 2 python benchmarks/measure_table.py collectives/measured.json

It replaces the rows of that family of MPI and number of ranks, and leaves the others. Every
candidate is timed a first time; those within half again of the best are timed again in turns, and
the smallest median over turns of the slowest rank's time wins. A simpler choice (the one of the
size before, or an unsegmented one) is kept where the winner gains less than 4 %.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives as cc
from collectives import algorithms, binding

SEGMENTS = (0, 32 << 10, 128 << 10, 512 << 10, 2 << 20)
SIMPLER = 1.04  # keep the simpler choice unless it is slower by this factor


def main() -> None:
    """Measure all collectives at all sizes and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--collectives", default="allreduce,reduce,broadcast,barrier")
    parser.add_argument("--end", type=int, default=64 << 20, help="largest message, bytes")
    parser.add_argument("--factor", type=int, default=4, help="between sizes")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    comm = cc.Communicator(timeout=300)
    family = binding.family(MPI)
    for name in options.collectives.split(","):
        rows = measure(comm, name, options)
        if comm.rank == 0:
            save(options.file, family, name, comm.size, rows)
            print(f"{family} {name} on {comm.size} ranks: {rows}", flush=True)


def measure(comm: cc.Communicator, name: str, options: argparse.Namespace) -> list[list[object]]:
    """Return rows [largest number of bytes or None, algorithm, segment], ascending."""
    sizes = [8]
    while name != "barrier" and sizes[-1] * options.factor <= options.end:
        sizes.append(sizes[-1] * options.factor)
    rows: list[list[object]] = []
    before: tuple[str, int] | None = None
    for nbytes in sizes:
        candidates = [
            (algorithm, segment)
            for algorithm in algorithms.names(name)
            for segment in SEGMENTS
            if segment == 0 or segment * 2 <= nbytes
        ]
        first: dict[tuple[str, int], float] = {}
        for each in candidates:
            # Segments do not make up for an algorithm that is hopeless without them.
            whole = first.get((each[0], 0), 0.0)
            if not first or whole < 4 * min(first.values()):
                first[each] = timed(comm, name, nbytes, each, 1)
        near = [each for each in first if first[each] < 1.5 * min(first.values())]
        times = {each: [first[each]] for each in near}
        for _ in range(options.turns):
            for each in near:
                times[each].append(timed(comm, name, nbytes, each, 2))
        medians = {each: statistics.median(values) for each, values in times.items()}
        best = min(medians, key=lambda each: medians[each])
        simple = [each for each in near if each == before or (each[1] == 0 and before is None)]
        simple = [each for each in simple if medians[each] < SIMPLER * medians[best]]
        before = min(simple, key=lambda each: medians[each]) if simple else best
        before = MPI.COMM_WORLD.bcast(before)
        # The boundary between two measured sizes is their geometric mean.
        limit = int(nbytes * options.factor**0.5) - 1 if nbytes != sizes[-1] else None
        if rows and rows[-1][1:] == list(before):
            rows[-1][0] = limit
        else:
            rows.append([limit, *before])
        if comm.rank == 0:
            ranking = sorted(medians, key=lambda each: medians[each])[:4]
            text = "  ".join(f"{a}/{s >> 10}K {1e6 * medians[a, s]:.1f}" for a, s in ranking)
            print(f"  {name} {nbytes}: {before[0]}/{before[1] >> 10}K   ({text})", file=sys.stderr)
    return rows


def timed(
    comm: cc.Communicator, name: str, nbytes: int, choice: tuple[str, int], effort: int
) -> float:
    """Return seconds per call on the slowest rank.

    A rooted call is followed by a barrier, and the root rotates: nothing else keeps a root from
    running ahead, and a pipeline's throughput would be measured.
    """
    algorithm, segment = choice
    os.environ["COLLECTIVES_SEGMENT"] = str(segment)
    comm.forget()
    count = max(1, nbytes // 4)
    x, out = np.ones(count, np.float32), np.empty(count, np.float32)
    p = comm.size
    calls = {
        "allreduce": lambda i: comm.allreduce(x, out=out, algorithm=algorithm),
        "reduce": lambda i: comm.reduce(x, out=out, root=i % p, algorithm=algorithm),
        "broadcast": lambda i: comm.broadcast(x, out=out, root=i % p, algorithm=algorithm),
        "barrier": lambda i: comm.barrier(algorithm=algorithm),
    }
    call = calls[name]
    turn = p if name in ("reduce", "broadcast") else 1  # calls until every rank was the root
    for i in range(turn + 1):
        call(i)
        comm.barrier()
    iterations = turn * max(1, min(2000, int(effort * 0.01 / (2e-6 + nbytes * 1e-9) / p / turn)))
    comm.barrier()
    start = time.perf_counter()
    for i in range(iterations):
        call(i)
        if turn > 1:
            comm.barrier()
    seconds = (time.perf_counter() - start) / iterations
    return float(comm.allreduce(np.array(seconds), op=cc.MAX, algorithm="butterfly"))


def save(path: Path, family: str, name: str, size: int, rows: list[list[object]]) -> None:
    """Put the rows into the table, beside machine, date and command."""
    table = json.loads(path.read_text()) if path.exists() else {"measured": {}, "tables": {}}
    table["tables"].setdefault(family, {}).setdefault(name, {})[str(size)] = rows
    table["measured"][family] = {
        "machine": f"{os.cpu_count()} cores, {processor()}",
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


def processor() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
