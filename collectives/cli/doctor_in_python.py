"""``collectives doctor`` without the core: the runner in use, and whether its ranks communicate."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from typing import Any

from collectives import __version__, coreless

SECONDS = 60.0  # until the ranks of a check must have ended


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "doctor",
        help="check the installation",
        description="Print the runner in use, and check whether its ranks communicate.",
    )
    parser.add_argument("--all", action="store_true", help="print the details as well")
    parser.add_argument("--json", action="store_true", help="print all findings as JSON")
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Print the findings, one by one; return 1 if there is a problem."""
    findings = [
        ("collectives", f"{__version__}, Python {platform.python_version()}", None),
        ("core", f"none. {coreless.error('A run at full speed')}", None),
        (
            "runner",
            "Python: cc.spawn starts threads, and collectives run processes that meet on this "
            "host. No speed is promised",
            None,
        ),
        ("cc.spawn", *_spawns()),
        ("run", *_runs()),
    ]
    problems = sum(remedy is not None for *_, remedy in findings)
    if options.json:
        named = [dict(zip(("name", "text", "remedy"), each, strict=True)) for each in findings]
        print(json.dumps({"findings": named, "problems": problems}, indent=1))
        return int(problems > 0)
    for name, text, remedy in findings:
        print(f"{name:13} {'' if remedy is None else 'PROBLEM: '}{text}")
        if remedy is not None:
            print(f"{'':13} remedy: {remedy}")
    print(f"\n{problems or 'No'} problem{'s' * (problems > 1)} found.")
    return int(problems > 0)


def _total() -> int:
    """Add up the numbers of the ranks."""
    from collectives.slow.communicator import world

    return int(world().allreduce(world().rank))


def _spawns() -> tuple[str, str | None]:
    """Return whether threads communicate, and a remedy."""
    from collectives.slow.spawning import spawn

    try:
        found = spawn(_total, 2, timeout=SECONDS)
    except Exception as error:
        return f"2 threads do not communicate: {error}", "report this, with its traceback"
    return f"2 threads communicate: 0 + 1 = {found[0]}", None


def _runs() -> tuple[str, str | None]:
    """Return whether processes communicate, and a remedy."""
    from collectives.slow import job

    code = f"import collectives as cc; cc.world().timeout = {SECONDS}; cc.barrier()"
    status = job.run(2, ["-c", code])
    if status:
        remedy = f"let {sys.executable} open connections to 127.0.0.1, in the firewall as well"
        return f"2 processes do not communicate, exit status {status}", remedy
    return "2 processes communicate", None
