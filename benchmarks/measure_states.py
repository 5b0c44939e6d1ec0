"""Time collectives beside those of the MPI, with the cores of two ranks near to each other and far.

Run it on two ranks, on a machine as quiet as may be, in an environment of each MPI::

    mpiexec -n 2 python benchmarks/measure_states.py benchmarks/results/states/mpich.json

On a virtual machine the state changes by itself, at times within seconds. So it is looked at before
and after each measurement, by the round trip of a flag, and what has changed meanwhile is dropped.
It goes round the sizes, the MPI's own collective and the library's in turns, until the time is
up. For each state it writes medians: of the MPI's, of the library's, and of their ratios in the
same turn; of arrays in private memory, and of `Communicator.empty` ("shared"), for which the
private copy of a rank past the cache is timed as well, the least that either must take.
"""

import argparse
import shlex
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives as cc
from collectives.measuring import state
from collectives.text import files

COLLECTIVES = "allreduce", "broadcast", "allgather", "alltoall"
SIZES = tuple(4**k for k in range(5, 14)) + tuple(2 * 4**k for k in range(7, 11))  # bytes
TURN = 4e-3  # seconds of calls between two looks at the clock
WORK = 3e-11, 2e-6  # roughly, seconds of a call: for each byte, and for any
TIMES = 3  # of which the least counts


class Case:
    """One collective on arrays of one size: by MPI, by the library, and on shared arrays."""

    def __init__(self, comm, name, nbytes):
        self.world, self.comm, self.name = MPI.COMM_WORLD, comm, name
        n = nbytes // 4
        self.x = np.random.default_rng(comm.rank).random(n, np.float32)
        self.out = np.empty_like(self.x)
        self.count = max(3, int(TURN / (WORK[0] * nbytes * 10 + WORK[1])))
        self.shared = [comm.empty(n, np.float32) for _ in range(2)] if name == "allreduce" else None
        if self.shared:
            self.shared[0][:] = self.x
        self.copies = state.copies(nbytes, 1)[0] if self.shared else None

    def mpi(self):
        part = self.x[: self.x.size // self.comm.size]
        if self.name == "allreduce":
            self.world.Allreduce(self.x, self.out)
        elif self.name == "broadcast":
            self.world.Bcast(self.x)
        elif self.name == "allgather":
            self.world.Allgather(part, self.out)
        else:
            self.world.Alltoall(self.x, self.out)

    def ours(self):
        if self.name == "allgather":
            self.comm.allgather(self.x[: self.x.size // self.comm.size], out=self.out)
        elif self.name == "broadcast":
            self.comm.broadcast(self.x, out=self.x)
        else:
            getattr(self.comm, self.name)(self.x, out=self.out)

    def on_shared(self):
        self.comm.allreduce(self.shared[0], out=self.shared[1])

    def seconds(self, call):
        """Return the seconds of a call on the slower rank, the least of several times."""
        best = float("inf")
        for _ in range(TIMES):
            call()
            self.world.Barrier()
            start = time.perf_counter()
            for _ in range(self.count):
                call()
            best = min(best, (time.perf_counter() - start) / self.count)
        return self.world.allreduce(best, op=MPI.MAX)

    def measured(self):
        names = {"mpi": self.mpi, "ours": self.ours}
        if self.shared:
            names |= {"shared": self.on_shared, "copy": self.copies}
        return {name: self.seconds(call) for name, call in names.items()}


def measure(comm, names, sizes, seconds):
    """Return the times of each state, collective and size."""
    found = {}
    end = time.monotonic() + seconds
    cases = [Case(comm, name, nbytes) for name in names for nbytes in sizes]
    while MPI.COMM_WORLD.bcast(time.monotonic() < end):
        for case in cases:
            before = state.name(state.round_trip(comm, MPI.COMM_WORLD))
            times = case.measured()
            if state.name(state.round_trip(comm, MPI.COMM_WORLD)) == before:
                found.setdefault((before, case.name, case.x.nbytes), []).append(times)
    return found


def rows(found):
    """Return medians in microseconds, as rows for JSON."""
    for (name, collective, nbytes), turns in sorted(found.items()):
        row = {"state": name, "collective": collective, "bytes": nbytes, "turns": len(turns)}
        for key in turns[0]:
            row[f"{key}_us"] = round(1e6 * statistics.median(each[key] for each in turns), 3)
        row["ratio"] = round(statistics.median(each["ours"] / each["mpi"] for each in turns), 3)
        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, help="where the medians go, as JSON")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--bytes", default=",".join(map(str, sorted(SIZES))))
    parser.add_argument("--seconds", type=float, default=150)
    options = parser.parse_args()
    comm = cc.world()
    sizes = [int(word) for word in options.bytes.split(",")]
    found = measure(comm, options.collectives.split(","), sizes, options.seconds)
    if comm.rank:
        return
    made = list(rows(found))
    for row in made:
        print(", ".join(f"{key} {value}" for key, value in row.items()))
    if options.file:
        words = ["mpiexec", "-n", str(comm.size), "python", *sys.argv]
        document = {
            "command": shlex.join(words),
            "mpi": MPI.Get_library_version().splitlines()[0].strip("\0"),
            "date": time.strftime("%Y-%m-%d"),
            "ranks": comm.size,
            "rows": made,
        }
        options.file.parent.mkdir(exist_ok=True)
        files.write_json(options.file, document)


if __name__ == "__main__":
    main()
