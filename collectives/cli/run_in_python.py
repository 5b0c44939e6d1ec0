"""``collectives run`` without the core: start a program on n ranks of this host."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from collectives import coreless
from collectives.cli import arguments
from collectives.errors import ArgumentError

RANKS = ("-n", "-np", "--ranks", "--num-proc")
FLAGS = ("--prefix", "--no-mpi", "-h", "--help")


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "run",
        help="start a program on n ranks",
        usage="collectives run -n N [--prefix] program.py [arguments]",
        description="Start a program on n ranks of this host, which run in Python. An exception on "
        "one rank ends all. The exit status is that of the first rank that fails. All other "
        "options need the core.",
    )
    parser.add_argument(*RANKS, dest="ranks", metavar="N", type=arguments.positive)
    parser.add_argument(
        "--prefix", action="store_true", help="print the rank before each line of output"
    )
    parser.add_argument("--no-mpi", action="store_true", help="without MPI, as always here")
    parser.set_defaults(main=main)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the words of the command from those of the program that it starts. Local."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "--"):
        option = words[at].partition("=")[0]
        if option not in RANKS + FLAGS:
            raise coreless.error(f"collectives run {option}")
        at += 2 if words[at] in RANKS else 1
    rest = at + 1 if words[at : at + 1] == ["--"] else at
    return list(words[:at]), list(words[rest:])


def main(options: argparse.Namespace) -> int:
    """Start the ranks, and wait for their end."""
    program: list[str] = options.program
    if program[:1] in (["python"], ["python3"]) and not os.path.exists(program[0]):
        del program[0]
    arguments.check_program(program)
    if options.ranks is None:
        raise ArgumentError("run needs the number of ranks: -n N")
    sys.stdout.flush()
    from collectives.slow import job

    return job.run(options.ranks, program, options.prefix)
