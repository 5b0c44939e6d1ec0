"""The end of a job: a rank that cannot continue ends the others, too.

If a rank ended alone, the others would wait for it. So an uncaught exception ends all ranks at
once, after its traceback. Under ``COLLECTIVES_ABORT=0`` it only notifies the ranks of its host,
which get a `PeerAbortedError` if they wait. An exception in a thread ends the ranks only if that
thread has called a collective, because other ranks may then be waiting for it. A daemon thread that
is in a collective when the program ends fails silently.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from collectives import _core
from collectives.errors import CommunicatorError, PeerAbortedError, PeerLostError
from collectives.process import environment

__all__ = ["before_end", "end_job", "run_before_end", "watch", "wished"]
from collectives.text.words import error_text

# Seconds between the message and the end, because MPICH's launcher drops output that it has not yet
# read.
FAREWELL = 0.5

# Seconds in which the program may end after a daemon thread has failed because it ends, here or on
# another rank.
GRACE = 1.0

_watched = False
_before_end: list[Callable[[], None]] = []


def before_end(function: Callable[[], None]) -> None:
    """Register `function` to be called when this rank ends, normally or not. Local."""
    _before_end.append(function)


def run_before_end() -> None:
    """Call the functions that are registered for the end of this rank. Local."""
    while _before_end:
        with contextlib.suppress(Exception):
            _before_end.pop()()


def wished() -> bool:
    """Return whether an uncaught exception shall end the job. Local."""
    return environment.flag("COLLECTIVES_ABORT", default=True)


def end_job(MPI: Any, text: str, status: int = 1) -> None:
    """Print a text, and end all ranks. Local; the other ranks are not asked.

    Parameters
    ----------
    MPI : module
        ``mpi4py.MPI``, initialised.
    text : str
    status : int
        The exit status of the job, as far as the launcher passes it on.
    """
    run_before_end()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is sys.stderr:
                print(text, file=stream)
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # there is no such stream, or it is closed
    time.sleep(FAREWELL)
    MPI.COMM_WORLD.Abort(status)


def watch(MPI: Any) -> None:
    """Install hooks so that uncaught exceptions end the job, if it has several ranks. Local.

    Hooks that the program has installed before are called first.

    Parameters
    ----------
    MPI : module
        ``mpi4py.MPI``, initialised.
    """
    global _watched
    if _watched or MPI.COMM_WORLD.Get_size() == 1:
        return
    _watched = True
    earlier = sys.excepthook
    earlier_in_threads = threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            earlier(kind, error, trace)
        finally:
            if not interactive():
                interrupted = issubclass(kind, KeyboardInterrupt)
                if not wished() and not _core.is_forked():
                    _core.give_up_all(error_text(error))
                _end_of_rank(MPI, 128 + signal.SIGINT if interrupted else 1)

    def hook_in_threads(caught: threading.ExceptHookArgs) -> None:
        if _ends_with_program(caught):
            return
        try:
            earlier_in_threads(caught)
        finally:
            if caught.exc_type is not SystemExit and _core.communicates():
                _end_of_rank(MPI, 1)

    sys.excepthook = hook
    threading.excepthook = hook_in_threads


def _ends_with_program(caught: threading.ExceptHookArgs) -> bool:
    """Return whether a daemon thread was in a call when the program ended, which is no error."""
    ends = CommunicatorError, PeerLostError, PeerAbortedError
    if caught.thread is None or not caught.thread.daemon or not issubclass(caught.exc_type, ends):
        return False
    limit = time.monotonic() + GRACE
    while not _core.is_ending() and time.monotonic() < limit:
        time.sleep(0.01)
    return _core.is_ending()


def interactive() -> bool:
    """Return whether Python is interactive, and continues with a prompt after an error. Local."""
    return (
        hasattr(sys, "ps1") or bool(sys.flags.interactive) or bool(os.environ.get("PYTHONINSPECT"))
    )


def _end_of_rank(MPI: Any, status: int) -> None:
    if not wished() or _core.is_forked() or MPI.Is_finalized():
        return
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    end_job(
        MPI,
        f"collectives: rank {rank} of {size} ends the job because of an uncaught exception",
        status,
    )
