"""Many calls, with the right numbers and no growth: ``python tests/support/endurance.py [--help]``.

Each rank makes allreduces of 8 bytes, and calls of mixed sizes and kinds, drawn from one seed. It
compares every result, and at the end its memory, descriptors, threads and mapped files with those
after half of the calls::

    collectives run -n 4 tests/support/endurance.py --small 100000000 --mixed 1000000
"""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import collectives as cc

PAGE = os.sysconf("SC_PAGE_SIZE")
GROWTH = 4 << 20  # bytes that a rank may grow by: of the interpreter's own pools
# MPICH 5.0.2 keeps 303 bytes of each thread that has called it (with mpi4py alone: Split and Free
# in threads, 1000 times), and a split, one in 12 mixed calls, is made in a thread.
OF_THREADS = 30  # bytes for each mixed call
LENGTHS = (0, 1, 2, 7, 100, 1024, 9000, 70_000, 300_000)
DTYPES = (np.float32, np.float64, np.int32, np.int64, np.float16)


class Held(NamedTuple):
    """The resources of this process."""

    memory: int  # bytes
    descriptors: int
    threads: int
    files: int  # that are mapped

    @classmethod
    def now(cls) -> Held:
        mapped = Path("/proc/self/maps").read_text().splitlines()
        return cls(
            int(Path("/proc/self/statm").read_text().split()[1]) * PAGE,
            len(os.listdir("/proc/self/fd")),
            len(os.listdir("/proc/self/task")),
            sum("/" in line for line in mapped),
        )


def small(comm: cc.Communicator, calls: int) -> None:
    """Add up the ranks, in numbers that change with each call."""
    x, y = np.zeros(1), np.zeros(1)
    offset = comm.size * (comm.size - 1) / 2
    for number in range(calls):
        x[0] = number + comm.rank
        comm.allreduce(x, out=y)
        if y[0] != comm.size * number + offset:
            raise SystemExit(f"call {number}: {y[0]} and not {comm.size * number + offset}")


def mixed(comm: cc.Communicator, calls: int, seed: int) -> None:
    """Make calls of all kinds, blocking and not, one after the other."""
    rng = random.Random(seed)
    p, rank = comm.size, comm.rank
    total = p * (p + 1) // 2
    for number in range(calls):
        kind, root = rng.randrange(12), rng.randrange(p)
        n, dtype = rng.choice(LENGTHS), rng.choice(DTYPES)
        x = np.full(n, rank + 1, dtype)
        if kind == 0:
            right = comm.allreduce(x), total
        elif kind == 1:
            right = comm.iallreduce(x).wait(), total
        elif kind == 2:
            right = comm.broadcast(x, root=root), root + 1
        elif kind == 3:
            made = comm.reduce(x, root=root)
            right = (x, rank + 1) if made is None else (made, total)
        elif kind == 4:
            right = comm.allgather(x).sum(axis=0), total
        elif kind == 5:
            right = comm.reduce_scatter(np.full(p * n, rank + 1, dtype)), total
        elif kind == 6:
            right = comm.alltoall(np.full((p, n), rank + 1, dtype)).sum(axis=0), total
        elif kind == 7:
            counts = [(n + k) % 50 for k in range(p)]
            own = np.full(counts[rank], rank + 1, dtype)
            right = comm.allgatherv(own, counts=counts), np.repeat(np.arange(1, p + 1), counts)
        elif kind == 8:
            right = comm.scan(x), (rank + 1) * (rank + 2) // 2
        elif kind == 9:
            right = np.array(comm.allgather_object(rank + number)), np.arange(p) + number
        elif kind == 10:
            to, source = (rank + 1) % p, (rank - 1) % p
            right = comm.sendrecv(x, to, np.empty_like(x), source), source + 1
        else:
            comm.barrier()
            with comm.split(0 if number % 1000 == 0 else rank % 2) as part:
                right = part.allreduce(np.ones(1)), part.size
        if not (np.asarray(right[0]) == right[1]).all():
            raise SystemExit(f"mixed call {number} of kind {kind}: {right}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", type=int, default=100_000, help="allreduces of 8 bytes")
    parser.add_argument("--mixed", type=int, default=12_000, help="calls of mixed sizes and kinds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    comm = cc.world()
    began = time.monotonic()
    for name, run, calls in (("small", small, options.small), ("mixed", mixed, options.mixed)):
        arguments = () if run is small else (options.seed,)
        run(comm, calls // 2, *arguments)
        comm.barrier()
        before = Held.now()
        run(comm, calls - calls // 2, *arguments)
        comm.barrier()
        after = Held.now()
        growth = GROWTH + (OF_THREADS * calls // 2 if run is mixed else 0)
        if after.memory > before.memory + growth or after[1:] != before[1:]:
            raise SystemExit(f"rank {comm.rank}, {name}: from {before} to {after}")
        if comm.rank == 0:
            seconds = time.monotonic() - began
            print(
                f"{calls} {name} calls are right: {before} to {after}, {seconds:.0f} s", flush=True
            )


if __name__ == "__main__":
    main()
