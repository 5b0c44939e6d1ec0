"""``collectives export``: write an algorithm in the format of another library."""

from __future__ import annotations

import argparse
from typing import Any

from collectives import msccl
from collectives.algorithms import get
from collectives.cli import arguments
from collectives.text import files


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "export",
        help="write an algorithm as XML of MSCCL",
        description="Write an algorithm for a number of ranks in the format of another library.",
    )
    parser.add_argument(
        "algorithm",
        metavar="ALGORITHM|FILE",
        help="a name such as ring, kary:8 or broadcast/tree, or a file: " + arguments.FILES,
    )
    parser.add_argument("--to", choices=["msccl"], required=True, help="the format: msccl, XML")
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="write this file (default: print the text)"
    )
    arguments.add_place(parser)
    arguments.add_load(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Write the file."""
    arguments.load(options.load)
    collective, name, _ = arguments.resolve(options.algorithm)
    row, p = arguments.placed(get(collective, name), options)
    text = msccl.export(row, p, options.root)
    if options.out is None:
        print(text, end="")
        return 0
    with arguments.writing("--out", options.out):
        files.write(options.out, text)
    print(f"{row.title(p, options.root)} is in {options.out}")
    return 0
