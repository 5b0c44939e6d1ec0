"""The measurement: what runs in the ranks of ``collectives bench``.

How time is taken
-----------------
A *block* is some iterations, back to back, after a barrier; the ranks' clocks are read at its two
ends, and the time of one iteration is the block's time divided by their number. So the skew with
which ranks leave the barrier is divided by that number as well.

- Where every rank needs something of every other (*allreduce, barrier, allgather,
  reduce_scatter, alltoall*), no rank can begin an iteration before all have begun the one before,
  so the block is a chain of complete operations. In a *sendrecv* a rank waits for its neighbour,
  and the block is what nccl-tests measures.
- *reduce, broadcast, gather, scatter, scan, exscan*: nothing keeps a rank from running ahead, and
  what is measured would be a pipeline's throughput. Each iteration is followed by MPI's barrier,
  so that it lasts until the last rank is done; the barriers alone are measured in the same way in
  each round of blocks, and their time is subtracted. Differences below the barrier's own noise
  mean nothing.

Blocks of MPI's own collective, of other peers and of the algorithms alternate, and medians over the
rounds of blocks are reported, so that a drift of the machine hits all alike. Iterations walk over
several buffers with different contents where these are small enough. Results are verified outside
the timed blocks, from poisoned outputs, by a run of iterations without a pause between them.

In the same turns, if that is wanted, all ranks at once copy as many bytes as the array has, from
private memory to private memory and past the cache: what memory allows at best to an operation in
which each rank reads a large array and writes one.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from collectives import Communicator, reductions
from collectives.cli import patterns, state
from collectives.cli.gloo import GLOO_LABEL, Gloo, Prepared
from collectives.cli.operations import OPERATIONS, Arrays, Operation

__all__ = ["COPY", "MPI_LABEL", "PEERS", "Bench", "Entry", "Settings"]

BLOCK = 0.03  # seconds that a block should last
FEWEST, MOST = 5, 2000  # iterations in a block
HOPELESS = 4  # or p, if that is more: so many times the fastest's time is not mended by segments
WARM = 0.003  # seconds after which the trial that chooses the iterations has warmed up enough
SMALL, LARGE = 256 << 10, 64 << 20  # bytes up to which there are four buffers, and two

MPI_LABEL, BARRIER, COPY = "MPI", "(barrier)", "(copy)"
PEERS = (MPI_LABEL, GLOO_LABEL)  # the labels of those that are no algorithms of ours

Calls = Sequence[Callable[[], Any]]


class Entry(NamedTuple):
    """What takes part beside MPI's own: an algorithm, with the bytes of its segments.

    None is the library's choice, of either.
    """

    algorithm: str | None = None
    segment: int | None = None

    def __str__(self) -> str:
        name = self.algorithm or "auto"
        if self.segment is None:
            return name
        for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
            if self.segment and self.segment % size == 0:
                return f"{name}/{self.segment // size}{unit}"
        return f"{name}/{self.segment}"


class Settings(NamedTuple):
    """What is measured, and how.

    Attributes
    ----------
    operation : str
        One of `OPERATIONS`.
    entries : tuple of Entry
    dtype, op, root
        As the call takes them.
    warmup, iters, repeat : int
        Iterations before all, in a block (None: by the time of a trial), and blocks of each.
    verify : bool
        Whether results are compared.
    peer : bool
        Whether MPI's own takes part, and the other peers that there are.
    limit : bool
        Whether copies are measured, too.
    block : float
        Seconds that a block should last.
    fewest : int
        Iterations that a block has at least.
    prune : float or None
        What takes more than this many times the fastest's time in its trial is left out.
    """

    operation: str
    entries: tuple[Entry, ...]
    dtype: Any
    op: str = "SUM"
    root: int = 0
    warmup: int = 3
    iters: int | None = None
    repeat: int = 5
    verify: bool = True
    peer: bool = True
    limit: bool = False
    block: float = BLOCK
    fewest: int = FEWEST
    prune: float | None = None


class Bench:
    """The ranks that measure. Collective.

    Parameters
    ----------
    comm, mpi : Communicator, mpi4py.MPI.Intracomm
        The same ranks, for the library's algorithms and for MPI's own collectives.
    progress : callable
        Told what is being measured.
    gloo : Gloo, optional
        The peer beside MPI's own.
    """

    def __init__(
        self,
        comm: Communicator,
        mpi: Any,
        progress: Callable[[str], None] = lambda text: None,
        gloo: Gloo | None = None,
    ) -> None:
        from mpi4py import MPI

        self.comm, self.mpi, self.progress, self.MPI = comm, mpi, progress, MPI
        self.gloo = gloo
        self._segmented: dict[int | None, Communicator] = {None: comm}

    def communicator(self, segment: int | None) -> Communicator:
        """Return a communicator that decides on segments of this size. Collective.

        A communicator keeps its decisions, so that each size of segments has one of its own.
        """
        if segment not in self._segmented:
            self._segmented[segment] = self.comm.dup()
        return self._segmented[segment]

    def peers(self, arrays: Arrays) -> dict[str, Prepared]:
        """Prepare the calls of all peers that have one. Collective."""
        theirs = arrays.theirs(self.mpi, self.MPI)
        found = {} if theirs is None else {MPI_LABEL: Prepared(theirs)}
        prepared = None if self.gloo is None else self.gloo.prepare(arrays)
        if prepared is not None:
            found[GLOO_LABEL] = prepared
        return found

    def measure(self, settings: Settings, count: int) -> list[dict[str, Any]]:
        """Measure one size. Collective.

        Parameters
        ----------
        settings : Settings
        count : int
            Number of elements; see `Operation.elements`.

        Returns
        -------
        list of dict
            A row for each contestant, peers first: ``entry`` (None for a peer, and for the copies),
            ``algorithm`` (its label; `COPY`), ``chosen`` (the algorithm that ran), ``seconds`` (a
            list over ranks), ``noise`` (seconds by which blocks differ from their median, in the
            median), ``blocks`` (seconds of each block, the median over ranks), ``wrong`` (None if
            not verified), ``iterations``.
        """
        contest = _Contest(self, settings, count)
        times, iterations = contest.run()
        barriers = times.pop(BARRIER, [0.0])
        baseline = statistics.median(barriers)
        rows = []
        for label, blocks in times.items():
            chained = contest.has_barriers(label)
            own = [block - baseline if chained else block for block in blocks]
            everybody = self.mpi.allgather(own)
            noise = self.mpi.allgather(_noise(own) + (_noise(barriers) if chained else 0.0))
            entry = contest.entries.get(label)
            rows.append(
                {
                    "entry": entry,
                    "algorithm": label,
                    "chosen": contest.chosen(label),
                    "seconds": [max(0.0, statistics.median(each)) for each in everybody],
                    "noise": statistics.median(noise),
                    "blocks": [statistics.median(each) for each in zip(*everybody, strict=True)],
                    "wrong": contest.wrong(label),
                    "iterations": iterations[label],
                }
            )
        return rows


class _Contest:
    """One size: the arrays, and the contestants as lists of prepared calls."""

    def __init__(self, bench: Bench, settings: Settings, count: int) -> None:
        self.bench, self.settings, self.count = bench, settings, count
        self.comm, self.mpi = bench.comm, bench.mpi
        self.operation: Operation = OPERATIONS[settings.operation]
        self.op: reductions.Reduction = getattr(reductions, settings.op)
        self.nbytes = count * np.dtype(settings.dtype).itemsize
        number = 4 if self.nbytes <= SMALL else 2 if self.nbytes <= LARGE else 1
        if not self.operation.moves:
            number = 1
        place = self.comm.size, self.comm.rank, settings.root, self.op
        self.arrays = [
            Arrays(self.operation, count, *place, patterns.filled(*self.input(k)))
            for k in range(number)
        ]
        self.entries: dict[str, Entry] = {}
        self.calls: dict[str, Calls] = {}
        self.refills: dict[str, Calls] = {}
        if settings.peer:
            prepared = [bench.peers(each) for each in self.arrays]
            for label in prepared[0]:
                self.calls[label] = [each[label].call for each in prepared]
                refills = [each[label].refill for each in prepared]
                self.refills[label] = [refill for refill in refills if refill is not None]
        for entry in settings.entries:
            label = str(entry)
            comm = bench.communicator(entry.segment)
            self.entries[label] = entry
            self.calls[label] = [each.ours(comm, entry.algorithm) for each in self.arrays]
        if settings.limit and self.nbytes:
            self.calls[COPY] = state.copies(self.nbytes, number)
        if self.operation.runs_ahead:
            self.calls[BARRIER] = [lambda: None]

    @property
    def folds(self) -> reductions.Reduction | None:
        return self.op if self.operation.reduces else None

    def input(self, k: int) -> tuple[int, Any, int]:
        """Return the length of this rank's input of buffer k, one period, and where it begins."""
        rank, p = self.comm.rank, self.comm.size
        parts = self.operation.contract.inputs(rank, p, self.settings.root)
        pieces = list(self.operation.pieces(parts, self.count, p))
        op = None if self.folds is None else self.op.name
        values = patterns.period(rank, p, k, self.settings.dtype, op)
        first = pieces[0][1] if pieces else 0
        return sum(size for _, _, size in pieces), values, first

    def chosen(self, label: str) -> str:
        """Return the name of the algorithm that runs."""
        entry = self.entries.get(label)
        if entry is None:
            return label
        return entry.algorithm or self.operation.choice(self.comm, self.nbytes)

    def has_barriers(self, label: str) -> bool:
        """Say whether each iteration of a contestant ends with a barrier."""
        return self.operation.runs_ahead and label != COPY

    def run(self) -> tuple[dict[str, list[float]], dict[str, int]]:
        """Return this rank's seconds of an iteration in each block, and the iterations."""
        settings = self.settings
        size = f"{settings.operation} of {self.nbytes} bytes"
        iterations: dict[str, int] = {}
        trials: dict[str, float] = {}
        for label in self.calls:
            self.bench.progress(f"{size}: {label}, warm-up")
            if self._hopeless(label, trials):
                continue
            with _segment(self.entries.get(label, Entry()).segment):
                iterations[label], seconds = self.trial(label)
            if label in self.entries:
                trials[label] = seconds
        keep = [label for label in iterations if self._near(label, trials)]
        times: dict[str, list[float]] = {label: [] for label in keep}
        for number in range(settings.repeat):
            for label in keep:
                self.bench.progress(f"{size}: {label}, block {number + 1} of {settings.repeat}")
                times[label].append(self.block(label, iterations[label]))
        return times, iterations

    def _near(self, label: str, trials: dict[str, float]) -> bool:
        """Say whether an entry was fast enough in its trial to be measured."""
        prune = self.settings.prune
        if prune is None or label not in trials or self.entries[label].algorithm is None:
            return True
        return trials[label] <= prune * min(trials.values())

    def _hopeless(self, label: str, trials: dict[str, float]) -> bool:
        """Say whether not even a trial is worth it: a segmented entry far behind without them."""
        entry = self.entries.get(label)
        if self.settings.prune is None or entry is None or not entry.segment:
            return False
        whole = trials.get(str(Entry(entry.algorithm, 0)), 0.0)
        return whole > max(HOPELESS, self.comm.size) * min(trials.values(), default=0.0)

    def block(self, label: str, iterations: int) -> float:
        """Return this rank's seconds for one iteration."""
        calls, barrier = self.calls[label], self.mpi.Barrier
        barrier()
        if self.has_barriers(label):
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

    def trial(self, label: str) -> tuple[int, float]:
        """Warm up; return how many iterations make a block, and the seconds of one."""
        settings = self.settings
        self.block(label, max(settings.warmup, len(self.calls[label])))
        count = min(2, settings.fewest)
        while True:
            seconds = self.agreed(self.block(label, count))
            if settings.iters is not None:
                return settings.iters, seconds
            if seconds * count >= WARM or count >= MOST:
                if settings.prune is not None:
                    # Nothing should be left out because of one disturbance.
                    seconds = min(seconds, self.agreed(self.block(label, count)))
                wanted = round(settings.block / max(seconds, 1e-9))
                return max(settings.fewest, min(MOST, wanted)), seconds
            count *= 4

    def wrong(self, label: str) -> int | None:
        """Run from poisoned outputs, and count wrong elements on all ranks, inputs included.

        None where there is nothing to verify, or it is not wanted.
        """
        if not self.settings.verify or not self.operation.moves or label == COPY:
            return None
        for each in self.arrays:
            if each.out is not each.x or not each.has_input:
                patterns.poison(each.out)
        for refill in self.refills.get(label, ()):
            refill()
        self.mpi.Barrier()
        for call in self.calls[label]:
            call()
        return int(self.mpi.allreduce(sum(map(self._wrong, range(len(self.arrays))))))

    def _wrong(self, k: int) -> int:
        """Count wrong elements of buffer k."""
        each, settings, p = self.arrays[k], self.settings, self.comm.size
        contract, rank = self.operation.contract, self.comm.rank
        wrong = 0
        if each.has_input:
            wrong += patterns.different(each.x, *self.input(k)[1:])
        tolerance = 0.01 if self.folds and self.op.average else 0.0
        at = 0
        for part, first, size in each.wanted():
            sources = contract.sources(part, rank, p, settings.root)
            values = patterns.folded(sources, p, k, settings.dtype, self.folds)
            wrong += patterns.different(each.out[at : at + size], values, first, tolerance)
            at += size
        return wrong


def _noise(blocks: list[float]) -> float:
    """Return the median distance of the blocks from their median."""
    middle = statistics.median(blocks)
    return statistics.median(abs(block - middle) for block in blocks)


@contextmanager
def _segment(nbytes: int | None) -> Iterator[None]:
    """Have communicators decide on segments of this size, if any, while this lasts."""
    if nbytes is None:
        yield
        return
    name = "COLLECTIVES_SEGMENT"
    before = os.environ.get(name)
    os.environ[name] = str(nbytes)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
