"""Forked children of a rank: they cannot communicate, and must end without touching MPI.

mpi4py finalises MPI when Python exits, in a forked child as well, and that would disturb the
parent. So the core ends a child before that. It needs to know the exit status.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from collectives import _core

_watched = False
_forgetful: list[Callable[[], None]] = []


def forget(function: Callable[[], None]) -> None:
    """Register `function` to be called in each forked child, to drop the parent's state. Local."""
    _forgetful.append(function)


def watch() -> None:
    """Install the handlers for forks. Local."""
    global _watched
    if not _watched:
        _watched = True
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
