"""Ranks end with the launcher that started them, if that is killed.

Launchers see to it themselves where they can, and so do jobs without MPI. That of Open MPI, and the
process that MPICH and Intel MPI have on each host, cannot when they are killed by a signal that
nobody handles.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

# The programs that start ranks, here and on other hosts: those of Open MPI 5 and 4, then that of
# MPICH and Intel MPI.
LAUNCHERS = {"prterun", "prte", "prted", "mpiexec", "mpirun", "orterun", "orted"}
LAUNCHERS |= {"hydra_pmi_proxy"}

SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

_libc = ctypes.CDLL(None)  # loaded here, as a process that was just forked must not
_watched = False


def follow_parent(number: int) -> None:
    """Have the kernel send this process a signal when its parent ends. Local."""
    _libc.prctl(SET_DEATH_SIGNAL, number, 0, 0, 0)


def name(process: int) -> str:
    """Return the name of the program that a `process` runs; empty if it is not known. Local."""
    try:
        text = Path(f"/proc/{process}/comm").read_text(encoding="ascii", errors="replace")
    except OSError:  # there is no /proc
        return ""
    return text.strip()


def watch() -> None:
    """Have the kernel end this process with its launcher, if that is its parent. Local."""
    global _watched
    if _watched:
        return
    _watched = True
    parent = os.getppid()
    if name(parent) not in LAUNCHERS:
        return
    follow_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it has ended meanwhile
        os._exit(1)
