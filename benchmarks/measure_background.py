"""Measure collectives that run in the background.

Run it on a machine as quiet as may be::

    mpiexec -n 2 python benchmarks/measure_background.py

Cases are timed in turns, so that what changes on the machine meanwhile changes all; each number is
a median, a ratio that of ratios within a turn, and the state is that of two of the cores, before
and after (see the manual on measuring).

- gradients: the 161 gradients of ResNet-50, submitted one by one in place and waited for, beside
  one allreduce of an array of that size;
- small: 1 000 gradients of 1 KiB, submitted one by one, and all in one call, beside as many calls
  of the MPI library's own allreduce;
- sync: 8 bytes, submitted and waited for at once;
- check: the part of the time of the gradients in which the ranks compare what they have submitted:
  what it takes to begin and to read these rounds, and what they are waited for with no batch under
  way, which includes waiting for a rank that is late;
- idle: the processor time of a rank in a second in which nothing is submitted.

With ``--codecs``, only the gradients are timed: submitted without compression, and with each codec.
"""

import argparse
import os
import resource
import statistics
import time

# One thread per rank: PowerSGD multiplies matrices, and ranks would use each other's cores.
for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

import collectives as cc  # noqa: E402
from collectives import background  # noqa: E402
from collectives.background.group import Group  # noqa: E402

now = time.perf_counter

CODECS = (None, "float16", "int8", "int4", "sign", "topk:0.01", "randomk:0.01", "powersgd:4")


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

    def submit_compressed(self, codec):
        pairs = zip(self.matrices, self.results, strict=True)
        handles = [
            background.submit("allreduce", x, out, op=cc.AVG, name=str(k), compression=codec)
            for k, (x, out) in enumerate(pairs)
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

    def submit_small_as_one(self):
        background.submit_many(self.small, self.small, op=cc.AVG, name="small").wait()

    def reduce_small_by_mpi(self):
        for each in self.small:
            self.comm.mpi.Allreduce(MPI.IN_PLACE, each)

    def submit_one(self):
        background.submit("allreduce", *self.one, name="one").wait()


class Checks:
    """The time that rounds take, and their number, while the ``with`` statement is open."""

    def __init__(self):
        self.seconds, self.rounds = 0.0, 0
        self.waits_since = None  # for a round alone

    def __enter__(self):
        self.methods = Group._turn, Group._begin_round, Group._negotiate
        turn, begin, negotiate = self.methods

        def timed_turn(group):
            if self.waits_since is not None:
                self.seconds += now() - self.waits_since
            moved = turn(group)
            waits = group.negotiation is not None and not group.batches
            self.waits_since = now() if waits else None
            return moved

        def timed_begin(group):
            start = now()
            request = begin(group)
            self.seconds += now() - start
            self.rounds += 1
            return request

        def timed_negotiate(group, request):
            steps = negotiate(group, request)
            yield next(steps)
            start = now()
            for each in steps:
                self.seconds += now() - start
                yield each
                start = now()
            self.seconds += now() - start

        Group._turn, Group._begin_round, Group._negotiate = timed_turn, timed_begin, timed_negotiate
        return self

    def __exit__(self, *error):
        Group._turn, Group._begin_round, Group._negotiate = self.methods


def share_of_checks(comm, call, turns):
    """Return the parts of the time of a call that rounds take on the rank where they take longest,
    by the seconds that it took in each turn; and the number of rounds.
    """
    parts, rounds = {}, []
    for _ in range(turns):
        with Checks() as checks:
            seconds = timed(comm, call)
        parts[seconds] = agreed(comm, checks.seconds) / seconds
        rounds.append(checks.rounds)
    return parts, median(rounds)


def compare_codecs(comm, cases, turns, tell):
    """Print the time of the gradients without compression and with each codec."""
    times = {codec: [] for codec in CODECS}
    rng = np.random.default_rng(comm.rank)
    # PowerSGD needs matrices.
    cases.matrices = [
        rng.standard_normal(x.size, np.float32).reshape(-1, 64 if x.size % 64 == 0 else 8)
        for x in cases.gradients
    ]
    cases.results = [np.empty_like(x) for x in cases.matrices]
    for turn in range(turns + 1):
        for codec in CODECS:
            seconds = timed(comm, lambda codec=codec: cases.submit_compressed(codec))
            if turn:
                times[codec].append(seconds)
    whole = median(times[None])
    for codec, seconds in times.items():
        tell(
            f"{codec or 'none':12} {1e3 * median(seconds):9.1f} ms  {whole / median(seconds):5.2f}"
        )


def median(values):
    return statistics.median(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--codecs", action="store_true")
    options = parser.parse_args()
    turns = options.turns
    comm = cc.world()
    cases = Cases(comm)
    background.start()
    tell = print if comm.rank == 0 else lambda *args: None
    tell(f"# {MPI.Get_library_version().splitlines()[0][:40]}, {comm.size} ranks, {turns} turns")
    if options.codecs:
        compare_codecs(comm, cases, turns, tell)
        return
    rows = {name: [] for name in ("gradients", "whole", "small", "many", "mpi", "one", "trip")}
    for turn in range(turns + 1):
        row = {
            "trip": comm._segment.round_trip(1 - comm.rank, 20) if comm.rank < 2 else 0.0,
            "gradients": timed(comm, cases.submit_gradients),
            "whole": timed(comm, cases.reduce_whole),
            "small": timed(comm, cases.submit_small),
            "many": timed(comm, cases.submit_small_as_one),
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
    parts, rounds = share_of_checks(comm, cases.submit_gradients, turns)
    fastest = min(parts)
    tell(
        f"check: {rounds:g} rounds, {100 * median(parts.values()):.1f} % of the time of the "
        f"gradients; {100 * parts[fastest]:.1f} % in the fastest turn, of {1e3 * fastest:.1f} ms"
    )
    for key, words in (("small", "one by one"), ("many", "in one call")):
        ratio = [mpi / each for mpi, each in zip(rows["mpi"], rows[key], strict=True)]
        tell(
            f"1000 gradients of 1 KiB, {words}: {1e3 * median(rows[key]):.2f} ms; MPI's allreduce "
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
