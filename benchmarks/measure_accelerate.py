"""Measure mpi4py's collectives, plain and accelerated, beside the methods of this library.

Run it on a machine as quiet as may be, in the environment of each MPI::

    mpiexec -n 2 python benchmarks/measure_accelerate.py

For arrays of each size it prints the median of a call in many turns, in us, on the slowest rank:
mpi4py's method on a plain communicator, the same method on an accelerated one, this library's own,
and by how much the accelerated one is faster than the plain one (the median of all turns). Calls of
this library have learned before they are timed, as in `collectives bench`. Sizes are those of the
array that a rank gives, in an alltoall of its block for each rank. The parts of a vector form, and
of the form that is printed before it, have this size. With `--vectors` only these are measured. The
last line gives the distance of the cores of ranks 0 and 1: near or far.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
SIZES_OF_PARTS = 8, 512, 1 << 14, 1 << 20
WHOLE = "Barrier", "Bcast", "Reduce", "Allreduce", "Allgather", "Alltoall"
CUT = (
    *("Allgather", "Allgatherv", "Alltoall", "Alltoallv", "Gather", "Gatherv"),
    *("Scatter", "Scatterv", "Reduce_scatter_block", "Reduce_scatter"),
)
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


def parts(name: str, n: int, plain: Any, fast: Any) -> dict[str, Callable[[], Any]]:
    """Return the same for a form whose parts have n float64; only the root knows its counts."""
    own = cc.world()
    p, rank = own.size, own.rank
    counts = [n] * p
    methods: dict[str, Callable[..., Any]] = {
        "Allgather": own.allgather,
        "Allgatherv": partial(own.allgatherv, counts=counts),
        "Alltoall": own.alltoall,
        "Alltoallv": partial(own.alltoallv, counts=counts, receive_counts=counts),
        "Reduce_scatter_block": own.reduce_scatter,
        "Reduce_scatter": partial(own.reduce_scatterv, counts=counts),
        "Gather": own.gather,
        "Gatherv": partial(own.gatherv, counts=None if rank else counts),
        "Scatter": own.scatter,
        "Scatterv": partial(own.scatterv, counts=None if rank else counts),
    }

    def arguments(is_mpi: bool) -> tuple[Any, ...]:
        is_cut = not name.startswith(("Allgather", "Gather"))
        x = np.ones(n * p if is_cut else n)
        out = np.empty(n if name.startswith(("Reduce", "Scatter")) else n * p)
        if name.startswith("Scatter") and rank:
            x = None
        if name.startswith("Gather") and rank:
            out = None
        if not (is_mpi and name.endswith("v")):
            return (x, out, counts) if is_mpi and name == "Reduce_scatter" else (x, out)
        if name in ("Alltoallv", "Scatterv"):
            x = None if x is None else [x, counts]
        return x, [out, counts] if name != "Scatterv" and out is not None else out

    return {
        "plain": partial(getattr(plain, name), *arguments(True)),
        "accelerated": partial(getattr(fast, name), *arguments(True)),
        "own": partial(methods[name], *arguments(False)[:1], out=arguments(False)[1]),
    }


def main() -> None:
    """Print a table for each collective."""
    given = options(__doc__, turns=(int, 41), vectors=False)
    turns = given.turns
    plain, fast = MPI.COMM_WORLD.Dup(), accelerate(MPI.COMM_WORLD)
    trips = []

    def look() -> None:
        trips.append(state.round_trip(cc.world(), plain))

    say(f"{cc.size()} ranks, {library_name(MPI)}")
    tables = [] if given.vectors else [(name, ways, SIZES) for name in WHOLE]
    for name, make, sizes in (*tables, *((name, parts, SIZES_OF_PARTS) for name in CUT)):
        say(row(name, COLUMNS))
        for nbytes in (0,) if name == "Barrier" else sizes:
            calls = make(name, nbytes // 8, plain, fast)
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
