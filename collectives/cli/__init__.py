"""The command ``collectives``: one module for each subcommand.

A subcommand parses its arguments, calls the other packages, prints the results, and returns an exit
status. A program can import what the subcommands call. A module is imported when its subcommand is
named, or for the help of the command. MPI is loaded only by the subcommands that need it: ``list``,
``check``, ``compare``, ``explain``, ``export``, ``explore``, ``forecast``, ``simulate``,
``synthesize`` and ``timeline`` work without MPI, and without the core.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from collectives import __version__, coreless
from collectives.errors import CollectivesError

__all__ = ["main"]

NEED_CORE: tuple[str, ...] = ("run", "stop", "status", "bench", "tune", "doctor")
COMMANDS: tuple[str, ...] = ("run", "stop", "status", "bench", "tune", "simulate", "synthesize")
COMMANDS += ("check", "explain", "explore", "export", "timeline", "compare", "forecast")
COMMANDS += ("list", "doctor")
# The modules of subcommands that are not named after them.
MODULES = {"list": "catalogue"}
if coreless.RUNS_IN_PYTHON:
    MODULES |= {"run": "run_in_python", "doctor": "doctor_in_python"}
    NEED_CORE = tuple(name for name in NEED_CORE if name not in MODULES)
if not coreless.HAS_CORE:
    COMMANDS = tuple(name for name in COMMANDS if name not in NEED_CORE)


def parser(named: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command with the subcommand `named`, or with all. Local."""
    top = argparse.ArgumentParser(
        prog="collectives",
        description="Run programs with collectives; measure, explain and simulate algorithms.",
    )
    if not coreless.HAS_CORE:
        named_last = f"{', '.join(NEED_CORE[:-1])} and {NEED_CORE[-1]}"
        top.epilog = str(coreless.error(named_last, "need"))
    top.add_argument("--version", action="version", version=f"collectives {__version__}")
    commands = top.add_subparsers(dest="command", metavar="command", required=True)
    for name in (named,) if named in COMMANDS else COMMANDS:
        import_module(f"{__name__}.{MODULES.get(name, name)}").add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status. Local."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        parser().print_help()
        return 0
    program: list[str] = []
    parsed = words
    if words[0] in NEED_CORE and not coreless.HAS_CORE:
        print(f"collectives: {coreless.error(f'collectives {words[0]}')}", file=sys.stderr)
        return 2
    if words[0] == "run" and coreless.RUNS_IN_PYTHON:
        from collectives.cli import run_in_python

        try:
            parsed, program = run_in_python.split(words)
        except CollectivesError as error:
            print(f"collectives: {error}", file=sys.stderr)
            return 2
    elif words[0] in NEED_CORE:
        from collectives.cli import run

        if words[0] == "run":
            words, program = run.split(words)
        parsed = run.joined(words)
    arguments = parser(words[0]).parse_args(parsed)
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
