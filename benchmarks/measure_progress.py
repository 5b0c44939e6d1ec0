"""Measure the cost and the gain of the progress thread.

Run it on two ranks, on a machine as quiet as may be, with messages and through shared memory::

    COLLECTIVES_SHM=0 mpiexec -n 2 python benchmarks/measure_progress.py
    mpiexec -n 2 python benchmarks/measure_progress.py

The thread is started and ended in turns, so that changes of the machine affect both alike. Each
line has the medians without and with the thread, and the median of the ratios of neighbours:

- calls of 8 bytes, while nothing else is in flight, blocking and not;
- calls of 8 bytes on another communicator, while a long iallreduce is in flight;
- the long iallreduce with a pause, or a computation, between its start and its wait; either takes
  twice as long as the blocking call;
- the processor time of a rank in a second in which it does nothing: nothing is in flight, or an
  iallreduce to which the other rank does not come.
"""

import statistics
import time

import numpy as np
from turns import alone, in_turns, longest, options, ratio, row, say

import collectives as cc
from collectives import _core

LARGE = 16 << 20  # bytes
CALLS = 300  # of 8 bytes, beside a long one; ten times as many in a row
SETTLED = 0.01  # seconds after which the thread sleeps
IDLE = 1.0  # seconds

now = time.perf_counter


class Cases:
    """The calls that are timed; each method returns seconds."""

    def __init__(self, comm):
        self.comm, self.other = comm, comm.dup()
        self.small = np.ones(1), np.empty(1)
        self.large = np.ones(LARGE // 8), np.empty(LARGE // 8)
        self.work = np.ones(1 << 13)
        self.lap = 0.0  # seconds of one step of the computation
        self.alone = self.pause = 0.0

    def calibrate(self):
        """Find out how long a blocking call takes, and a step of the computation."""
        self.lap = statistics.median(alone(self.step) for _ in range(200))
        times = [alone(lambda: self.comm.allreduce(*self.large)) for _ in range(15)]
        self.alone = longest(statistics.median(times))
        self.pause = 2 * self.alone

    def step(self):
        np.sqrt(self.work, out=self.work)

    def blocking(self):
        return alone(lambda: self.comm.allreduce(*self.small), 10 * CALLS)

    def nonblocking(self):
        return alone(lambda: self.comm.iallreduce(*self.small).wait(), 10 * CALLS)

    def beside(self):
        request = self.comm.iallreduce(*self.large)
        times = [alone(lambda: self.other.allreduce(*self.small)) for _ in range(CALLS)]
        request.wait()
        return statistics.median(times)

    def with_pause(self):
        return self.overlapped(lambda: time.sleep(self.pause))

    def with_work(self):
        steps = round(self.pause / self.lap)
        return self.overlapped(lambda: [self.step() for _ in range(steps)])

    def overlapped(self, work):
        start = now()
        request = self.comm.iallreduce(*self.large)
        work()
        request.wait()
        return longest(now() - start)

    def idle(self):
        return self.used()

    def awaiting(self):
        request = self.comm.iallreduce(*self.small) if self.comm.rank == 0 else None
        seconds = self.used()
        self.comm.mpi.Barrier()
        (request or self.comm.iallreduce(*self.small)).wait()
        return self.comm.mpi.bcast(seconds)

    def used(self):
        before = time.process_time()
        time.sleep(IDLE)
        return (time.process_time() - before) / IDLE


def compare(comm, case, turns):
    """Return what a case takes without and with the thread, in turns."""

    def clock(thread, calls):
        if thread:
            _core.want_progress()
        comm.iallreduce(np.ones(1)).wait()  # starts it
        time.sleep(SETTLED)
        comm.mpi.Barrier()
        seconds = case()
        _core.stop_progress()
        return seconds

    return in_turns({"without": False, "with": True}, turns, clock, warm=0).values()


def main():
    """Print a line for each case."""
    turns = options(__doc__, turns=15).turns
    comm = cc.world()
    cases = Cases(comm)
    cases.calibrate()
    say(
        f"{comm.size} ranks, {comm.transport}; blocking call of {LARGE >> 20} MiB: "
        f"{1e3 * cases.alone:.1f} ms"
    )
    say(row("", ("without", "with", "ratio")))
    for label, case, factor, unit, number in (
        ("8 bytes", cases.blocking, 1e6, "us", turns),
        ("8 bytes, iallreduce + wait", cases.nonblocking, 1e6, "us", turns),
        ("8 bytes beside 16 MiB", cases.beside, 1e6, "us", turns),
        ("16 MiB + pause", cases.with_pause, 1e3, "ms", turns),
        ("16 MiB + computation", cases.with_work, 1e3, "ms", turns),
        ("idle", cases.idle, 100, "%", min(turns, 3)),
        ("idle, the other not there", cases.awaiting, 100, "%", min(turns, 3)),
    ):
        off, on = compare(comm, case, number)
        cells = [factor * statistics.median(each) for each in (off, on)]
        say(row(f"{label}, {unit}", [*cells, ratio(on, off)], ".2f"))


if __name__ == "__main__":
    main()
