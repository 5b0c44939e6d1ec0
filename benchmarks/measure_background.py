"""Measure collectives that run in the background.

Run it on a machine as quiet as may be::

    mpiexec -n 2 python benchmarks/measure_background.py

Cases are timed in turns, so that what changes on the machine meanwhile changes all; each number is
a median, a ratio that of ratios within a turn, and the state is that of two of the cores, before
and after (see the manual on measuring).

- gradients: the 161 gradients of ResNet-50, submitted one by one in place and waited for, beside
  one allreduce of an array of that size;
- small: 1 000 gradients of 1 KiB, beside as many calls of the MPI library's own allreduce;
- sync: 8 bytes, submitted and waited for at once;
- check: what the ranks compare before a batch, beside the batch;
- idle: the processor time of a rank in a second in which nothing is submitted.
"""

import argparse
import resource
import statistics
import time

import numpy as np
from mpi4py import MPI

import collectives as cc
from collectives import background

now = time.perf_counter


def resnet50():
    """Return the elements of the 161 gradients of ResNet-50, from the last layer to the first."""
    sizes = [64 * 3 * 49, 64, 64]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            outputs = 4 * width
            sizes += [inputs * width, width, width, width * width * 9, width, width]
            sizes += [width * outputs, outputs, outputs]
            if block == 0:
                sizes += [inputs * outputs, outputs, outputs]
            inputs = outputs
    return [*sizes, 2048 * 1000, 1000][::-1]


def agreed(comm, seconds):
    """Return the time of the slowest rank."""
    return comm.mpi.allreduce(seconds, MPI.MAX)


def timed(comm, call, times=1):
    comm.mpi.Barrier()
    start = now()
    for _ in range(times):
        call()
    return agreed(comm, now() - start) / times


class Cases:
    """What is timed."""

    def __init__(self, comm):
        self.comm = comm
        self.gradients = [np.ones(n, np.float32) for n in resnet50()]
        self.whole = np.ones(sum(each.size for each in self.gradients), np.float32)
        self.small = [np.ones(256, np.float32) for _ in range(1000)]
        self.one = np.ones(1), np.empty(1)

    def submit_gradients(self):
        handles = [
            background.submit("allreduce", each, each, op=cc.AVG, name=str(k))
            for k, each in enumerate(self.gradients)
        ]
        for handle in handles:
            handle.wait()

    def reduce_whole(self):
        self.comm.allreduce(self.whole, self.whole, op=cc.AVG)

    def submit_small(self):
        handles = [
            background.submit("allreduce", each, each, op=cc.AVG, name=str(k))
            for k, each in enumerate(self.small)
        ]
        for handle in handles:
            handle.wait()

    def reduce_small_by_mpi(self):
        for each in self.small:
            self.comm.mpi.Allreduce(MPI.IN_PLACE, each)

    def submit_one(self):
        background.submit("allreduce", *self.one, name="one").wait()


def median(values):
    return statistics.median(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=9)
    turns = parser.parse_args().turns
    comm = cc.world()
    cases = Cases(comm)
    background.start()
    tell = print if comm.rank == 0 else lambda *args: None
    tell(f"# {MPI.Get_library_version().splitlines()[0][:40]}, {comm.size} ranks, {turns} turns")
    rows = {name: [] for name in ("gradients", "whole", "small", "mpi", "one", "trip")}
    for turn in range(turns + 1):
        row = {
            "trip": comm._segment.round_trip(1 - comm.rank, 20) if comm.rank < 2 else 0.0,
            "gradients": timed(comm, cases.submit_gradients),
            "whole": timed(comm, cases.reduce_whole),
            "small": timed(comm, cases.submit_small),
            "mpi": timed(comm, cases.reduce_small_by_mpi),
            "one": timed(comm, cases.submit_one, 1000),
        }
        if turn:  # the first warms up
            for name, value in row.items():
                rows[name].append(value)
    nbytes = cases.whole.nbytes
    far = sum(trip > 200e-9 for trip in rows["trip"])
    tell(f"# {turns - far} turns near, {far} far (a flag from core to core and back, 200 ns)")
    speed = [whole / each for whole, each in zip(rows["whole"], rows["gradients"], strict=True)]
    tell(
        f"161 gradients, {nbytes / 1e6:.0f} MB: {1e3 * median(rows['gradients']):.2f} ms; one "
        f"allreduce {1e3 * median(rows['whole']):.2f} ms; {median(speed):.2f} of its speed"
    )
    ratio = [mpi / small for mpi, small in zip(rows["mpi"], rows["small"], strict=True)]
    tell(
        f"1000 gradients of 1 KiB: {1e3 * median(rows['small']):.2f} ms; MPI's allreduce "
        f"{1e3 * median(rows['mpi']):.2f} ms; {median(ratio):.1f} times as fast"
    )
    tell(f"8 bytes, submit and wait: {1e6 * median(rows['one']):.2f} us")
    background.flush()
    time.sleep(2)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(5)
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    tell(f"idle: {100 * spent / 5:.3f} % of a core")


if __name__ == "__main__":
    main()
