"""The names of `collectives` for programs whose ranks run in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectives import coreless, reductions
from collectives.calls import comparing
from collectives.calls.base import defaulted
from collectives.calls.grouped import GroupedRequest as GroupedRequest
from collectives.calls.waiting import wait_all as wait_all
from collectives.calls.waiting import wait_any as wait_any
from collectives.slow.communicator import Communicator, world
from collectives.slow.requests import PlannedCall as PlannedCall
from collectives.slow.requests import Request as Request
from collectives.slow.spawning import spawn as spawn


def _on_default(name: str) -> Callable[..., Any]:
    """Return a function that calls a method of the default communicator."""

    def function(*args: Any, **options: Any) -> Any:
        return getattr(world(), name)(*args, **options)

    return defaulted(function, Communicator, name)


def rank() -> int:
    """Return this rank's number in the default communicator. Local after the first call."""
    return world().rank


def size() -> int:
    """Return the number of ranks of the default communicator. Local after the first call."""
    return world().size


def local_rank() -> int:
    """Return this rank's number: all ranks are on one host. Local after the first call."""
    return world().rank


def local_size() -> int:
    """Return the number of ranks: all are on one host. Local after the first call."""
    return world().size


def same(
    value: Any = comparing.OMITTED, name: str | None = None, *, every: int = 1, **options: Any
) -> Any:
    """Compare a value on all ranks, or the arguments and the result of a function."""
    return comparing.same_or_compared(world, value, name, every, options)


for _name in coreless.SLOW.difference(globals()):  # the operations, then the collectives
    globals()[_name] = getattr(reductions, _name, None) or _on_default(_name)
