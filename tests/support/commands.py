"""The command line, as a user calls it: a process of its own, with a deadline."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from jobs import PATIENCE


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ.get("PATH", "")])
    # The profile of this machine is not under test.
    return {**os.environ, "PATH": path, "COLLECTIVES_PROFILE": "0", **more}


def command(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "collectives", *words],
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@cache
def why_not() -> str | None:
    """Ask in another process, for this one must stay free of MPI."""
    done = command("run", "--dry-run", "-n", "2", "-c", "pass")
    return None if done.returncode == 0 else done.stderr.strip()
