"""The measurement: what runs in the ranks of ``collectives bench``.

How time is taken
-----------------
A *block* is some iterations, back to back, after a barrier; the ranks' clocks are read at its two
ends, and the time of one iteration is the block's time divided by their number. So the skew with
which ranks leave the barrier is divided by that number as well.

- *allreduce, barrier*: no rank can begin an iteration before all have begun the one before, so
  the block is a chain of complete operations.
- *reduce, broadcast*: nothing keeps a root from running ahead, and what is measured would be a
  pipeline's throughput. Each iteration is followed by MPI's barrier, so that it lasts until the
  last rank is done; the barriers alone are measured in the same way in each round of blocks, and
  their time is subtracted. Differences below the barrier's own noise mean nothing.

Blocks of MPI's own collective and of the algorithms alternate, and medians over the rounds of
blocks are reported, so that a drift of the machine hits all alike. Iterations walk over several
buffers with different contents where these are small enough. Results are verified outside the
timed blocks, from poisoned outputs, by a run of iterations without a pause between them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from collectives import Communicator, reductions
from collectives.cli import patterns
from collectives.spec import COLLECTIVES

__all__ = ["BARRIER", "Settings", "measure"]

BLOCK = 0.03  # seconds that a block should last
FEWEST, MOST = 5, 2000  # iterations in a block
WARM = 0.003  # seconds after which the trial that chooses the iterations has warmed up enough
SMALL, LARGE = 256 << 10, 64 << 20  # bytes up to which there are four buffers, and two

BARRIER = "(barrier)"

Calls = Sequence[Callable[[], Any]]


class Settings(NamedTuple):
    """What is measured, and how."""

    collective: str
    algorithms: tuple[str | None, ...]
    dtype: Any
    op: str
    root: int
    warmup: int
    iters: int | None
    repeat: int
    verify: bool


class _Contest:
    """One size: the buffers, the contestants as lists of prepared calls, and the expectation."""

    def __init__(self, comm: Communicator, mpi: Any, settings: Settings, count: int) -> None:
        self.comm, self.mpi, self.settings = comm, mpi, settings
        self.contract = COLLECTIVES[settings.collective]
        self.op: reductions.Reduction = getattr(reductions, settings.op)
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        if settings.collective != "barrier":
            nbytes = count * np.dtype(settings.dtype).itemsize
            number = 4 if nbytes <= SMALL else 2 if nbytes <= LARGE else 1
            self.inputs = [self.input(k, count, comm.rank) for k in range(number)]
            self.outputs = self.inputs
            if self.contract.reduces:
                self.outputs = [np.zeros_like(x) for x in self.inputs]

    def input(self, k: int, count: int, rank: int) -> Any:
        source = rank if self.contract.reduces else self.settings.root
        op = self.op.name if self.contract.reduces else "SUM"
        return patterns.inputs(count, source, self.comm.size, k, self.settings.dtype, op)

    def ours(self, name: str | None) -> Calls:
        """Prepare the library's calls, one for each buffer."""
        comm, op, root = self.comm, self.op, self.settings.root
        if self.settings.collective == "barrier":
            return [partial(comm.barrier, algorithm=name)]

        def prepared(x: Any, out: Any) -> Callable[[], Any]:
            if self.settings.collective == "allreduce":
                return partial(comm.allreduce, x, out, op=op, algorithm=name)
            if self.settings.collective == "reduce":
                return partial(comm.reduce, x, out, root=root, op=op, algorithm=name)
            return partial(comm.broadcast, x, x, root=root, algorithm=name)

        return [prepared(x, out) for x, out in zip(self.inputs, self.outputs, strict=True)]

    def theirs(self) -> Calls | None:
        """Prepare MPI's own calls; None where MPI lacks the type or the operation."""
        from mpi4py import MPI

        mpi, root = self.mpi, self.settings.root
        if self.settings.collective == "barrier":
            return [mpi.Barrier]
        buffers = list(zip(self.inputs, self.outputs, strict=True))
        if self.settings.collective == "broadcast":
            blobs = [[x.view(np.uint8), x.nbytes, MPI.BYTE] for x in self.inputs]
            return [partial(mpi.Bcast, blob, root) for blob in blobs]
        op = getattr(MPI, self.op.name, None)
        if op is None:
            return None
        try:
            kind = MPI.Datatype.fromcode(self.settings.dtype.char)
            one = self.inputs[0][:1].copy()
            op.Reduce_local([one, 1, kind], [one.copy(), 1, kind])
        except (MPI.Exception, ValueError):
            return None

        def prepared(x: Any, out: Any) -> Callable[[], Any]:
            a, b = [x, x.size, kind], [out, out.size, kind]
            if self.settings.collective == "allreduce":
                return partial(mpi.Allreduce, a, b, op)
            return partial(mpi.Reduce, a, b if self.comm.rank == root else None, op, root)

        return [prepared(x, out) for x, out in buffers]

    def block(self, calls: Calls, iterations: int) -> float:
        """Return this rank's seconds for one iteration."""
        barrier = self.mpi.Barrier
        barrier()
        if self.contract.rooted:
            start = time.perf_counter_ns()
            for call in islice(cycle(calls), iterations):
                call()
                barrier()
        else:
            start = time.perf_counter_ns()
            for call in islice(cycle(calls), iterations):
                call()
        return (time.perf_counter_ns() - start) / iterations * 1e-9

    def agreed(self, seconds: float) -> float:
        """Return the slowest rank's time, on all ranks."""
        slowest: float = max(self.mpi.allgather(seconds))
        return slowest

    def iterations(self, calls: Calls) -> int:
        """Warm up, and choose how many iterations make a block."""
        settings = self.settings
        self.block(calls, max(settings.warmup, len(calls)))
        if settings.iters is not None:
            return settings.iters
        count = 2
        while True:
            seconds = self.agreed(self.block(calls, count))
            if seconds * count >= WARM or count >= MOST:
                return max(FEWEST, min(MOST, round(BLOCK / max(seconds, 1e-9))))
            count *= 4

    def wrong(self, calls: Calls) -> int | None:
        """Run from poisoned outputs, and count wrong elements on all ranks, inputs included.

        None where there is nothing to verify, or it is not wanted.
        """
        comm, settings = self.comm, self.settings
        if not settings.verify or settings.collective == "barrier":
            return None
        if self.contract.reduces or comm.rank != settings.root:
            for out in self.outputs:
                patterns.poison(out)
        self.mpi.Barrier()
        for call in calls:
            call()
        wrong = 0
        for k, (x, out) in enumerate(zip(self.inputs, self.outputs, strict=True)):
            own = self.input(k, min(len(x), patterns.PERIOD), comm.rank)
            own = np.resize(own, patterns.PERIOD)
            wrong += patterns.different(x, own)
            if self.contract.reduces and self.contract.receives(comm.rank, settings.root):
                wanted = patterns.expected(comm.size, k, settings.dtype, self.op)
                wrong += patterns.different(out, wanted, 0.01 if self.op.average else 0.0)
        return int(self.mpi.allreduce(wrong))


