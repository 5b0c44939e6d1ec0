"""Measure what a timeline costs.

Run it on two ranks, on a machine as quiet as may be::

    mpiexec -n 2 python benchmarks/measure_timeline.py

For each size it makes calls in blocks, with a timeline and without in turns, so that what changes
on the machine meanwhile changes both. It prints the median time of a call without and with one, and
the median of the ratios of neighbouring blocks. The blocks' means tell what medians leave out:
memory that is touched for the first time.
"""

import argparse
import os
import statistics
import tempfile
import time

import numpy as np

import collectives as cc
from collectives import _core
from collectives.records import timeline

SIZES = [8, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20]
PAIRS = 40  # of blocks


class Block:
    """Calls of one size, one after the other; and what they take."""

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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=PAIRS, help="blocks of each kind and size")
    options = parser.parse_args()
    comm = cc.world()
    say = print if comm.rank == 0 else lambda *_, **__: None
    say(f"{comm.size} ranks, {comm.transport}; us of an allreduce")
    say(f"{'bytes':>10}{'without':>10}{'with':>10}{'ratio':>8}{'of means':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for nbytes in SIZES:
            block = Block(comm, nbytes)
            block.run()
            off, on = [], []
            for pair in range(options.pairs):
                for records in (False, True) if pair % 2 else (True, False):
                    if records:
                        on.append(recorded(block, f"{folder}/{comm.rank}"))
                    else:
                        off.append(block.run())
            medians = [statistics.median(each[0] for each in some) for some in (off, on)]
            ratios = [
                statistics.median(b[k] / a[k] for a, b in zip(off, on, strict=True)) for k in (0, 1)
            ]
            say(
                f"{nbytes:>10}{1e6 * medians[0]:>10.2f}{1e6 * medians[1]:>10.2f}"
                f"{ratios[0]:>8.3f}{ratios[1]:>10.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
