"""Measure the cost of a timeline.

Run it on two ranks, on a machine as quiet as may be::

    mpiexec -n 2 python benchmarks/measure_timeline.py

For each size it makes calls in blocks, with a timeline and without in turns, so that changes of the
machine affect both alike. It prints the median time of a call without and with one, and the median
of the ratios of neighbouring blocks. The means of the blocks include memory that is touched for the
first time, which the medians leave out.
"""

import os
import statistics
import tempfile
import time
from functools import partial

import numpy as np
from turns import in_turns, options, ratio, row, say

import collectives as cc
from collectives import _core
from collectives.records import timeline

SIZES = [8, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20]


class Block:
    """Calls of one size, one after the other, and their times."""

    def __init__(self, comm, nbytes):
        self.comm = comm
        self.x = np.ones(nbytes // 4, np.float32)
        self.out = np.empty_like(self.x)
        self.calls = max(20, min(1000, (64 << 20) // max(nbytes, 1 << 16)))

    def run(self):
        """Return the median and the mean of the seconds of a call."""
        now, comm, x, out = time.perf_counter, self.comm, self.x, self.out
        times = []
        comm.barrier()
        for _ in range(self.calls):
            start = now()
            comm.allreduce(x, out)
            times.append(now() - start)
        comm.barrier()
        return statistics.median(times), statistics.fmean(times)


def recorded(block, path):
    """Run a block on a tape of its own; what becomes of the tape is not measured."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    counts = timeline.has_even_counter()
    _core.start_tape(file, timeline.LIMIT, counts, lambda number, label: None)
    try:
        return block.run()
    finally:
        _core.stop_tape()
        os.close(file)


def main():
    """Print a line for each size."""
    turns = options(__doc__, turns=40).turns
    comm = cc.world()
    say(f"{comm.size} ranks, {comm.transport}; us of an allreduce")
    say(row("bytes", ("without", "with", "ratio", "of means")))
    with tempfile.TemporaryDirectory() as folder:
        for nbytes in SIZES:
            block = Block(comm, nbytes)
            tape = partial(recorded, block, f"{folder}/{comm.rank}")
            ways = {"off": block.run, "on": tape}
            times = in_turns(ways, turns, lambda way, calls: way())
            off, on = (list(zip(*each, strict=True)) for each in times.values())
            middle = [1e6 * statistics.median(each[0]) for each in (off, on)]
            ratios = [f"{ratio(b, a):.3f}" for a, b in zip(off, on, strict=True)]
            say(row(nbytes, [*middle, *ratios], ".2f"))


if __name__ == "__main__":
    main()
