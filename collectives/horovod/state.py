"""The state between `init` and `shutdown`."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from collectives.communicator import Communicator
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.gpu_operations import Choice
from collectives.process import hosted


class Places(NamedTuple):
    """The place of this rank among the hosts.

    Attributes
    ----------
    local_rank, local_size : int
        Its number among the ranks of its host, and their number.
    cross_rank, cross_size : int
        The number of its host among those that have a rank with its `local_rank`, and their
        number.
    is_homogeneous : bool
        Whether all hosts have the same number of ranks.
    """

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    is_homogeneous: bool

    @classmethod
    def find(cls, comm: Communicator) -> Places:
        """Find the places of all ranks of `comm`. Collective."""
        nodes = comm.allgather_object(comm.node)
        counts = [nodes.count(node) for node in range(comm.nodes)]
        alike = [node for node, count in enumerate(counts) if count > comm.local_rank]
        return cls(
            comm.local_rank,
            comm.local_size,
            alike.index(comm.node),
            len(alike),
            len(set(counts)) == 1,
        )


class State:
    """The state that calls between `init` and `shutdown` need."""

    comm: Communicator
    places: Places
    choice: Choice

    def __init__(self, comm: Communicator, places: Places, choice: Choice) -> None:
        self.comm, self.places, self.choice = comm, places, choice
        self.sets: dict[tuple[int, ...], Any] = {}  # process sets by their ranks
        self.timeline: Any = None

    def group(self, ranks: tuple[int, ...]) -> Communicator | None:
        """Return a communicator of some `ranks`, or None on all others. Collective.

        A communicator that was made before, and was not dropped, is used again.
        """
        made = _groups.setdefault(self.comm, {})
        if ranks not in made:
            part = self.comm.split(0 if self.comm.rank in ranks else None)
            if part is not None:
                part.timeout = self.comm.timeout
                part._engine.warning = self.comm._engine.warning
            made[ranks] = part
        return made[ranks]

    def drop(self, ranks: tuple[int, ...]) -> None:
        """Free the communicator of some `ranks`. Collective."""
        comm = _groups.get(self.comm, {}).pop(ranks, None)
        if comm is not None:
            comm.free()


Groups = dict[tuple[int, ...], Communicator | None]
_groups: weakref.WeakKeyDictionary[Communicator, Groups] = weakref.WeakKeyDictionary()
_state: State | None = None


def current() -> State | None:
    """Return the state of the current job, or None. Local."""
    return None if _state is None or has_ended(_state.comm) else _state


def latest() -> State | None:
    """Return the latest state, even if its job has ended, or None. Local."""
    return _state


def has_ended(comm: Communicator) -> bool:
    """Return whether the job of a communicator has ended, as in workers of an engine. Local."""
    job = getattr(comm._mpi, "job", None)
    return comm._mpi is None or (job is not None and job is not hosted.joined())


def enter(made: State | None) -> None:
    """Set the state that `init` has `made`; None at the end. Local."""
    global _state
    _state = made


def initialised() -> State:
    """Return the current state; raise an error without `init`. Local."""
    found = current()
    if found is None:
        raise HorovodArgumentError(
            "call hvd.init() before: this program has not called it, or has ended it"
        )
    return found
