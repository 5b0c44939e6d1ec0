"""``collectives doctor``: check the installation, and report problems with their remedies.

In a job of several ranks, it checks all their hosts and the networks between them.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from collectives.cli import run
from collectives.text.words import count

# Findings that only ``--all`` prints, unless they are problems.
DETAILS = {"numpy", "mpi4py", "cores", "/dev/shm", "not set"}
DETAILS |= {"copies", "shared arrays", "affinity", "setting"}


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "doctor",
        help="check the installation",
        description="Check the installation, and report problems with their remedies. Started as a "
        "job of several ranks, check all of their hosts and the networks between them.",
    )
    parser.add_argument("--all", action="store_true", help="print the details as well")
    text = "print all findings as JSON, for a report of a bug"
    parser.add_argument("--json", action="store_true", help=text)
    run.add_launch(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Print the main findings, or all, one by one; return 1 if there is a problem."""
    from collectives.measuring import doctor, survey

    problems = hidden = 0
    findings = []
    for name, text, remedy in doctor.examine(options.mpiexec, options.mpiexec_args):
        problems += remedy is not None
        is_detail = name in DETAILS or (name == "GPU" and text.startswith("none"))
        if options.json:
            findings.append({"name": name, "text": text, "remedy": remedy})
        elif remedy is not None:
            print(f"{name:13} PROBLEM: {text}\n{'':13} remedy: {remedy}", flush=True)
        elif is_detail and not options.all:
            hidden += 1
        else:
            print(f"{name:13} {text}", flush=True)
    if survey.is_first() and options.json:
        print(json.dumps({"findings": findings, "problems": problems}, indent=1))
    elif survey.is_first():
        if hidden:
            print(f"--all prints {count(hidden, 'more line')}.")
        print(f"\n{count(problems, 'problem') if problems else 'No problem'} found.")
    return survey.leave(int(problems > 0))
