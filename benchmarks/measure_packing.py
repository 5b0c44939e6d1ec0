"""Measure from which size on data should travel by itself, and not packed together with other data.

Run it on as many ranks as are of interest, on a machine as quiet as may be::

    mpiexec -n 2 python benchmarks/measure_packing.py

It prints, for arrays of each size, the shortest time of an `allreduce_many` that packs all of them
(into parts of PACKED bytes), of one that packs none, one after the other and side by side, and of a
`broadcast_object` of a list of them, likewise. What it shows is why `APART`, `PACKED` and
`IN_FLIGHT` in ``grouped.py``, and `APART` in ``objects.py``, are what they are.
"""

import time

import numpy as np

import collectives as cc
from collectives.calls import grouped, objects

ARRAYS = 32
SECONDS = 0.5  # that calls of one kind are repeated
SIZES = [1 << k for k in range(10, 22)]
LIMITS = [1 << k for k in range(16, 25, 2)]


def timed(comm, call):
    """Return the seconds of the fastest call: the one that others on the machine disturb least."""
    best, end = float("inf"), time.perf_counter() + SECONDS
    while True:
        late = comm.broadcast(np.array([time.perf_counter() > end]))
        if late[0]:
            return best
        comm.barrier()
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)


def main():
    """Print one table for grouped calls, one for the limit of packed arrays, one for objects."""
    comm = cc.world()
    say = print if comm.rank == 0 else lambda *_: None
    apart, packed = grouped.APART, grouped.PACKED
    say(f"{comm.size} ranks, us of an allreduce_many of {ARRAYS} arrays in place")
    say(f"{'bytes each':>12}{'packed':>10}{'1 at a time':>13}{'4':>10}{'16':>10}{'all':>10}")
    for nbytes in SIZES:
        arrays = [np.ones(nbytes // 4, np.float32) for _ in range(ARRAYS)]
        grouped.APART = 1 << 40
        row = [timed(comm, lambda: comm.allreduce_many(arrays, arrays))]  # noqa: B023
        grouped.APART = 0
        for grouped.IN_FLIGHT in (1, 4, 16, ARRAYS):
            row.append(timed(comm, lambda: comm.allreduce_many(arrays, arrays)))  # noqa: B023
        figures = [f"{1e6 * seconds:.0f}" for seconds in row]
        say(
            f"{nbytes:>12}{figures[0]:>10}{figures[1]:>13}"
            + "".join(f"{f:>10}" for f in figures[2:])
        )

    say(f"\n{comm.size} ranks, us of an allreduce_many of 1024 arrays in place, by PACKED")
    say(f"{'bytes each':>12}" + "".join(f"{limit:>10}" for limit in LIMITS))
    grouped.APART, grouped.IN_FLIGHT = 1 << 40, 4
    for nbytes in (1 << 10, 1 << 12, 1 << 14):
        arrays = [np.ones(nbytes // 4, np.float32) for _ in range(1024)]
        row = []
        for grouped.PACKED in LIMITS:
            row.append(timed(comm, lambda: comm.allreduce_many(arrays, arrays)))  # noqa: B023
        say(f"{nbytes:>12}" + "".join(f"{1e6 * seconds:>10.0f}" for seconds in row))
    grouped.APART, grouped.PACKED = apart, packed

    say(f"\n{comm.size} ranks, us of a broadcast_object of {ARRAYS} arrays")
    say(f"{'bytes each':>12}{'inside':>10}{'apart':>10}")
    for nbytes in SIZES:
        arrays = [np.ones(nbytes // 4, np.float32) for _ in range(ARRAYS)]
        row = []
        for objects.APART in (1 << 40, 0):
            row.append(timed(comm, lambda: comm.broadcast_object(arrays)))  # noqa: B023
        say(f"{nbytes:>12}" + "".join(f"{1e6 * seconds:>10.0f}" for seconds in row))


if __name__ == "__main__":
    main()
