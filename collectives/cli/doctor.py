"""``collectives doctor``: check the installation, and report what to do about problems.

As a job of several ranks, check all of their hosts and what is between them.
"""

from __future__ import annotations

import argparse
from typing import Any

from collectives.cli import run
from collectives.text.words import count


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("doctor", help="check the installation", description=__doc__)
    run.add_launch(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Print the findings one by one; return 1 if there is a problem."""
    from collectives.measuring import doctor, survey

    problems = 0
    for name, text, remedy in doctor.examine(options.mpiexec, options.mpiexec_args):
        if remedy is None:
            print(f"{name:13} {text}", flush=True)
        else:
            problems += 1
            print(f"{name:13} PROBLEM: {text}\n{'':13} remedy: {remedy}", flush=True)
    if survey.is_first():
        print(f"\n{count(problems, 'problem') if problems else 'No problem'} found.")
    return survey.leave(int(problems > 0))
