"""The ranks that a subcommand starts for its work, and their report."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collectives.cli import run
from collectives.errors import CollectivesError
from collectives.launch import launcher, local, session
from collectives.text import files

RANK = "from collectives.cli import main; sys.exit(main())"

Starter = Callable[[int, Sequence[str]], int]  # runs ranks and returns their exit status


def add_child(parser: argparse.ArgumentParser) -> None:
    """Add the hidden options for the ranks: the report's file, and whether to show progress."""
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--progress", action="store_true", help=argparse.SUPPRESS)


def keep(options: argparse.Namespace, report: dict[str, Any]) -> None:
    """Write the ranks' report for the command that has started them. It may end early. Local."""
    files.write(options.child, json.dumps(report))


def on_each(
    options: argparse.Namespace,
    needed: int,
    told: Callable[[int], Sequence[str]] = lambda n: (),
) -> tuple[int, list[dict[str, Any]]]:
    """Run this command on each number of ranks, until one fails; return its exit status, and all
    reports. Without a signal, at least `needed` reports must exist. Local.
    """
    start = _starter(options)
    reports: list[dict[str, Any]] = []
    for n in options.ranks:
        status, report = _spawn(start, n, options, told(n))
        reports += [] if report is None else [report]
        if status or report is None:
            break
    if len(reports) < needed and status < 128:
        raise CollectivesError(f"the {n} ranks ended without a result, exit status {status}")
    return status, reports


def _starter(options: argparse.Namespace) -> Starter:
    """Return the function that runs this command on ranks: by mpiexec, or without MPI."""
    run.check_launch(options)
    if options.no_mpi:
        return lambda n, words: local.call(n, [*launcher.code_words(RANK), *words])
    mpiexec = launcher.find(run.library(), options.mpiexec)
    program = launcher.rank_program(RANK)
    return lambda n, words: session.call(
        mpiexec.command(n, [*program, *words], options.mpiexec_args)
    )


def _spawn(
    start: Starter, n: int, options: argparse.Namespace, told: Sequence[str]
) -> tuple[int, dict[str, Any] | None]:
    """Run this command on `n` ranks; return its exit status, and their report."""
    with tempfile.TemporaryDirectory(prefix="collectives-") as folder:
        path = Path(folder, "report.json")
        words = [*options.words, "--child", str(path), *told]
        if sys.stderr.isatty():
            words.append("--progress")
        sys.stdout.flush()
        try:
            status = start(n, words)
        except KeyboardInterrupt:
            status = 130
        report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return status, report
