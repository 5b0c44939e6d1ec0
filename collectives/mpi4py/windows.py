"""Windows of MPI beside collectives that run here.

A barrier of MPI makes progress on windows, and some programs depend on it: MPICH's ``Win.Test``
checks before it makes progress, and misses messages that have arrived during a barrier that does
not call MPI. After a program has made a window, barriers here call MPI, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from collectives import _core
from collectives.mpi4py.calls import Calls

NAMES = ("Create", "Allocate", "Allocate_shared", "Create_dynamic")


@functools.cache
def watch() -> None:
    """Detect the first window that a program makes. Local."""
    for name in NAMES:
        _core.replace_in_type(MPI.Win, name, _noticing(name, vars(MPI.Win)[name]))


def _noticing(name: str, method: Any) -> Any:
    """Return a class method that does the same, also for subclasses."""

    @functools.wraps(getattr(MPI.Win, name))
    def function(cls: Any, *args: Any, **options: Any) -> Any:
        _make_progress()
        return method.__get__(None, cls)(*args, **options)

    return classmethod(function)


@functools.cache
def _make_progress() -> None:
    """Have barriers make progress in MPI from now on. Local."""
    for name in ("Barrier", "barrier"):
        setattr(Calls, name, _calling_mpi(getattr(Calls, name)))


def _calling_mpi(barrier: Callable[[Calls], None]) -> Callable[[Calls], None]:
    @functools.wraps(barrier)
    def method(self: Calls) -> None:
        barrier(self)
        self.Iprobe()

    return method
