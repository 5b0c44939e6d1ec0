"""Ranks that a subcommand starts to do its work, and the report that they write."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collectives.launch import launcher, session

RANK = "from collectives.cli import main; sys.exit(main())"


def add_child(parser: argparse.ArgumentParser) -> None:
    """Add the hidden options for the ranks: the report's file, and whether to show progress."""
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--progress", action="store_true", help=argparse.SUPPRESS)


def spawn(
    starter: launcher.Launcher, n: int, words: Sequence[str], extra: str, told: Sequence[str] = ()
) -> tuple[int, dict[str, Any] | None]:
    """Run this command with the same `words` on `n` ranks. Local."""
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
