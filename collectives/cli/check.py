"""``collectives check``: prove algorithms, also those in files of MSCCL."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from collectives.algorithms import get
from collectives.cli import arguments
from collectives.errors import ProofError
from collectives.plans.proof import check
from collectives.text.words import count


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "check",
        help="prove algorithms, also those in XML files of MSCCL",
        description="Prove algorithms. The exit status is 1 if one is wrong, and the text says "
        "where: for an XML file of MSCCL, the steps with their lines, or the chunk, the data that "
        "it holds, and the data that belongs there.",
    )
    parser.add_argument(
        "algorithms",
        metavar="ALGORITHM|FILE",
        nargs="+",
        help="a name such as ring, kary:8 or broadcast/tree, or a file: " + arguments.FILES,
    )
    arguments.add_place(parser)
    arguments.add_load(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Print a verdict for each algorithm."""
    arguments.load(options.load)
    status = 0
    for text in options.algorithms:
        try:
            for line in _verdict(text, options):
                print(line, flush=True)
        except ProofError as error:
            print(f"wrong: {error}", file=sys.stderr, flush=True)
            status = 1
    return status


def _verdict(text: str, options: argparse.Namespace) -> list[str]:
    """Prove an algorithm; return the text for a correct one."""
    lines = []
    if text.endswith(".xml"):
        from collectives import msccl

        reading = msccl.read(text)
        row = reading.algorithm
        told = f"{count(reading.steps, 'step')} and {count(reading.messages, 'message')} of MSCCL"
        if reading.unused:
            told += f", of which {reading.unused} carry nothing that an output needs"
        lines.append(f"{text}: {told}")
        if reading.overwrites:
            lines.append(f"{text}: it overwrites the input of a call that is not in place")
    else:
        collective, name, _ = arguments.resolve(text)
        row = get(collective, name)
    row, p = arguments.placed(row, options)
    return [*lines, f"proven: {str(check(row, p=p, root=options.root, record=False))[10:-1]}"]
