"""``collectives stop``: ask the ranks of a job to stop at the same step."""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

from collectives.cli import arguments
from collectives.errors import CommunicatorError
from collectives.process import processes, stopping


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "stop",
        help="ask the ranks of a job to stop at the same step",
        description="Send SIGUSR1 to a rank of a job on this host, if the rank calls "
        "stop_requested, which then tells all ranks of the job.",
    )
    parser.add_argument(
        "job",
        metavar="PID",
        type=arguments.positive,
        help="the process of a rank, of the launcher, or of another program that has started them",
    )
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Find a rank below the process, and send the signal."""
    for process in processes.tree(options.job):
        if stopping.listens(process, signal.SIGUSR1):
            os.kill(process, signal.SIGUSR1)
            print(f"process {process} was asked to stop, and the other ranks with it")
            return 0
    raise CommunicatorError(
        f"process {options.job} has started no rank on this host that has called stop_requested, "
        f"or it is not yours. Use a host where ranks run; a launcher passes on kill -USR1"
    )
