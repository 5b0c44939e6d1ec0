"""The command ``collectives``: one module for each subcommand.

A subcommand parses its arguments, calls the other packages, prints the results, and returns an exit
status. A program can import what the subcommands call. MPI is loaded only by the subcommands that
need it: ``list``, ``check``, ``explain``, ``export``, ``explore``, ``simulate``, ``synthesize`` and
``timeline`` work without MPI, and without the core.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from collectives import __version__, coreless
from collectives.cli import (
    catalogue,
    check,
    explain,
    explore,
    export,
    simulate,
    synthesize,
    timeline,
)
from collectives.errors import CollectivesError

__all__ = ["main"]

COMMANDS: tuple[ModuleType, ...]
COMMANDS = (simulate, synthesize, check, explain, explore, export, timeline, catalogue)
NEED_CORE = ("run", "bench", "tune", "doctor")
if coreless.HAS_CORE:
    from collectives.cli import bench, doctor, run, tune

    COMMANDS = (run, bench, tune, *COMMANDS, doctor)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command. Local."""
    top = argparse.ArgumentParser(
        prog="collectives",
        description="Run programs with collectives; measure, explain and simulate algorithms.",
    )
    if not coreless.HAS_CORE:
        top.epilog = str(coreless.error("run, bench, tune and doctor", "need"))
    top.add_argument("--version", action="version", version=f"collectives {__version__}")
    commands = top.add_subparsers(dest="command", metavar="command", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status. Local."""
    words = list(sys.argv[1:] if argv is None else argv)
    program: list[str] = []
    if coreless.HAS_CORE:
        if words[:1] == ["run"]:
            words, program = run.split(words)
    elif words and words[0] in NEED_CORE:
        print(f"collectives: {coreless.error(f'collectives {words[0]}')}", file=sys.stderr)
        return 2
    top = parser()
    if not words:
        top.print_help()
        return 0
    arguments = top.parse_args(run.joined(words) if coreless.HAS_CORE else words)
    arguments.program = program
    arguments.words = words
    try:
        status: int = arguments.main(arguments)
        sys.stdout.flush()
    except MemoryError as error:
        print(f"collectives: there is not enough memory: {error}", file=sys.stderr, flush=True)
        return 2
    except CollectivesError as error:
        print(f"collectives: {error}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the output (head, less) has ended, so the buffer cannot be flushed either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        print(f"collectives: the output cannot be written: {error}", file=sys.stderr, flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    return status
