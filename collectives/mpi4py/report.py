"""``collectives run --report``: the times of MPI's calls in a program for mpi4py.

The methods of mpi4py's communicators and requests are replaced by others that time them: those of
collectives, and those that wait for requests, also of messages. Calls that this library makes
itself are left out.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from collectives import _core
from collectives.mpi4py import communicators, neighbors, requests, tasks
from collectives.mpi4py.calls import LEFT, OBJECTS, Calls
from collectives.process import environment
from collectives.records.totals import HERE, TOTALS, print_at_end

THERE = "MPI"

_ARRAYS = (*tasks.TASKS, *neighbors.TASKS)
COLLECTIVES = (
    *(form for name in _ARRAYS for form in (name, f"I{name.lower()}", f"{name}_init")),
    *(*OBJECTS, "neighbor_allgather", "neighbor_alltoall", *LEFT),
)
REQUESTS = ("Wait", "Test", "wait", "test", "Start")
OF_LISTS = (*requests.NAMES, "Startall")  # class methods of requests

THEIRS = (MPI.Comm, MPI.Intracomm, MPI.Intercomm, MPI.Topocomm, MPI.Request, MPI.Prequest)
OURS = (
    *(Calls, neighbors.NeighborCalls, communicators.EARLY),
    *(requests.Pending, requests.Prequest),
)


def install(module: Any) -> None:
    """Time the calls of ``mpi4py.MPI`` from now on. Local."""
    requests.install()  # before its functions are replaced
    for owner in (*THEIRS, *OURS):
        for name in (*COLLECTIVES, *REQUESTS, *OF_LISTS):
            if name not in vars(owner):
                continue
            if name in OF_LISTS:
                method: Any = staticmethod(_timed(name, getattr(owner, name)))
            else:
                method = _timed(name, vars(owner)[name])
            if owner in THEIRS:
                _core.replace_in_type(owner, name, method)
            else:
                setattr(owner, name, method)
    if environment.is_first_rank():
        print_at_end()


def _timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that adds its calls by the program to the totals."""

    @functools.wraps(method)
    def function(*args: Any, **options: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("collectives."):
            return method(*args, **options)
        owner = args[0] if args else options["requests"]
        state = owner._state if isinstance(owner, Calls) else None
        before = 0 if state is None else state.mpi[name]
        start = time.perf_counter()
        result = method(*args, **options)
        seconds = time.perf_counter() - start
        here = _has_ours(owner) if state is None else state.mpi[name] == before
        TOTALS.add(name, _nbytes(name, args, options), HERE if here else THERE, seconds)
        return result

    return function


def _has_ours(owner: Any) -> bool:
    """Return whether a request is one of this library, or one in a list is."""
    every = owner if isinstance(owner, (list, tuple)) else [owner]
    return any(isinstance(each, requests.Pending) for each in every)


def _nbytes(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> int:
    """Return the bytes of the longest array of a call, 0 for objects and requests."""
    if name not in COLLECTIVES or name.islower():
        return 0
    most = 0
    for spec in (*args[1:3], *options.values()):
        buffer = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
        try:
            nbytes = memoryview(buffer).nbytes
        except (TypeError, ValueError, BufferError):
            nbytes = getattr(buffer, "nbytes", 0)
        most = max(most, nbytes if isinstance(nbytes, int) else 0)
    return most
