"""The end of a job: a rank that cannot continue ends the others, too.

If a rank ended alone, the others would wait for it. So an uncaught exception ends all ranks, after
its report. Under ``COLLECTIVES_ABORT=0`` it only notifies the ranks of its host, which get a
`PeerAbortedError` if they wait. An exception in a thread ends the ranks only if that thread has
called a collective, because other ranks may then be waiting for it. A daemon thread that
is in a collective when the program ends fails silently.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn

from collectives import _core
from collectives.errors import ArgumentError, CommunicatorError, PeerAbortedError, PeerLostError
from collectives.process import environment, hosted, processes, report
from collectives.text.words import error_text, spans

# Seconds between the message and the end, because MPICH's launcher drops output that it has not yet
# read.
FAREWELL = 0.5

LAST = 2  # seconds that MPI has to end this rank

# Seconds in which the program may end after a daemon thread has failed because it ends, here or on
# another rank.
GRACE = 1.0

# MPICH maps a file of the host in `MPI_Init` and removes its name in `MPI_Finalize`: a job that
# ends otherwise leaves some megabytes behind. Once all ranks have mapped it, it needs no name.
MPICH_FILES = "/dev/shm/mpich_shm_"

_installed: Callable[..., None] | None = None
_has_reported = False
_leaves = False
_before_end: list[Callable[[], None]] = []


def before_end(function: Callable[[], None]) -> None:
    """Register `function` to be called once when this rank ends, normally or not. Local."""
    if function not in _before_end:
        _before_end.append(function)


def run_before_end() -> None:
    """Call the functions that are registered for the end of this rank. Local."""
    while _before_end:
        with contextlib.suppress(Exception):
            _before_end.pop()()


def wished() -> bool:
    """Return whether an uncaught exception ends the job. An invalid variable is ignored, because
    making a communicator raises an error for it. Local.
    """
    with contextlib.suppress(ArgumentError):
        return environment.flag(environment.ABORT, default=True)
    return True


def has_reported() -> bool:
    """Return whether this rank ends alone because of an exception that was reported. Local."""
    return _has_reported


def end_job(text: str) -> NoReturn:
    """Report the fault of this rank, and end all ranks; under ``COLLECTIVES_ABORT=0``, or after MPI
    was finalised, end only this one. Local; the other ranks are not asked.
    """
    MPI = _mpi()
    ends_all = wished() and MPI is not None
    if not ends_all:
        _core.give_up_all(f"it {text}")
    _core.take_leave_all()
    run_before_end()
    _flush(sys.stdout)
    report.write(f"collectives: rank {_rank()[0]} {text}\n")
    time.sleep(FAREWELL)
    if ends_all:
        _abort(MPI, 1)
    if MPI is not None:  # launchers report a rank that does not finalise MPI as a crash
        MPI.Finalize()
    os._exit(1)


def _abort(MPI: Any, status: int) -> None:
    """End all ranks with an exit `status`. If the launcher cannot be reached, such as after a cut
    link, MPI waits for it for ever; then the kernel ends this rank.
    """
    remove_mpich_files()
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LAST)
    MPI.COMM_WORLD.Abort(status)


def remove_mpich_files() -> None:
    """Remove the names of MPICH's files that this process has mapped. Local, when all ranks of the
    host have returned from ``MPI_Init``.
    """
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        found = {line.rstrip("\n").partition("/")[2] for line in maps if MPICH_FILES in line}
        for each in found:
            with contextlib.suppress(OSError):
                os.unlink(f"/{each}")


@functools.cache
def remove_mpich_files_once() -> None:
    """Do the same on the first call, and nothing later. Local."""
    remove_mpich_files()


def leave_unfinished() -> None:
    """Make this process end without finalising MPI, which sometimes hangs after a rank was lost
    (Open MPI 5.0). Local.
    """
    global _leaves
    _leaves = True


def _leave() -> None:
    if _leaves and not _core.is_forked():
        run_before_end()
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
        os._exit(int(_has_reported))


atexit.register(_leave)  # first, so that it is called after functions registered later


def _flush(stream: Any) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
        stream.flush()


def watch() -> None:
    """Install hooks for uncaught exceptions if a launcher has started several ranks. Local.

    Hooks that the program has installed before are called first.
    """
    global _installed
    if (
        _rank()[1] == 1
        or processes.parent_rank()
        or (_installed is not None and sys.excepthook is _installed)
    ):
        return
    earlier = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _core.is_forked() or interactive():
            earlier(kind, error, trace)
            return
        if isinstance(sys.stderr, io.StringIO):
            # torch.distributed collects the report, to print it after this hook, which ends all.
            sys.stderr = sys.__stderr__
        if not wished():
            _core.give_up_all(error_text(error))
        status = 128 + signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1
        text = ""
        if earlier is sys.__excepthook__:
            with contextlib.suppress(Exception):  # then the usual hook prints it
                text = report.shortened(kind, error, trace)
        try:
            if not text:
                earlier(kind, error, trace)
        finally:
            _end_of_rank(text, status, issubclass(kind, KeyboardInterrupt))

    sys.excepthook = hook
    if _installed is None:
        _watch_threads()
    _installed = hook


def _watch_threads() -> None:
    """Install the hook for uncaught exceptions in threads."""
    earlier, default = threading.excepthook, threading.__excepthook__

    def hook(caught: threading.ExceptHookArgs) -> None:
        kind, error = caught.exc_type, caught.exc_value
        if _ends_with_program(caught):
            return
        able = wished() and _core.communicates() and not _core.is_forked() and _mpi() is not None
        if kind is SystemExit or error is None or not able:
            earlier(caught)
        elif earlier is default:
            name = caught.thread.name if caught.thread is not None else "unknown"
            text = report.shortened(kind, error, caught.exc_traceback)
            _end_of_rank(f"Exception in thread {name}:\n{text}", 1)
        else:
            try:
                earlier(caught)
            finally:
                _end_of_rank("", 1)

    threading.excepthook = hook


def _rank() -> tuple[int, int]:
    """Return this rank and the number of ranks, by MPI or by the launcher's variables."""
    MPI = _mpi()
    world = (0, 1) if MPI is None else (MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
    if world[1] > 1:
        return world
    # The launcher's variables also count if MPI is not that of the launcher, and sees one rank.
    for names in environment.PLACES:
        rank, size = (os.environ.get(name, "") for name in names)
        if rank.isdecimal() and size.isdecimal():
            return int(rank), int(size)
    return world


def _mpi() -> Any:
    """Return ``mpi4py.MPI`` if MPI can be called, its stand-in, or None."""
    job = hosted.joined()
    if job is not None:
        return job
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI if MPI is not None and MPI.Is_initialized() and not MPI.Is_finalized() else None


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


def _end_of_rank(text: str, status: int, is_interrupt: bool = False) -> None:
    """Print the report of an uncaught exception, and end all ranks if the environment allows it."""
    global _has_reported
    MPI = _mpi()
    rank, size = _rank()
    ends_all = wished() and MPI is not None

    def closing(ranks: Sequence[int]) -> str:
        who = f"rank {rank}" if len(ranks) == 1 else f"ranks {spans(ranks)}"
        if is_interrupt:
            verb = "was" if len(ranks) == 1 else "were"
            return f"collectives: {who} of {size} {verb} interrupted"
        verb = ("ends" if len(ranks) == 1 else "end") + (" the job" if ends_all else "")
        return f"collectives: {who} of {size} {verb} because of an uncaught exception"

    try:
        _flush(sys.stdout)
        told = report.Report(text, rank, size, "interrupted" if is_interrupt else None)
        if text or ends_all:
            told.tell(closing)
        if ends_all:
            run_before_end()
        if wished():
            told.linger(FAREWELL)
    finally:
        if ends_all:
            _abort(MPI, status)
        _has_reported = True
