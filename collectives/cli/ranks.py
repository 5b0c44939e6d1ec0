"""The ranks' side of ``collectives bench``: measure every size; rank 0 reports."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from collectives import world
from collectives.cli import arguments, measure, report
from collectives.errors import ArgumentError, CollectivesError

__all__ = ["main"]


def main(options: argparse.Namespace) -> int:
    """Measure; return the exit status, the same on all ranks. Collective."""
    if options.segment is not None:
        os.environ["COLLECTIVES_SEGMENT"] = str(options.segment)
    comm = world()
    from mpi4py import MPI

    try:
        status = _main(options, comm, MPI)
    except CollectivesError as error:
        if comm.size == 1:
            raise
        # The others may be waiting for this rank.
        print(f"collectives: rank {comm.rank}: {error}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(2)
        raise
    return status


def _main(options: argparse.Namespace, comm: Any, MPI: Any) -> int:
    comm.forget()
    mpi = comm.mpi.Dup()
    mpi.Set_errhandler(MPI.ERRORS_RETURN)
    if not 0 <= options.root < comm.size:
        raise ArgumentError(f"--root is {options.root}, and there are {comm.size} ranks")
    if options.child is None and options.ranks not in (None, [comm.size]):
        raise ArgumentError(
            f"-n is {options.ranks}, but mpiexec started {comm.size} ranks; leave -n out"
        )
    algorithms, left_out = arguments.chosen(options, comm.size)
    dtype = _dtype(options.dtype)
    settings = measure.Settings(
        collective=options.collective,
        algorithms=tuple(algorithms),
        dtype=dtype,
        op=options.op,
        root=options.root,
        warmup=options.warmup,
        iters=options.iters,
        repeat=options.repeat,
        verify=bool(options.check),
    )
    first = comm.rank == 0
    facts = report.machine(MPI, mpi)
    if first:
        what = options.collective
        if options.collective in ("allreduce", "reduce"):
            what += f" {options.op.lower()}"
        _print(
            [*report.header(facts, report.host(), what), *(f"# left out: {t}" for t in left_out)]
        )
        _print(report.title())
    rows: list[dict[str, Any]] = []
    line = _Progress(first and (options.progress or sys.stderr.isatty()))
    for count in _counts(options, dtype.itemsize):
        measured = measure.measure(comm, mpi, settings, count, line.show)
        nbytes = count * dtype.itemsize
        derived = report.rows(measured, options.collective, comm.size, nbytes, count, options.dtype)
        rows += derived
        line.clear()
        if first:
            _print(report.lines(derived))
    wrong = sum(row["wrong"] or 0 for row in rows)
    result = {**facts, "rows": rows}
    if options.child is not None:
        if first:
            Path(options.child).write_text(json.dumps(result), encoding="utf-8")
        return 0  # the parent says what is wrong; a launcher would make a page of it
    if first:
        return report.finish(options, [result])
    return int(wrong > 0)


def _counts(options: argparse.Namespace, itemsize: int) -> list[int]:
    """Return the numbers of elements to measure: at least one, each once."""
    if options.collective == "barrier":
        return [0]
    counts = []
    size = options.begin
    while size <= options.end:
        counts.append(max(1, size // itemsize))
        size = max(size * options.factor, size + 1)
    return list(dict.fromkeys(counts))


def _dtype(name: str) -> Any:
    try:
        if name == "bfloat16":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(name)
    except ImportError:
        raise ArgumentError("--dtype bfloat16 needs ml_dtypes: pip install ml_dtypes") from None
    except TypeError:
        raise ArgumentError(f"--dtype is {name!r}, which is no dtype of NumPy") from None


def _print(texts: list[str]) -> None:
    print("\n".join(texts), flush=True)


class _Progress:
    """One line on the terminal that is written over and over."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted

    def show(self, text: str) -> None:
        if self.wanted:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        self.show("")
