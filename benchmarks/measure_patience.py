"""Measure how often a wait should poll before it gives way to other processes.

Run it with as many ranks as are of interest, on a quiet machine::

    mpiexec -n 8 python benchmarks/measure_patience.py

It prints the median time of an allreduce of 8 bytes and of 16 KiB for each number of polls. What it
shows is why `PATIENCE` and `PATIENCE_OVERSUBSCRIBED` in `communicator.py` are what they are.
``COLLECTIVES_SHM=0`` has the ranks of one host send messages.
"""

import statistics
import time

import numpy as np

import collectives as cc

POLLS = (2, 5, 10, 20, 50, 100, 400, 4000)
CASES = ((2, "butterfly"), (4096, "round_robin"))  # elements of float32, algorithm
CALLS, TURNS = 300, 9


def main() -> None:
    """Time every number of polls in turn, and print medians over the turns."""
    comm = cc.world()
    times: dict[tuple[int, int], list[float]] = {}
    for _ in range(TURNS):
        for polls in POLLS:
            comm._engine.patience = polls
            for count, algorithm in CASES:
                x = np.ones(count, np.float32)
                out = np.empty_like(x)
                comm.barrier()
                start = time.perf_counter()
                for _ in range(CALLS):
                    comm.allreduce(x, out=out, algorithm=algorithm)
                seconds = (time.perf_counter() - start) / CALLS
                times.setdefault((count, polls), []).append(seconds)
    if comm.rank == 0:
        print(f"{comm.size} ranks, us a call{'':8}" + "".join(f"{polls:>9}" for polls in POLLS))
        for count, algorithm in CASES:
            row = (1e6 * statistics.median(times[count, polls]) for polls in POLLS)
            label = f"{4 * count} bytes, {algorithm}"
            print(f"{label:<28}" + "".join(f"{figure:9.1f}" for figure in row))


if __name__ == "__main__":
    main()
