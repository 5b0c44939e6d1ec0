"""Measure `stop_requested` beside an allreduce of 8 bytes, in turns.

Run it on a machine as quiet as may be::

    mpiexec -n 2 python benchmarks/measure_stopping.py

It prints the medians of many turns, and the fastest ones, in us, of the slowest rank.
"""

from __future__ import annotations

import numpy as np
from turns import in_turns, medians, options, ratio, row, say, slowest

import collectives as cc


def main() -> None:
    """Print a table of the calls."""
    turns = options(__doc__, turns=(int, 101)).turns
    comm = cc.world()
    x, out, planned_out = np.ones(1), np.ones(1), np.ones(1)
    ways = {
        "allreduce of 8 B": lambda: comm.allreduce(x, out),
        "the same, planned": comm.plan("allreduce", x, planned_out),
        "barrier": comm.barrier,
        "stop_requested": comm.stop_requested,
    }
    times = in_turns(ways, turns, slowest, fill=5e-3, warm=5)
    found = medians(times, 1e-6)
    say(row(f"{comm.size} ranks", ["median", "fastest", "/ allreduce"]))
    for name, each in times.items():
        share = ratio(each, times["allreduce of 8 B"])
        say(row(name, [found[name], 1e6 * min(each), share], ".2f"))


if __name__ == "__main__":
    main()
