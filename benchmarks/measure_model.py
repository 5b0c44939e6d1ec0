"""Measure alpha, beta and gamma: what the cost formulas are multiplied by where no table helps.

Run it on two ranks of a quiet machine::

    mpiexec -n 2 python benchmarks/measure_model.py

It prints half a round trip of 8 bytes, half a round trip of 4 MiB for each byte, and the time of
one NumPy addition of float32 for each byte. `collectives/choice/model.py` rounds them.
"""

import statistics
import time

import numpy as np
from mpi4py import MPI

SHORT, LONG = 8, 4 << 20  # bytes
TURNS = {SHORT: 3000, LONG: 60}


def one_way(comm: MPI.Comm, nbytes: int) -> float:
    """Return the median seconds that a message takes."""
    data = np.zeros(nbytes, np.uint8)
    other = 1 - comm.rank
    times = []
    for _ in range(TURNS[nbytes]):
        comm.Barrier()
        start = time.perf_counter()
        for sends in (comm.rank == 0, comm.rank == 1):
            if sends:
                comm.Send(data, other)
            else:
                comm.Recv(data, other)
        times.append((time.perf_counter() - start) / 2)
    return statistics.median(times)


def folding(nbytes: int) -> float:
    """Return the median seconds of one addition in place."""
    total, more = np.ones(nbytes // 4, np.float32), np.ones(nbytes // 4, np.float32)
    times = []
    for _ in range(TURNS[LONG]):
        start = time.perf_counter()
        np.add(total, more, out=total)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Measure all three and print them on rank 0."""
    comm = MPI.COMM_WORLD
    if comm.size != 2:
        raise SystemExit(f"this needs 2 ranks, and there are {comm.size}")
    alpha, beta, gamma = one_way(comm, SHORT), one_way(comm, LONG) / LONG, folding(LONG) / LONG
    if comm.rank == 0:
        print(f"alpha {1e6 * alpha:.2f} us")
        print(f"beta  {1e9 * beta:.3f} ns/B")
        print(f"gamma {1e9 * gamma:.3f} ns/B")


if __name__ == "__main__":
    main()
