"""Measure how often a wait should poll before it gives way to other processes.

Run it with as many ranks as are of interest, on a quiet machine::

    mpiexec -n 8 python benchmarks/measure_polls.py

It prints the median time of an allreduce of 8 bytes and of 16 KiB for each number of polls. The
values of `POLLS` and `POLLS_OVERSUBSCRIBED` in `process/hosts.py` are from these times.
``COLLECTIVES_SHM=0`` has the ranks of one host send messages.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from turns import in_turns, medians, options, row, say, slowest

import collectives as cc

POLLS = (2, 5, 10, 20, 50, 100, 400, 4000)
CASES = ((2, "butterfly"), (4096, "round_robin"))  # elements of float32, algorithm
TURN = 0.05  # seconds of each, at least


def main() -> None:
    """Time every number of polls in turn, and print medians over the turns."""
    turns = options(__doc__, turns=9).turns
    comm = cc.world()

    def clock(way: tuple[int, int, str], calls: int) -> float:
        comm._engine.mpi_polls, count, algorithm = way
        x = np.ones(count, np.float32)
        out = np.empty_like(x)
        return slowest(partial(comm.allreduce, x, out=out, algorithm=algorithm), calls)

    ways = {(count, polls): (polls, count, name) for polls in POLLS for count, name in CASES}
    # Of the first calls, some are slow: a second turn gives the number for the others.
    found = medians(in_turns(ways, turns, clock, warm=2, fill=TURN), 1e-6)
    say(row(f"{comm.size} ranks, us a call", [str(polls) for polls in POLLS], width=9))
    for count, algorithm in CASES:
        cells = [found[count, polls] for polls in POLLS]
        say(row(f"{4 * count} bytes, {algorithm}", cells, width=9))


if __name__ == "__main__":
    main()
