"""The work of the running ranks when others join an elastic job, or leave it, between commits."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import numpy as np

from collectives import default
from collectives.errors import CollectivesError, CommunicatorError, PeerLostError
from collectives.process import hosted, lobby

NONE, NEWS, FEW = range(3)  # what rank 0 hears of the launcher

PAUSE = 0.2  # seconds between two polls while there are too few ranks

_leader: lobby.Leader | None = None  # of rank 0
_has_state = False  # whether this rank has got the state of a job


def is_possible(comm: Any) -> bool:
    """Return whether ranks may join those of a communicator. Local."""
    return lobby.is_given() and getattr(comm._mpi, "job", None) is hosted.joined()


def heard(size: int, seconds: float = 0.0) -> int:
    """Return the launcher's answer to a job of `size` ranks. Local, on rank 0."""
    global _leader
    try:
        if _leader is None:
            _leader = lobby.Leader()
        if _leader.look(seconds if size < _leader.least else 0.0):
            return NEWS
        return FEW if size < _leader.least else NONE
    except (CollectivesError, OSError):  # it has ended, and ends the ranks
        _leader = None
        return NONE


def news(comm: Any, seconds: float = 0.0) -> int:
    """Return the answer that rank 0 has `heard`. Collective."""
    word = np.array([heard(comm.size, seconds) if comm.rank == 0 else NONE], np.uint8)
    comm.broadcast(word, word)
    return int(word[0])


def check_state(comm: Any) -> None:
    """Raise an error on all ranks if rank 0 has joined later without getting the state: the ranks
    that had it are lost. Collective.
    """
    if not is_possible(comm):
        return
    lacks = np.array([_lacks_state()], np.uint8)
    comm.broadcast(lacks, lacks)
    if lacks[0]:
        raise CommunicatorError(
            f"rank {comm.rank} of {comm.size} cannot continue: all ranks that had the state were "
            f"lost before the new ones got it"
        )


def _lacks_state() -> bool:
    job = hosted.joined()
    return job is not None and job.is_joined_late and not _has_state


def note_state() -> None:
    """Note that this rank has the state of the others. Local."""
    global _has_state
    _has_state = True


def settle(comm: Any, is_wished: bool, change: Callable[[], Any]) -> bool:
    """Have ranks join and leave, as the launcher tells or if it is wished, and wait while there are
    too few. After each change, call `change`, which returns the new communicator. Return whether
    the ranks have changed. Collective.
    """
    has_changed = False
    while True:
        word = NEWS if is_wished else news(comm, PAUSE)
        if word == NONE:
            return has_changed
        if word == NEWS and renewed(comm):
            comm, has_changed = change(), True
        is_wished = False


def renewed(comm: Any) -> bool:
    """Have ranks join and leave as the launcher tells; return whether `collectives.world` has
    changed. Collective.

    A rank that leaves ends here, by SystemExit. If a new rank fails, the others continue as before.
    """
    global _leader
    me = lobby.number()
    numbers = comm.allgather_object(me)
    plan = None
    if comm.rank == 0 and _leader is not None:
        with contextlib.suppress(CollectivesError, OSError):
            plan = _leader.plan(numbers)
    plan = comm.broadcast_object(plan)
    if plan is None:
        return False
    place, made, problem, is_lost = None, None, "", False
    if me in plan.kept:
        try:
            place = lobby.Joining(plan, me)
            made = hosted.HostedJob(place)
        except (CollectivesError, OSError) as error:
            problem = str(error) or type(error).__name__
            is_lost = isinstance(error, PeerLostError)
    is_made = comm.agree(int(not problem))
    if comm.rank == 0 and _leader is not None:
        with contextlib.suppress(CollectivesError, OSError):
            _leader.made("" if is_made else problem or "another rank could not", is_lost)
    if not is_made:
        if place is not None:
            place.close()
        return False
    with contextlib.suppress(CollectivesError):  # of submissions, or of a loss
        comm.free()
    if place is None or made is None:
        raise SystemExit(0)
    place.confirm()
    _leader = None
    hosted.replace(made)
    default.forget_world()
    gc.collect()  # files and memory of jobs before the last one, which are in reference cycles
    return True
