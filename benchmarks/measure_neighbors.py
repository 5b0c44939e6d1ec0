"""Measure collectives between neighbours beside those of MPI, on a periodic grid of two dimensions.

Run it on four ranks, on a machine as quiet as may be::

    mpiexec -n 4 python benchmarks/measure_neighbors.py

For blocks of each size, it prints the time of a call in the fastest of many turns, in us, on the
slowest rank: MPI's own through mpi4py, the method here, the same as a planned call, and mpi4py's
method of an accelerated communicator. A rank has four neighbours, and so an alltoall moves four
blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from turns import in_turns, options, row, say, slowest

import collectives as cc
from collectives.mpi4py import accelerate

SIZES = 8, 1 << 10, 1 << 16
COLUMNS = "MPI", "here", "planned", "accelerated"


def ways(name: str, nbytes: int, theirs: Any, ours: Any, fast: Any) -> dict[str, Callable[[], Any]]:
    """Return the calls to compare, with arrays of their own."""
    blocks = 4 if name == "alltoall" else 1

    def arrays() -> tuple[Any, Any]:
        return np.ones((blocks, nbytes // 8)), np.zeros((4, nbytes // 8))

    plain, mine, kept, served = (arrays() for _ in range(4))
    method = getattr(ours, f"neighbor_{name}")
    return {
        "MPI": lambda: getattr(theirs, f"Neighbor_{name}")(*plain),
        "here": lambda: method(*mine),
        "planned": ours.plan(f"neighbor_{name}", *kept),
        "accelerated": lambda: getattr(fast, f"Neighbor_{name}")(*served),
    }


def main() -> None:
    """Print one table for an alltoall, and one for an allgather."""
    turns = options(__doc__, turns=(int, 101)).turns
    dims = MPI.Compute_dims(cc.size(), 2)
    theirs = MPI.COMM_WORLD.Create_cart(dims, [True, True])
    ours = cc.world().cart(dims, True)
    fast = accelerate(MPI.COMM_WORLD.Create_cart(dims, [True, True]))
    say(f"{cc.size()} ranks, {dims[0]} x {dims[1]}, {MPI.Get_library_version().splitlines()[0]}")
    for name in ("alltoall", "allgather"):
        say(row(f"neighbor_{name}, block", COLUMNS))
        for nbytes in SIZES:
            calls = ways(name, nbytes, theirs, ours, fast)
            times = in_turns(calls, turns, slowest, fill=2e-3, warm=3)
            # The fastest turn is the one that others on the machine disturb least.
            say(row(f"{nbytes} B", [1e6 * min(each) for each in times.values()]))


if __name__ == "__main__":
    main()
