"""``collectives compare``: the first call in which two runs of a program differ."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "compare",
        help="name the first call that differs between two runs",
        description="Compare the calls of two runs, of which COLLECTIVES_TRACE has kept checksums: "
        "name the first call that differs, the ranks and the arrays, and whether the inputs differ "
        "or only the result. The exit status is 1 if the runs differ.",
    )
    parser.add_argument("runs", metavar="RUN", nargs=2, help="the folder of a trace")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Print the first difference; return 1 if there is one."""
    from collectives.records import runs

    told = runs.report(*map(runs.read, options.runs))
    print(json.dumps(told, indent=1) if options.json else "\n".join(runs.text(told)))
    return 0 if told["equal"] else 1
