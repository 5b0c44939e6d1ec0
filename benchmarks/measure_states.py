"""Time collectives beside those of the MPI, with the cores of two ranks near to each other and far.

Run it on two ranks, on a machine as quiet as may be, in an environment of each MPI::

    mpiexec -n 2 python benchmarks/measure_states.py benchmarks/results/states/zen3/mpich.json

On a virtual machine the state changes by itself, at times within seconds. So the round trip of a
flag is timed before and after each measurement, and the measurement is dropped if it has changed.
It goes round the sizes, and measures each as ``collectives bench`` does, in blocks of the MPI's own
collective and the library's in turns, until the time is up. For each state it writes medians: of
the MPI's, of the library's, and of their ratios in the same turn; of arrays in private memory, from
16 KiB on of those of `shared_arrays` ("heap"), and of `Communicator.empty` ("shared"), for which
the private copy of a rank past the cache is timed as well, the least that either must take.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from turns import options, ratio

import collectives as cc
from collectives.measuring import state
from collectives.measuring.bench import MPI_LABEL, Bench
from collectives.measuring.contest import Entry, Settings
from collectives.measuring.measure import measure
from collectives.measuring.operations import OPERATIONS
from collectives.text import files

COLLECTIVES = "allreduce", "broadcast", "allgather", "alltoall", "barrier"
SIZES = 8, 64, 256, *(4**k for k in range(5, 14)), *(2 * 4**k for k in range(7, 11))  # bytes
LEAST = 16 << 10  # bytes of an array that can be in the heap
TURN = 4e-3  # seconds of calls between two looks at the clock
WORK = 3e-11, 2e-6  # roughly, seconds of a call: for each byte, and for any
NAMES = {MPI_LABEL: "mpi", "auto": "ours"}
Times = dict[str, float]  # seconds of a call, on the slower rank


def once(bench: Bench, name: str, nbytes: int) -> Times:
    """Return what each way takes, of one collective and one size. Collective."""
    iterations = max(3, int(TURN / (WORK[0] * nbytes * 10 + WORK[1])))
    count = OPERATIONS[name].elements(nbytes // 4, bench.comm.size)
    settings = Settings(
        name, (Entry(),), np.dtype(np.float32), iters=iterations, repeat=3, verify=False
    )
    rows = measure(bench, settings, count)
    found = {NAMES[row.algorithm]: 1e-6 * row.max_us for row in rows}
    if nbytes >= LEAST:
        with cc.shared_arrays():
            (row,) = measure(bench, settings._replace(peer=False), count)
        found["heap"] = 1e-6 * row.max_us
    if name == "allreduce":
        shared = settings._replace(peer=False, limit=True, shared=True)
        (row,) = measure(bench, shared, count)
        found |= {"shared": 1e-6 * row.max_us, "copy": 1e-6 * (row.limit_us or 0.0)}
    return found


def measured(
    comm: cc.Communicator, arguments: argparse.Namespace
) -> dict[tuple[str, str, int], list[Times]]:
    """Return the times of each state, collective and size. Collective."""
    found: dict[tuple[str, str, int], list[Times]] = {}
    bench = Bench(comm, comm.mpi.Dup())
    end = time.monotonic() + arguments.seconds
    sizes = [int(word) for word in arguments.bytes.split(",")]
    while bench.mpi.bcast(time.monotonic() < end):
        for name in arguments.collectives.split(","):
            for nbytes in sizes if name != "barrier" else [0]:
                before = state.name(state.round_trip(comm, bench.mpi))
                times = once(bench, name, nbytes)
                after = state.name(state.round_trip(comm, bench.mpi))
                # If nothing is left without the barriers, there is nothing to compare.
                if after == before and all(times.values()):
                    found.setdefault((str(before), name, nbytes), []).append(times)
    return found


def rows(found: dict[tuple[str, str, int], list[Times]]) -> Iterator[dict[str, Any]]:
    """Yield medians in microseconds, as rows for JSON."""
    for (name, collective, nbytes), turns in sorted(found.items()):
        row = {"state": name, "collective": collective, "bytes": nbytes, "turns": len(turns)}
        times = {key: [each[key] for each in turns] for key in turns[0]}
        for key, values in times.items():
            row[f"{key}_us"] = round(1e6 * statistics.median(values), 3)
        row["ratio"] = round(ratio(times["ours"], times["mpi"]), 3)
        yield row


def main() -> None:
    arguments = options(
        __doc__,
        file=Path,
        collectives=",".join(COLLECTIVES),
        bytes=",".join(map(str, sorted(SIZES))),
        seconds=150.0,
    )
    comm = cc.world()
    made = list(rows(measured(comm, arguments)))
    if comm.rank:
        return
    for row in made:
        print(", ".join(f"{key} {value}" for key, value in row.items()))
    if arguments.file:
        words = ["mpiexec", "-n", str(comm.size), "python", *sys.argv]
        document = {
            "command": shlex.join(words),
            "mpi": MPI.Get_library_version().splitlines()[0].strip("\0"),
            "date": time.strftime("%Y-%m-%d"),
            "ranks": comm.size,
            "rows": made,
        }
        arguments.file.parent.mkdir(exist_ok=True)
        files.write_json(arguments.file, document)


if __name__ == "__main__":
    main()
