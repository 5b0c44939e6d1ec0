"""What several subcommands take: byte sizes, numbers of ranks, a file of algorithms."""

from __future__ import annotations

import argparse
import re
import runpy
from pathlib import Path

from collectives.errors import ArgumentError, CollectivesError

__all__ = ["add_load", "counts", "load", "nbytes", "positive"]

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def nbytes(text: str) -> int:
    """Read a number of bytes: ``8``, ``64K``, ``1MiB``; the letters are powers of 1024. Local."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:I?B)?", text.strip().upper())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes such as 8, 64K or 1M")
    return int(match[1]) * UNITS[match[2]]


def positive(text: str) -> int:
    """Read a whole number of at least 1. Local."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def counts(text: str) -> list[int]:
    """Read numbers of ranks: ``2,4``. Local."""
    return [positive(word) for word in text.split(",")]


def add_load(parser: argparse.ArgumentParser) -> None:
    """Add ``--load``."""
    parser.add_argument(
        "--load",
        metavar="FILE.py",
        action="append",
        default=[],
        help="run this file first; the algorithms that it registers can be named",
    )


def load(paths: list[str]) -> None:
    """Run files that register algorithms. Local.

    Raises
    ------
    ArgumentError
        If a file cannot be read, or raises an error.
    """
    for path in paths:
        if not Path(path).is_file():
            raise ArgumentError(f"--load {path}: there is no such file")
        try:
            runpy.run_path(path, run_name=Path(path).stem)
        except CollectivesError:
            raise
        except Exception as error:
            raise ArgumentError(f"--load {path}: {type(error).__name__}: {error}") from error
