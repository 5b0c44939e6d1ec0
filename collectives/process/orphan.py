"""Ranks end with the launcher that started them, if that is killed.

The launchers of MPICH and Intel MPI see to it themselves, and so do jobs without MPI. That of Open
MPI does not when it is killed by a signal that it cannot handle.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

__all__ = ["follow_parent", "watch"]

# The programs of Open MPI 5 and 4 that start ranks, here and on other hosts.
LAUNCHERS = {"prterun", "prte", "prted", "mpiexec", "mpirun", "orterun", "orted"}

SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

_libc = ctypes.CDLL(None)  # loaded here, as a process that was just forked must not
_watched = False


def follow_parent(number: int) -> None:
    """Have the kernel send this process a signal when its parent ends. Local.

    Parameters
    ----------
    number : int
        That of the signal.
    """
    _libc.prctl(SET_DEATH_SIGNAL, number, 0, 0, 0)


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
    follow_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it has ended meanwhile
        os._exit(1)
