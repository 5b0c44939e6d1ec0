"""Ranks and sizes as tensors, whose values are determined when the program runs."""

from __future__ import annotations

from typing import Any

from collectives.compiled.phases import asked, unconverted
from collectives.horovod import basics, handles, state
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.process_sets import ProcessSet, global_process_set

__all__ = [
    "barrier",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]

NOT_INITIALISED, UNKNOWN = -1, -2  # Horovod's numbers for faults


@unconverted
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of ranks when the program runs. Local.

    Parameters
    ----------
    process_set_id : int
        The number of a process set.
    name : str, optional
        Ignored; accepted for compatibility with Horovod.

    Returns
    -------
    Tensor
        Of int32.
    """
    return asked(lambda: len(_found(process_set_id).ranks or ()))


@unconverted
def rank_op(name: str | None = None) -> Any:
    """Return the number of this rank when the program runs. Local.

    Parameters
    ----------
    name : str, optional
        Ignored; accepted for compatibility with Horovod.
    """
    return asked(basics.rank)


@unconverted
def local_rank_op(name: str | None = None) -> Any:
    """Return the number of this rank among those of its host when the program runs. Local.

    Parameters
    ----------
    name : str, optional
        Ignored; accepted for compatibility with Horovod.
    """
    return asked(basics.local_rank)


@unconverted
def local_size_op(name: str | None = None) -> Any:
    """Return the number of ranks of this host when the program runs. Local.

    Parameters
    ----------
    name : str, optional
        Ignored; accepted for compatibility with Horovod.
    """
    return asked(basics.local_size)


@unconverted
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 if a process set has this rank when the program runs, and 0 if not. Local.

    Parameters
    ----------
    process_set_id : int
    name : str, optional
        Ignored; accepted for compatibility with Horovod.

    Returns
    -------
    Tensor
        Of int32: -1 if `init` has not been called, and -2 if there is no such process set.
    """
    return asked(lambda: _included(process_set_id))


def _included(process_set_id: int) -> int:
    if state.current() is None:
        return NOT_INITIALISED
    try:
        return int(bool(_found(process_set_id).included()))
    except HorovodArgumentError:
        return UNKNOWN


def _found(process_set_id: int) -> ProcessSet:
    """Return the process set with a number."""
    now = state.initialised()
    for each in (global_process_set, *now.sets.values()):
        if each.process_set_id == process_set_id:
            found: ProcessSet = each
            return found
    raise HorovodArgumentError(f"process_set_id is {process_set_id}, and there is no such set")


@unconverted
def join() -> Any:
    """Take part in what the other ranks reduce, with zeros, until all ranks have joined.
    Collective.

    Returns
    -------
    Tensor
        The rank that was last, of int32.

    Raises
    ------
    HorovodInternalError
        If a rank is lost, or a deadline has passed.
    """
    return asked(handles.join)


@unconverted
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks have called it.
    Collective.

    Parameters
    ----------
    process_set : ProcessSet
        The ranks.

    Raises
    ------
    HorovodInternalError
        If a rank is lost, or a deadline has passed.
    """

    def wait() -> int:
        handles.barrier(process_set)
        return 0

    asked(wait)
