"""Measure short-lived communicators of mpi4py, plain and accelerated.

Run it on a machine as quiet as may be, in the environment of each MPI::

    mpiexec -n 2 python benchmarks/measure_split.py

It prints the median time, in us, on the slowest rank, to split off a communicator of all ranks, to
make so many calls of an Allreduce of 8 B on it, and to free it: with a plain communicator, with an
accelerated one whose first collectives run in MPI, and with one whose collectives all run here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from turns import in_turns, medians, options, row, say, slowest

import collectives as cc
from collectives.mpi4py import accelerate, communicators
from collectives.process.binding import library_name

COLUMNS = "plain", "first in MPI", "all here"
CALLS = 1, 10, 100, 1000


def way(parent: Any, calls: int, first: int) -> Callable[[], None]:
    """Return what splits off a communicator for so many calls, of which the first are MPI's."""
    x = np.ones(1)

    def function() -> None:
        communicators.FIRST = first
        comm = parent.Split()
        for _ in range(calls):
            comm.Allreduce(MPI.IN_PLACE, x)
        comm.Free()

    return function


def main() -> None:
    """Print a table."""
    turns = options(__doc__, turns=(int, 41)).turns
    plain, fast, first = MPI.COMM_WORLD.Dup(), accelerate(MPI.COMM_WORLD), communicators.FIRST
    say(f"{cc.size()} ranks, {library_name(MPI)}")
    say(row("calls", COLUMNS))
    for calls in CALLS:
        ways = way(plain, calls, 0), way(fast, calls, first), way(fast, calls, 0)
        times = in_turns(dict(zip(COLUMNS, ways, strict=True)), turns, slowest, warm=3)
        say(row(str(calls), list(medians(times, 1e-6).values())))


if __name__ == "__main__":
    main()
