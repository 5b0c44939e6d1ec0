"""Measure how often a wait should poll before it gives way to other processes.

Run it with as many ranks as are of interest, on a quiet machine::

    mpiexec -n 8 python benchmarks/measure_patience.py

It prints the median time of an allreduce of 8 bytes and of 16 KiB for each number of polls. What it
shows is why `PATIENCE` and `PATIENCE_OVERSUBSCRIBED` in `process/place.py` are what they are.
``COLLECTIVES_SHM=0`` has the ranks of one host send messages.
"""

import statistics
import time

import numpy as np
from mpi4py import MPI

import collectives as cc

POLLS = (2, 5, 10, 20, 50, 100, 400, 4000)
CASES = ((2, "butterfly"), (4096, "round_robin"))  # elements of float32, algorithm
TURN, TURNS = 0.05, 9  # seconds of each, at least, and how many
FEWEST = 30  # calls


def main() -> None:
    """Time every number of polls in turn, and print medians over the turns."""
    comm = cc.world()
    times: dict[tuple[int, int], list[float]] = {}
    for turn in range(TURNS + 1):
        for polls in POLLS:
            comm._engine.patience = polls
            for count, algorithm in CASES:
                known = times.setdefault((count, polls), [])
                calls = max(FEWEST, round(TURN / known[-1])) if known else FEWEST
                seconds = timed(comm, count, algorithm, calls)
                # The first turn only says how many calls the others have.
                known[:] = [*known, seconds] if turn > 1 else [seconds]
    if comm.rank == 0:
        print(f"{comm.size} ranks, us a call{'':8}" + "".join(f"{polls:>9}" for polls in POLLS))
        for count, algorithm in CASES:
            row = (1e6 * statistics.median(times[count, polls]) for polls in POLLS)
            label = f"{4 * count} bytes, {algorithm}"
            print(f"{label:<28}" + "".join(f"{figure:9.1f}" for figure in row))


def timed(comm: cc.Communicator, count: int, algorithm: str, calls: int) -> float:
    """Return the seconds of a call, on the slowest rank."""
    x = np.ones(count, np.float32)
    out = np.empty_like(x)
    comm.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        comm.allreduce(x, out=out, algorithm=algorithm)
    return comm.mpi.allreduce((time.perf_counter() - start) / calls, MPI.MAX)


if __name__ == "__main__":
    main()
