"""Measure mpi4py's collectives, plain and accelerated, beside the methods of this library.

Run it on a machine as quiet as may be, in the environment of each MPI::

    mpiexec -n 2 python benchmarks/measure_accelerate.py

For arrays of each size it prints the median of a call in many turns, in us, on the slowest rank:
mpi4py's method on a plain communicator, the same method on an accelerated one, this library's own,
and by how much the accelerated one is faster than the plain one (the median of all turns). Calls of
this library have learned before they are timed, as in `collectives bench`. Sizes are those of the
array that a rank gives, in an alltoall of its block for each rank. The last line gives the distance
of the cores of ranks 0 and 1: near or far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from turns import in_turns, medians, options, ratio, row, say, slowest

import collectives as cc
from collectives.measuring import state
from collectives.mpi4py import accelerate
from collectives.process.binding import library_name
from collectives.text.words import size_text

SIZES = 8, 1 << 10, 1 << 14, 1 << 18, 1 << 20
COLUMNS = "plain", "accelerated", "own", "plain / accelerated"


def ways(name: str, n: int, plain: Any, fast: Any) -> dict[str, Callable[[], Any]]:
    """Return the calls to compare, with arrays of n float64 of their own."""
    own = cc.world()
    p = own.size
    if name == "Barrier":
        return {"plain": plain.Barrier, "accelerated": fast.Barrier, "own": own.barrier}

    def arrays() -> tuple[Any, ...]:
        if name == "Bcast":
            return (np.ones(n),)
        given = np.ones(n * p if name == "Alltoall" else n)
        return given, np.empty(n * p if name in ("Allgather", "Alltoall") else n)

    first, second, third = arrays(), arrays(), arrays()
    methods: dict[str, Callable[[], Any]] = {
        "Allreduce": lambda: own.allreduce(third[0], out=third[1]),
        "Reduce": lambda: own.reduce(third[0], out=third[1]),
        "Bcast": lambda: own.broadcast(third[0], out=third[0]),
        "Allgather": lambda: own.allgather(third[0], out=third[1]),
        "Alltoall": lambda: own.alltoall(third[0], out=third[1]),
    }
    return {
        "plain": lambda: getattr(plain, name)(*first),
        "accelerated": lambda: getattr(fast, name)(*second),
        "own": methods[name],
    }


def main() -> None:
    """Print a table for each collective."""
    turns = options(__doc__, turns=(int, 41)).turns
    plain, fast = MPI.COMM_WORLD.Dup(), accelerate(MPI.COMM_WORLD)
    trips = []

    def look() -> None:
        trips.append(state.round_trip(cc.world(), plain))

    say(f"{cc.size()} ranks, {library_name(MPI)}")
    for name in ("Barrier", "Bcast", "Reduce", "Allreduce", "Allgather", "Alltoall"):
        say(row(name, COLUMNS))
        for nbytes in (0,) if name == "Barrier" else SIZES:
            calls = ways(name, nbytes // 8, plain, fast)
            for way, comm in ("accelerated", fast._comm), ("own", cc.world()):
                comm._engine.settle(calls[way])
            look()
            times = in_turns(calls, turns, slowest, fill=2e-3, warm=8)
            gain = ratio(times["plain"], times["accelerated"])
            say(row(size_text(nbytes), [*medians(times, 1e-6).values(), gain]))
    look()
    say(state.text(trips))


if __name__ == "__main__":
    main()
