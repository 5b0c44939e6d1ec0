"""Measure collectives that run in the background.

Run it on a machine as quiet as may be::

    mpiexec -n 2 python benchmarks/measure_background.py

Cases are timed in turns, so that changes of the machine affect all of them alike. Each number is a
median, a ratio that of ratios within a turn, and the state is that of two of the cores, before and
after (see the manual on measuring).

- gradients: the 161 gradients of ResNet-50, submitted one by one in place and waited for, beside
  one allreduce of an array of that size;
- small: 1 000 gradients of 1 KiB, submitted one by one, and all in one call, beside as many calls
  of the MPI library's own allreduce;
- sync: 8 bytes, submitted and waited for at once;
- check: the part of the time of the gradients in which the ranks compare their submissions: the
  time to begin and to read these rounds, and the waits for them with no batch in flight, which
  include waits for a rank that is late;
- idle: the processor time of a rank in a second in which nothing is submitted.

With ``--codecs``, only the gradients are timed: submitted without compression, and with each codec.
"""

import os
import resource
import time
from functools import partial
from statistics import median

# One thread per rank: PowerSGD multiplies matrices, and ranks would use each other's cores.
for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402
from turns import in_turns, longest, medians, options, ratio, row, say, slowest  # noqa: E402

import collectives as cc  # noqa: E402
from collectives import background  # noqa: E402
from collectives.background.group import Group  # noqa: E402
from collectives.measuring import state  # noqa: E402

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


class Cases:
    """The calls that are timed."""

    def __init__(self, comm):
        self.comm = comm
        self.gradients = [np.ones(n, np.float32) for n in resnet50()]
        self.whole = np.ones(sum(each.size for each in self.gradients), np.float32)
        self.small = [np.ones(256, np.float32) for _ in range(1000)]
        self.one = np.ones(1), np.empty(1)

    def submit_gradients(self):
        self.submit(self.gradients)

    def submit_small(self):
        self.submit(self.small)

    def submit(self, arrays, outs=None, codec=None):
        """Submit arrays one by one, and wait for all of them."""
        handles = [
            background.submit("allreduce", x, out, op=cc.AVG, name=str(k), compression=codec)
            for k, (x, out) in enumerate(zip(arrays, outs or arrays, strict=True))
        ]
        for handle in handles:
            handle.wait()

    def reduce_whole(self):
        self.comm.allreduce(self.whole, self.whole, op=cc.AVG)

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


def share_of_checks(call, turns):
    """Return the parts of the time of a call that rounds take on the rank where they take longest,
    by the seconds that it took in each turn; and the number of rounds.
    """
    parts, rounds = {}, []
    for _ in range(turns):
        with Checks() as checks:
            seconds = slowest(call)
        parts[seconds] = longest(checks.seconds) / seconds
        rounds.append(checks.rounds)
    return parts, median(rounds)


def compare_codecs(comm, cases, turns):
    """Print the time of the gradients without compression and with each codec."""
    rng = np.random.default_rng(comm.rank)
    # PowerSGD needs matrices.
    matrices = [
        rng.standard_normal(x.size, np.float32).reshape(-1, 64 if x.size % 64 == 0 else 8)
        for x in cases.gradients
    ]
    results = [np.empty_like(x) for x in matrices]
    ways = {codec: partial(cases.submit, matrices, results, codec) for codec in CODECS}
    found = medians(in_turns(ways, turns), 1e-3)
    say(row("", ("ms", "times as fast")))
    for codec, ms in found.items():
        say(row(codec or "none", [ms, f"{found[None] / ms:.2f}"]))


def main():
    arguments = options(__doc__, turns=9, codecs=False)
    comm = cc.world()
    cases = Cases(comm)
    background.start()
    library = MPI.Get_library_version().splitlines()[0][:40]
    say(f"# {library}, {comm.size} ranks, {arguments.turns} turns")
    if arguments.codecs:
        compare_codecs(comm, cases, arguments.turns)
    else:
        compare_calls(comm, cases, arguments.turns)


def compare_calls(comm, cases, turns):
    """Print the times of gradients, of small arrays and of one, of checks, and of a pause."""
    ways = {
        "gradients": cases.submit_gradients,
        "whole": cases.reduce_whole,
        "small": cases.submit_small,
        "many": cases.submit_small_as_one,
        "mpi": cases.reduce_small_by_mpi,
        "one": cases.submit_one,
    }
    trips = []
    times = in_turns(
        ways,
        turns,
        calls={"one": 1000},
        before=lambda: trips.append(state.round_trip(comm, comm.mpi)),
    )
    ms = medians(times, 1e-3)
    say(f"# {state.text(trips)}")
    say(
        f"161 gradients, {cases.whole.nbytes / 1e6:.0f} MB: {ms['gradients']:.2f} ms; one "
        f"allreduce {ms['whole']:.2f} ms; {ratio(times['whole'], times['gradients']):.2f} of its "
        f"speed"
    )
    parts, rounds = share_of_checks(cases.submit_gradients, turns)
    fastest = min(parts)
    say(
        f"check: {rounds:g} rounds, {100 * median(parts.values()):.1f} % of the time of the "
        f"gradients; {100 * parts[fastest]:.1f} % in the fastest turn, of {1e3 * fastest:.1f} ms"
    )
    for key, words in (("small", "one by one"), ("many", "in one call")):
        say(
            f"1000 gradients of 1 KiB, {words}: {ms[key]:.2f} ms; MPI's allreduce "
            f"{ms['mpi']:.2f} ms; {ratio(times['mpi'], times[key]):.1f} times as fast"
        )
    say(f"8 bytes, submit and wait: {1e3 * ms['one']:.2f} us")
    background.flush()
    time.sleep(2)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(5)
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    say(f"idle: {100 * spent / 5:.3f} % of a core")


if __name__ == "__main__":
    main()
