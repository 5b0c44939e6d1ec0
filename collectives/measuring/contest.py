"""One size of ``collectives bench``: the contestants, their trials and blocks, and the results.

`measure` describes how times are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives import reductions
from collectives.choice.timing import Calls, block
from collectives.measuring import patterns, state
from collectives.measuring.bench import Bench
from collectives.measuring.operations import OPERATIONS, Arrays, Operation
from collectives.process import environment

BLOCK = 0.03  # seconds that a block should last
FEWEST, MOST = 5, 2000  # iterations in a block
WARM = 0.003  # seconds to warm up in the trial that determines the number of iterations
SMALL, LARGE = 256 << 10, 64 << 20  # bytes up to which there are four buffers, and two

BARRIER, COPY = "(barrier)", "(copy)"


class Entry(NamedTuple):
    """A contestant other than the peers: an algorithm, with the bytes of its segments.

    For either, None means the library's choice. `bits` are as for `Communicator`.
    """

    algorithm: str | None = None
    segment: int | None = None
    bits: str | None = None

    def __str__(self) -> str:
        name = self.algorithm or (f"bits={self.bits}" if self.bits else "auto")
        if self.segment is None:
            return name
        for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
            if self.segment and self.segment % size == 0:
                return f"{name}/{self.segment // size}{unit}"
        return f"{name}/{self.segment}"


class Contestant(NamedTuple):
    """A contestant: its calls, which run in turn, and their arrays, if results are verified."""

    calls: Calls
    arrays: Sequence[Arrays] = ()
    refills: Sequence[Callable[[], Any] | None] = ()
    entry: Entry | None = None  # None for a peer


class Settings(NamedTuple):
    """The settings of a measurement.

    Attributes
    ----------
    operation : str
        One of `OPERATIONS`.
    entries : tuple of Entry
    dtype, op, root
        The arguments of the call.
    warmup, iters, repeat : int
        Iterations before the first block, iterations in a block (None: determined by a trial), and
        blocks of each contestant.
    verify : bool
        Whether results are verified.
    peer : bool
        Whether MPI's own collective and the other peers take part.
    limit : bool
        Whether copies are measured, too.
    shared : bool
        Whether the arrays of the entries are in memory that the ranks share.
    prune : float or None
        Entries that take more than this many times the fastest time in their trial are left out.
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
    shared: bool = False
    prune: float | None = None


