"""The communicator of a process group, from what torch says of the group."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import distributed as dist
from torch.distributed.constants import default_pg_timeout

from collectives import _core
from collectives.communicator import Communicator
from collectives.errors import CommunicatorError
from collectives.process import binding, environment, hosted
from collectives.process.rendezvous import Keyed, Rendezvous

TAGS = 32767  # that every MPI has, to make a communicator of some ranks only

# Ranks of torch, in their order, as a communicator of MPI or what stands in for it: those of the
# default group.
_world: Any = None

# How many groups of each name and members this process has had.
_made: Counter[tuple[str, tuple[int, ...]]] = Counter()


def is_started_by_mpi() -> bool:
    """Return whether a launcher of MPI has started this process. Local."""
    return any(size in os.environ for _, size in environment.LAUNCHERS)


def communicator(
    store: Any, rank: int, size: int, members: Sequence[int], timeout: float, name: str
) -> Communicator:
    """Return a new communicator for a process group.
    Collective over the members.
    """
    made = name, tuple(members)
    _made[made] += 1
    # A store keeps what an earlier group of this name has said.
    meeting = Keyed(store, rank, size, f"collectives/{made}/{_made[made]}")
    limit = None if timeout == default_pg_timeout.total_seconds() else timeout
    if not members:
        mpi = _ordered(meeting)
    elif dist.get_backend() == "collectives":
        mpi = binding.part_of(_world, members, _tag(name))
    else:
        mpi = _apart(meeting, _tag(name))
    try:
        return Communicator(mpi, timeout=limit)
    finally:
        if members:
            mpi.Free()


def _tag(name: str) -> int:
    return zlib.crc32(name.encode()) % TAGS


def _apart(meeting: Rendezvous, tag: int) -> Any:
    """Return a communicator of ranks whose default group is of another backend. Collective."""
    if not is_started_by_mpi():
        return _without_mpi(meeting)
    world = binding.load().COMM_WORLD
    return binding.part_of(world, meeting.allgather(world.Get_rank()), tag)


def _ordered(meeting: Rendezvous) -> Any:
    """Return a communicator whose ranks are those of torch's default group. Collective."""
    global _world
    rank, size = meeting.rank, meeting.size
    if not is_started_by_mpi() and not (size == 1 and _core.uses_mpi()):
        _world = _without_mpi(meeting)
        return _world
    MPI = binding.load()
    there = MPI.COMM_WORLD.Get_size()
    if size not in (1, there):
        raise CommunicatorError(
            f"torch says that there are {size} ranks, and MPI that there "
            f"{'is 1' if there == 1 else f'are {there}'}: start the program with mpirun -n "
            f"{size} python ..., or all ranks of one host without MPI, with torchrun"
        )
    if _world is not None:  # of a default group that was destroyed
        _world.Free()
        _world = None
    base = MPI.COMM_SELF if size == 1 else MPI.COMM_WORLD
    _world = base.Split(0, rank)
    return _world


def _without_mpi(meeting: Rendezvous) -> hosted.Ranks:
    """Return the ranks of a rendezvous: of the job that they are of already, if there is one.
    Collective.
    """
    job = hosted.job()
    place = None if job is None else (job.COMM_WORLD.size, job.COMM_WORLD.rank)
    places = meeting.allgather(place)
    known = [rank for size, rank in filter(None, places) if size == meeting.size]
    if job is None or len(known) < meeting.size:
        return hosted.join(meeting).COMM_WORLD
    return job.COMM_WORLD.part(known)
