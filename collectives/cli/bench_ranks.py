"""The ranks' side of ``collectives bench``: measure every operation and size; rank 0 reports."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from collectives import world
from collectives.cli import bench_table, spawn
from collectives.errors import ArgumentError, CollectivesError
from collectives.measuring import candidates, gloo, state
from collectives.measuring.bench import MPI_LABEL, Bench, mpi_of
from collectives.measuring.contest import Entry, Settings
from collectives.measuring.gloo import GLOO_LABEL
from collectives.measuring.measure import Row, measure
from collectives.measuring.operations import OPERATIONS, Operation
from collectives.process import abort, binding
from collectives.text.progress import Bar


def main(options: argparse.Namespace) -> int:
    """Measure; return the exit status, the same on all ranks. Collective."""
    comm = world()
    MPI = binding.load()
    try:
        status = _main(options, comm, MPI)
    except CollectivesError as error:
        if comm.size == 1:
            raise
        # The other ranks may be waiting for this one.
        print(f"collectives: rank {comm.rank}: {error}", file=sys.stderr, flush=True)
        time.sleep(abort.FAREWELL)  # a launcher that ends the ranks may lose what they have printed
        MPI.COMM_WORLD.Abort(2)
        raise
    return status


def _main(options: argparse.Namespace, comm: Any, MPI: Any) -> int:
    comm.forget()
    mpi = mpi_of(comm)
    if not 0 <= options.root < comm.size:
        raise ArgumentError(f"--root is {options.root}, and there are {comm.size} ranks")
    if options.child is None and options.ranks not in (None, [comm.size]):
        raise ArgumentError(
            f"-n is {options.ranks}, but the launcher started {comm.size} ranks; leave -n out"
        )
    if options.buffers == "shared" and comm.size > 1 and comm.transport != "shm":
        raise ArgumentError("--buffers is shared, and the ranks share no memory")
    dtype = _dtype(options.dtype)
    first = comm.rank == 0
    bar = Bar(options.progress or sys.stderr.isatty(), first)
    facts = {**state.machine(MPI, mpi), "buffers": options.buffers}
    facts["profile"] = comm._chooser.measured is not None
    peer = None
    if options.peers:
        found = gloo.join(mpi)
        peer = None if isinstance(found, str) else found
        facts["gloo"] = f"left out, {found}" if isinstance(found, str) else found.version
    bench = Bench(comm, mpi, partial(bar.show, None), peer)
    if first:
        _print(bench_table.header(facts, state.host(), bench.has_mpi))
    rows = _tables(options, bench, dtype, bar)
    if peer is not None:
        peer.leave()
    wrong = sum(row.wrong or 0 for row in rows)
    result = {**facts, "rows": rows}
    if options.child is not None:
        if first:
            spawn.keep(options, bench_table.plain(result))
        return 0  # the parent reports the failure; a launcher would print a page of text
    if first:
        return bench_table.finish(options, [result])
    return int(wrong > 0)


def _tables(options: argparse.Namespace, bench: Bench, dtype: Any, bar: Bar) -> list[Row]:
    """Measure everything, and print tables on rank 0; return their rows. Collective."""
    comm, first = bench.comm, bench.comm.rank == 0
    found = ((MPI_LABEL, bench.has_mpi), (GLOO_LABEL, bench.gloo is not None))
    peers = [label for label, is_there in found if is_there]
    table = bench_table.columns(peers, options.peers)
    rows: list[Row] = []
    trips: list[float | None] = []  # of the current table
    before = None
    course = list(_course(options, comm.size, dtype))
    for done, (settings, asked, count, left_out) in enumerate(course):
        if settings.operation != before:
            heading = [*_state(trips), *_heading(options, settings.operation, left_out)]
            trips.clear()
            _print([*heading, *bench_table.title(table)], first)
        before = settings.operation
        bar.show(done / len(course), settings.operation)
        if comm.size > 1:
            trips.append(state.round_trip(comm, bench.mpi))
        measured = measure(bench, settings, count, asked, trips[-1] if trips else None)
        rows += measured
        bar.clear()
        _print(bench_table.lines(measured, table), first)
    _print(_state(trips), first)
    return rows


Step = tuple[Settings, int, int, list[str]]


def _course(options: argparse.Namespace, p: int, dtype: Any) -> Iterator[Step]:
    """Yield (settings, requested bytes, elements, left out), one size after the other.

    All sizes of one operation come first, then those of the next.
    """
    for name in options.operations:
        algorithms, left_out = candidates.chosen(options.algorithm, name, p)
        entries = [Entry(each, options.segment) for each in algorithms]
        if options.bits and OPERATIONS[name].reduces:
            entries.append(Entry(None, options.segment, options.bits))
        settings = Settings(
            operation=name,
            entries=tuple(entries),
            dtype=dtype,
            op=options.op,
            root=options.root,
            warmup=options.warmup,
            iters=options.iters,
            repeat=options.repeat,
            verify=bool(options.check),
            limit=options.peers,
            shared=options.buffers == "shared",
            prune=options.prune,
        )
        for size, count in _sizes(options, OPERATIONS[name], dtype.itemsize, p):
            yield settings, size, count, left_out


def _sizes(
    options: argparse.Namespace, operation: Operation, itemsize: int, p: int
) -> list[tuple[int, int]]:
    """Return (requested bytes, measured elements), each number of elements once."""
    if not operation.moves:
        return [(0, 0)]
    counts: dict[int, int] = {}
    size = options.begin
    while size <= options.end:
        counts.setdefault(operation.elements(size // itemsize, p), size)
        size = max(size + 1, min(size * options.factor, options.end))  # the last size is the end
    return [(size, count) for count, size in counts.items()]


def _heading(options: argparse.Namespace, name: str, left_out: list[str]) -> list[str]:
    """Return the lines that describe the measurement."""
    what = f"{name} {options.op.lower()}" if OPERATIONS[name].reduces else name
    return [f"# {what}", *(f"# left out: {text}" for text in left_out)]


def _state(trips: list[float | None]) -> list[str]:
    """Return the line below a table, or none above the first."""
    if not trips:
        return []
    was_busy = any(state.name(seconds) == "busy" for seconds in trips)
    advice = "; the ranks shared cores with others: measure again on a quiet machine"
    return [f"# state: {state.text(trips)}{advice if was_busy else ''}"]


def _dtype(name: str) -> Any:
    try:
        if name == "bfloat16":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(name)
    except ImportError:
        raise ArgumentError("--dtype bfloat16 needs ml_dtypes: pip install ml_dtypes") from None
    except TypeError:
        raise ArgumentError(f"--dtype is {name!r}, which is not a NumPy dtype") from None


def _print(texts: list[str], wanted: bool = True) -> None:
    if wanted and texts:
        print("\n".join(texts), flush=True)