class Contest:
    """One size: the arrays, and the contestants as lists of prepared calls."""

    bench: Bench
    settings: Settings
    count: int
    mpi: Any

    def __init__(self, bench: Bench, settings: Settings, count: int) -> None:
        self.bench, self.settings, self.count = bench, settings, count
        self.comm, self.mpi = bench.comm, bench.mpi
        self.operation: Operation = OPERATIONS[settings.operation]
        self.op: reductions.Reduction = getattr(reductions, settings.op)
        self.nbytes: int = count * np.dtype(settings.dtype).itemsize
        self.contestants: dict[str, Contestant] = {}
        private = self._arranged(np.empty)
        if settings.peer:
            prepared = [bench.peers(each) for each in private]
            for label in prepared[0]:
                calls = [each[label].call for each in prepared]
                refills = [each[label].refill for each in prepared]
                self.contestants[label] = Contestant(calls, private, refills)
        self._private = private
        self._shared: dict[int | None, list[Arrays]] = {}
        for entry in settings.entries:
            self.enter(entry)
        if settings.limit and self.nbytes:
            self.contestants[COPY] = Contestant(state.copies(self.nbytes, self._number))
        if self.operation.runs_ahead:
            self.contestants[BARRIER] = Contestant([lambda: None])

    def enter(self, entry: Entry) -> None:
        """Let `entry` take part. Collective."""
        comm = self.bench.communicator(entry.segment, entry.bits)
        comm._engine.rest(True)  # no trials in timed calls
        if self.settings.shared and entry.segment not in self._shared:
            room = self.bench.room(entry.segment)
            room.clear(2 * self._number, self.nbytes)
            self._shared[entry.segment] = self._arranged(room.empty)
        arrays = self._shared.get(entry.segment, self._private)
        calls = [each.ours(comm, entry.algorithm) for each in arrays]
        self.contestants[str(entry)] = Contestant(calls, arrays, entry=entry)

    @property
    def entries(self) -> list[Entry]:
        """The contestants that are the library's."""
        return [each.entry for each in self.contestants.values() if each.entry is not None]

    @property
    def _folds(self) -> reductions.Reduction | None:
        return self.op if self.operation.reduces else None

    @property
    def _number(self) -> int:
        """The number of buffers that the iterations use in turn."""
        if not self.operation.moves:
            return 1
        return 4 if self.nbytes <= SMALL else 2 if self.nbytes <= LARGE else 1

    def _arranged(self, empty: Callable[..., NDArray[Any]]) -> list[Arrays]:
        """Return all buffers, in arrays from `empty`."""
        place = self.comm.size, self.comm.rank, self.settings.root, self.op
        return [
            Arrays(
                self.operation, self.count, *place, patterns.filled(*self._input(k), empty), empty
            )
            for k in range(self._number)
        ]

    def _input(self, k: int) -> tuple[int, Any, int]:
        """Return the length of this rank's input in buffer k, one period, and its first element."""
        rank, p = self.comm.rank, self.comm.size
        parts = self.operation.contract.inputs(rank, p, self.settings.root)
        pieces = list(self.operation.pieces(parts, self.count, p))
        op = None if self._folds is None else self.op.name
        values = patterns.period(rank, p, k, self.settings.dtype, op)
        first = pieces[0][1] if pieces else 0
        return sum(size for _, _, size in pieces), values, first

    def chosen(self, label: str) -> str:
        """Return the name of the algorithm that runs for `label`. Local."""
        entry = self.contestants[label].entry
        if entry is None:
            return label
        comm = self.bench.communicator(entry.segment, entry.bits)
        return entry.algorithm or self.operation.choice(comm, self.nbytes)

    def has_barriers(self, label: str) -> bool:
        """Return whether each iteration of `label` ends with a barrier. Local."""
        return self.operation.runs_ahead and label != COPY

    def run(self) -> tuple[dict[str, list[float]], dict[str, int]]:
        """Return this rank's seconds per iteration in each block, and the numbers of iterations.
        Collective.
        """
        settings = self.settings
        size = f"{settings.operation} of {self.nbytes} bytes"
        iterations: dict[str, int] = {}
        trials: dict[str, float] = {}
        for label, each in self.contestants.items():
            self.bench.progress(f"{size}: {label}, warm-up")
            with segmented(each.entry.segment if each.entry else None):
                if each.entry is not None:
                    self.settle(label, self.bench.communicator(each.entry.segment, each.entry.bits))
                iterations[label], seconds = self._trial(label)
            if each.entry:
                trials[label] = seconds
        keep = [label for label in iterations if self._near(label, trials)]
        times: dict[str, list[float]] = {label: [] for label in keep}
        for number in range(settings.repeat):
            for label in keep:
                self.bench.progress(f"{size}: {label}, block {number + 1} of {settings.repeat}")
                times[label].append(self.block(label, iterations[label]))
        return times, iterations

    def settle(self, label: str, comm: Any) -> None:
        """Time the calls of a contestant until the library has learned from them. Collective."""
        calls = cycle(self.contestants[label].calls)
        meet = self.mpi.Barrier if self.has_barriers(label) else None

        def call() -> None:
            next(calls)()
            if meet is not None:
                meet()

        with self.bench.watch:
            comm._engine.settle(call)

    def _near(self, label: str, trials: dict[str, float]) -> bool:
        """Return whether an entry was fast enough in its trial to be measured."""
        prune, entry = self.settings.prune, self.contestants[label].entry
        if prune is None or entry is None or entry.algorithm is None:
            return True
        return trials[label] <= prune * min(trials.values())

    def block(self, label: str, iterations: int) -> float:
        """Run `iterations` of `label`; return this rank's seconds for one of them. Collective."""
        calls, ends = self.contestants[label].calls, self.has_barriers(label)
        with self.bench.watch:
            return block(calls, iterations, self.mpi.Barrier, ends)

    def agreed(self, seconds: float) -> float:
        """Return the `seconds` of the slowest rank, on all ranks. Collective."""
        with self.bench.watch:
            slowest: float = max(self.mpi.allgather(seconds))
        return slowest

    def _trial(self, label: str) -> tuple[int, float]:
        """Warm up; return the number of iterations for a block, and the seconds of one."""
        settings = self.settings
        self.block(label, max(settings.warmup, len(self.contestants[label].calls)))
        count = 2
        while True:
            seconds = self.agreed(self.block(label, count))
            if settings.iters is not None:
                return settings.iters, seconds
            if seconds * count >= WARM or count >= MOST:
                if settings.prune is not None:
                    # No contestant should be left out because of a single disturbance.
                    seconds = min(seconds, self.agreed(self.block(label, count)))
                wanted = round(BLOCK / max(seconds, 1e-9))
                return max(FEWEST, min(MOST, wanted)), seconds
            count *= 4

    def wrong(self, label: str) -> int | None:
        """Run `label` from poisoned outputs; count wrong elements on all ranks. Collective.

        Changed elements of inputs count, too. Return None if there is nothing to verify, or
        verification is off.
        """
        calls, arrays, refills, _ = self.contestants[label]
        if not self.settings.verify or not self.operation.moves or not arrays:
            return None
        for each in arrays:
            if each.out is not each.x or not each.has_input:
                patterns.poison(each.out)
        for refill in refills:
            if refill is not None:
                refill()
        self.mpi.Barrier()
        for call in calls:
            call()
        wrong = sum(self._wrong(k, each) for k, each in enumerate(arrays))
        return int(self.mpi.allreduce(wrong))

    def _wrong(self, k: int, each: Arrays) -> int:
        """Count wrong elements of buffer k."""
        settings, p = self.settings, self.comm.size
        contract, rank = self.operation.contract, self.comm.rank
        wrong = 0
        if each.has_input:
            wrong += patterns.different(each.x, *self._input(k)[1:])
        tolerance = 0.01 if self._folds and self.op.average else 0.0
        at = 0
        for part, first, size in each.wanted():
            sources = contract.sources(part, rank, p, settings.root)
            values = patterns.folded(sources, p, k, settings.dtype, self._folds)
            wrong += patterns.different(each.out[at : at + size], values, first, tolerance)
            at += size
        return wrong


def segmented(nbytes: int | None) -> AbstractContextManager[None]:
    """Return a context in which communicators choose segments of this size, if any. Local."""
    return environment.having(COLLECTIVES_SEGMENT=None if nbytes is None else str(nbytes))
