"""The thread that moves operations on while the program is elsewhere: asked for, and ended in time.

The thread is the core's, which starts it with the first nonblocking operation. It calls MPI at any
time, so MPI must accept calls of several threads at once, and the thread has to end before MPI is
finalised (`binding` sees to it if the program finalises MPI itself).
"""

from __future__ import annotations

from typing import Any

from collectives import _core
from collectives.errors import ArgumentError, CommunicatorError
from collectives.process import abort, environment

_watched = False


def watch(MPI: Any) -> None:
    """Have a thread move operations on, if ``COLLECTIVES_PROGRESS`` asks for it. Local."""
    global _watched
    wish = environment.text("COLLECTIVES_PROGRESS") or "0"
    if wish not in ("0", "thread"):
        raise ArgumentError(f"COLLECTIVES_PROGRESS is {wish!r}, and must be thread or 0")
    if wish == "thread":
        allow(MPI, "COLLECTIVES_PROGRESS is 'thread'", ", or unset COLLECTIVES_PROGRESS")
        _core.want_progress()


def allow(MPI: Any, why: str, remedy: str = "") -> None:
    """See that the thread may run, and that it ends in time. Local."""
    global _watched
    level = MPI.Query_thread()
    if level < MPI.THREAD_MULTIPLE:
        names = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled"}
        raise CommunicatorError(
            f"{why}, and MPI was initialised with the thread level "
            f"{names.get(level, 'serialized')!r}: the thread would call MPI while the program "
            f"does. Let mpi4py ask for 'multiple', which is its default (mpi4py.rc.thread_level, "
            f"MPI4PY_RC_THREAD_LEVEL){remedy}"
        )
    if not _watched:
        _watched = True
        abort.before_end(_core.stop_progress)
