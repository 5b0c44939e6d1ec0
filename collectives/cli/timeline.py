"""``collectives timeline``: the time of each collective on a timeline, and who waits for whom.

It first adds to the file what ranks have left that were killed.
"""

from __future__ import annotations

import argparse
from typing import Any

from collectives.text.words import spans

__all__ = ["add_parser"]

DESCRIPTION = (
    "Say what a timeline (COLLECTIVES_TIMELINE, comm.timeline) has: the time of each collective, "
    "how much of it each rank waits, and for whom. What ranks that were killed have left beside "
    "the file is added to it first."
)


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "timeline", help="sum a timeline up: who waits for whom", description=DESCRIPTION
    )
    parser.add_argument(
        "files",
        metavar="FILE.json",
        nargs="+",
        help="a timeline; several, if hosts that share no files have one each",
    )
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Print the tables."""
    from collectives.records import summary, tracefile  # which needs what only Unix has

    loaded = []
    for path in options.files:
        if tracefile.token(path) is not None:
            added, held = tracefile.complete(path)
            if added:
                print(f"{path}: added what {_ranks(added)} left behind")
            if held:
                print(f"{path}: not complete yet, {_ranks(held)} still recording")
        loaded.append(tracefile.load(path))
    found = summary.summed([event for each in loaded for event in each["traceEvents"]])
    print("\n".join(summary.text(found)))
    return 0


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' * (len(numbers) > 1)} {spans(numbers)}"
