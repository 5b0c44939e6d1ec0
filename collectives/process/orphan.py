"""Ranks end with the launcher that started them, if that is killed.

The launchers of MPICH and Intel MPI see to it themselves, and so do jobs without MPI. That of Open
MPI does not when it is killed by a signal that it cannot handle.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

__all__ = ["watch"]

# The programs of Open MPI 5 and 4 that start ranks, here and on other hosts.
LAUNCHERS = {"prterun", "prte", "prted", "mpiexec", "mpirun", "orterun", "orted"}

SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

_watched = False


def watch() -> None:
    """Have the kernel end this process with its launcher, if that is its parent. Local."""
    global _watched
    if _watched:
        return
    _watched = True
    parent = os.getppid()
    try:
        name = Path(f"/proc/{parent}/comm").read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # there is no /proc
        return
    if name not in LAUNCHERS:
        return
    ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended meanwhile
        os._exit(1)
