"""``collectives timeline``: the time of each collective on a timeline, and the late ranks.

First it adds the events of ranks that were killed to the file.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from collectives.errors import ArgumentError
from collectives.text import files
from collectives.text.words import plural, spans

DESCRIPTION = (
    "Summarise a timeline (COLLECTIVES_TIMELINE, comm.timeline): the time of each collective, how "
    "long each rank waits, and which ranks the others wait for. The records of ranks that were "
    "killed are first added to the file."
)


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "timeline",
        help="summarise a timeline: times, waits and late ranks",
        description=DESCRIPTION,
    )
    parser.add_argument(
        "files",
        metavar="FILE.json",
        nargs="+",
        help="a timeline; give several files if hosts without a common file system wrote one each",
    )
    parser.add_argument(
        "--svg", metavar="FILE.svg", help="also draw the calls of all ranks, as a picture"
    )
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Print the tables."""
    from collectives.records import summary

    _, events = read(options.files)
    found = summary.summed(events)
    print("\n".join(summary.text(found)))
    if options.svg is not None:
        from collectives.records import chart

        files.write(options.svg, chart.chart(events, found))
    return 0


def read(paths: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the documents of timelines, and the events of all; first complete the files. Local."""
    if os.name != "posix":
        raise ArgumentError("timelines need Linux, macOS or another Unix")
    from collectives.records import tracefile

    documents: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for path in paths:
        held: list[int] = []
        if tracefile.token(path) is not None:
            added, held = tracefile.complete(path)
            if added:
                print(f"{path}: added what {_ranks(added)} left behind")
            if held:
                print(f"{path}: {_ranks(held)} still recording, with these calls so far")
        documents.append(tracefile.load(path))
        events += documents[-1]["traceEvents"]
        events += tracefile.so_far(path, held)
    return documents, events


def _ranks(numbers: list[int]) -> str:
    return f"{plural(len(numbers), 'rank')} {spans(numbers)}"