def measure(
    comm: Communicator,
    mpi: Any,
    settings: Settings,
    count: int,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Measure one size. Collective.

    Parameters
    ----------
    comm, mpi : Communicator, mpi4py.MPI.Intracomm
        The same ranks, for the library's algorithms and for MPI's own collectives.
    settings : Settings
    count : int
        Number of elements.
    progress : callable, told what is being measured

    Returns
    -------
    list of dict
        A row for each contestant, MPI first: ``algorithm``, ``chosen`` (the algorithm that ran),
        ``seconds`` (a list over ranks), ``wrong`` (None if not verified), ``iterations``.
    """
    contest = _Contest(comm, mpi, settings, count)
    nbytes = sum(x.nbytes for x in contest.inputs[:1])
    contestants: dict[str, Calls] = {}
    theirs = contest.theirs()
    if theirs is not None:
        contestants["MPI"] = theirs
    for name in settings.algorithms:
        contestants[name or "auto"] = contest.ours(name)
    if contest.contract.rooted:
        contestants[BARRIER] = [lambda: None]
    iterations = {}
    for label, calls in contestants.items():
        progress(f"{nbytes} bytes: {label}, warm-up")
        iterations[label] = contest.iterations(calls)
    times: dict[str, list[float]] = {label: [] for label in contestants}
    for number in range(settings.repeat):
        for label, calls in contestants.items():
            progress(f"{nbytes} bytes: {label}, block {number + 1} of {settings.repeat}")
            times[label].append(contest.block(calls, iterations[label]))
    baseline = times.pop(BARRIER, [0.0] * settings.repeat)
    rows = []
    for label, blocks in times.items():
        own = statistics.median(blocks) - statistics.median(baseline)
        seconds = mpi.allgather(max(0.0, own))
        wrong = contest.wrong(contestants[label])
        chosen = label
        if label == "auto":
            choice = comm._choose(settings.collective, None, nbytes, settings.root)
            chosen = choice.plan.source.algorithm.name
        rows.append(
            {
                "algorithm": label,
                "chosen": chosen,
                "seconds": seconds,
                "wrong": wrong,
                "iterations": iterations[label],
            }
        )
    return rows
