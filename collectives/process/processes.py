"""Processes around a rank: its launcher, with which it ends, and children that it forks.

Launchers usually end their ranks when they end, and so do jobs without MPI. The launcher of Open
MPI, and the process of MPICH and Intel MPI on each host, cannot do so when a signal kills them.

A forked child cannot communicate, and must end without calls of MPI. mpi4py finalises MPI when
Python exits, in a forked child as well, and that would disturb the parent. So the core ends a child
before that, with the exit status that it is told here.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from collectives import _core
from collectives.errors import CommunicatorError
from collectives.process import environment

if TYPE_CHECKING:
    import socket

# The programs that start ranks, here and on other hosts: those of Open MPI 5 and 4, then that of
# MPICH and Intel MPI.
LAUNCHERS = {"prterun", "prte", "prted", "mpiexec", "mpirun", "orterun", "orted"}
LAUNCHERS |= {"hydra_pmi_proxy"}

# Set in each rank: its process, and its variables by which a launcher has made it a rank.
MARK = "_COLLECTIVES_RANK_OF"

SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
CREDENTIALS = struct.Struct("3i")  # of a process at the other end: process, user, group
PARENT, STARTED = 1, 19  # places of `stat`

_libc = ctypes.CDLL(None)  # loaded here, because a freshly forked process must not load it
_forgetful: list[Callable[[], None]] = []


def name(process: int) -> str:
    """Return the name of the program that a `process` runs; empty if it is not known. Local."""
    try:
        with open(f"/proc/{process}/comm", encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:  # there is no /proc
        return ""


def stat(process: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` of a `process`, from its state on. Local."""
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def tree(process: int) -> Iterator[int]:
    """Yield a process of this host and all that it has started. Local."""
    children: dict[int, list[int]] = {}
    for each in filter(str.isdecimal, os.listdir("/proc")):
        try:
            parent = int(stat(int(each))[PARENT])
        except OSError:  # it has ended
            continue
        children.setdefault(parent, []).append(int(each))
    found = [process]
    for one in found:
        yield one
        found += sorted(children.get(one, []))


def peer(connected: socket.socket) -> tuple[int, int]:
    """Return the process ID of the other end of a connection, and its user ID."""
    import socket

    record = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    process, user, _ = CREDENTIALS.unpack(record)
    return process, user


# -- the launcher ----------------------------------------------------------------------------------


def follow_parent(number: int) -> None:
    """Make the kernel send this process a signal when its parent ends. Local."""
    _libc.prctl(SET_DEATH_SIGNAL, number, 0, 0, 0)


@functools.cache
def follow_launcher() -> None:
    """Make the kernel end this process with its launcher, if that is its parent. Local."""
    parent = os.getppid()
    if name(parent) not in LAUNCHERS:
        return
    follow_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it has already ended
        os._exit(1)


# -- children that have inherited the variables of a rank ------------------------------------------


@functools.cache
def mark_rank() -> None:
    """Tell programs that this rank starts that they are none, although they inherit its variables.
    Local.
    """
    if environment.is_rank() or environment.is_of_torchrun():
        os.environ[MARK] = f"{os.getpid()} {environment.identity()}"


def parent_rank() -> int:
    """Return the process of the rank that has started this one, directly or by others, but not as
    a rank; otherwise 0. Local.
    """
    rank, _, identity = os.environ.get(MARK, "").partition(" ")
    process = os.getppid()
    if not rank or int(rank) == os.getpid() or identity != environment.identity():
        return 0
    while process > 1 and name(process) not in LAUNCHERS:
        if process == int(rank):
            return process
        try:
            process = int(stat(process)[PARENT])
        except OSError:  # it has ended
            break
    return 0


def refuse_child() -> None:
    """Raise CommunicatorError if a rank has started this process, and no launcher. Local."""
    rank = parent_rank()
    if rank:
        raise CommunicatorError(
            f"this process is no rank: {environment.place()} (process {rank}) has started it, or "
            f"one of its children has, and it has inherited the variables of that rank{_remedy()}"
        )


def _remedy() -> str:
    """Return what a program has to change, in words."""
    running = sys.modules.get("multiprocessing.process")
    if running is not None and getattr(running.current_process(), "_inheriting", False):
        return (
            ". It imports the program that multiprocessing, or a DataLoader, runs in it: put what "
            'only ranks do under `if __name__ == "__main__":`'
        )
    return "; call the library in the rank only, or start it by `collectives run` or an mpiexec"


# -- forks -----------------------------------------------------------------------------------------


def after_fork(function: Callable[[], None]) -> None:
    """Register `function` to be called in each forked child, to drop the parent's state. Local."""
    _forgetful.append(function)


@functools.cache
def watch_forks() -> None:
    """Install the handlers for forks. Local."""
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    if _core.is_forked():  # a child of a child
        return
    _core.fork_noticed()
    for function in _forgetful:
        function()
    leave, earlier = sys.exit, sys.excepthook

    def exit(status: Any = None, /) -> NoReturn:
        _core.child_exits(status if isinstance(status, int) else 0 if status is None else 1)
        leave(status)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _core.child_exits(128 + signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1)
        earlier(kind, error, trace)

    sys.exit = exit
    sys.excepthook = hook
