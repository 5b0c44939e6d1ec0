"""Ranks that a subcommand starts for itself, and the report that they leave."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collectives.launch import launcher, session

__all__ = ["add_child", "spawn"]

RANK = "from collectives.cli import main; sys.exit(main())"


def add_child(parser: argparse.ArgumentParser) -> None:
    """Add what the command tells its ranks: where the report goes, and whether to show progress."""
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--progress", action="store_true", help=argparse.SUPPRESS)


def spawn(
    starter: launcher.Launcher, n: int, words: Sequence[str], extra: str, told: Sequence[str] = ()
) -> tuple[int, dict[str, Any] | None]:
    """Run this command with the same `words` on `n` ranks. Local.

    Parameters
    ----------
    starter : Launcher
    n : int
    words : sequence of str
        Of the command line.
    extra : str
        More arguments of mpiexec.
    told : sequence of str
        Options that only the ranks get.

    Returns
    -------
    status : int
        That of the launcher, 130 after Ctrl-C.
    report : dict or None
        What rank 0 has written, if it came to that.
    """
    with tempfile.TemporaryDirectory(prefix="collectives-") as folder:
        path = Path(folder, "report.json")
        program = [*launcher.rank_program(RANK), *words, "--child", str(path), *told]
        if sys.stderr.isatty():
            program.append("--progress")
        sys.stdout.flush()
        try:
            status = session.call(starter.command(n, program, extra))
        except KeyboardInterrupt:
            status = 130
        report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return status, report
