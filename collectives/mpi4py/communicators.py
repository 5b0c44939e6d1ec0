"""Communicators of mpi4py whose collectives run here, and their making from mpi4py's own."""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from mpi4py import MPI

from collectives import _core
from collectives.communicator import Communicator
from collectives.errors import ArgumentError, CommunicatorError
from collectives.mpi4py import tasks, windows
from collectives.mpi4py.calls import OBJECTS, Calls
from collectives.mpi4py.neighbors import NeighborCalls
from collectives.process import processes
from collectives.process.waiting import REQUESTS, Wait, until
from collectives.text.words import shown

T = TypeVar("T")

# The number of blocking collectives that MPI runs first on a communicator that a program splits
# off. Making ours takes 1.5 ms, and 100 short calls gain less than 0.1 ms (2 ranks, MPICH
# 5.0.2, two cores of an AMD EPYC of family 26, quiet machine, 2026-11-25; the same with Open MPI
# 5.0.11 and Intel MPI 2021.17).
FIRST = 100


class Intracomm(Calls):
    """An mpi4py communicator whose collectives run here; made by `accelerate`."""

    def Create(self, group: MPI.Group) -> Any:
        return _wrapped(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Any:
        return _wrapped(super().Create_group(group, tag))

    def Split(self, color: int = 0, key: int = 0) -> Any:
        return _wrapped(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Any:
        return _wrapped(super().Split_type(split_type, key, info))

    def Shrink(self) -> Any:
        return _wrapped(super().Shrink())

    def Create_cart(self, *args: Any, **options: Any) -> Any:
        return _wrapped(super().Create_cart(*args, **options))

    def Create_graph(self, *args: Any, **options: Any) -> Any:
        return _wrapped(super().Create_graph(*args, **options))

    def Create_dist_graph(self, *args: Any, **options: Any) -> Any:
        return _wrapped(super().Create_dist_graph(*args, **options))

    def Create_dist_graph_adjacent(self, *args: Any, **options: Any) -> Any:
        return _wrapped(super().Create_dist_graph_adjacent(*args, **options))

    def Revoke(self) -> None:
        super().Revoke()
        self._state.revoke()

    def free(self) -> None:
        if self and self not in (MPI.COMM_WORLD, MPI.COMM_SELF):
            self.Free()

    def Free(self) -> None:
        self._end(super().Free)

    def Disconnect(self) -> None:
        self._end(super().Disconnect)

    def _end(self, end: Callable[[], None]) -> None:
        """Free the communicator of MPI, and the one of this library, if there is one, when its
        operations in flight are complete: with MPI, they complete normally.
        """
        state = self._state if self else None
        end()
        vars(self).clear()
        for comm in [] if state is None else state.made_ours():
            if comm._engine.broken is None:
                is_idle = functools.partial(_is_idle, comm)
                until(is_idle, Wait(REQUESTS, timeout=comm.timeout))
                comm.free()
        if state is not None:
            state.end()

    def __reduce__(self) -> Any:
        plain = MPI.Intracomm(self)
        for name in ("COMM_WORLD", "COMM_SELF"):
            if plain == getattr(MPI, name):
                return _named, (name,)
        return plain.__reduce__()


class Topocomm(NeighborCalls, Intracomm):
    """An `Intracomm` with a topology, whose ranks have met: no collective between neighbours has to
    wait for them, and none is run by MPI, which may exchange the blocks of others.
    """

    def Dup(self, info: MPI.Info | None = None) -> Any:
        return _wrapped(super().Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> Any:
        return _wrapped(super().Dup_with_info(info))

    def Clone(self) -> Any:
        return _wrapped(super().Clone())


class Cartcomm(Topocomm, MPI.Cartcomm):
    """An `Intracomm` of a Cartesian grid of ranks."""

    def Sub(self, remain_dims: Any) -> Any:
        return _wrapped(super().Sub(remain_dims))


class Graphcomm(Topocomm, MPI.Graphcomm):
    """An `Intracomm` of a graph of ranks."""


class Distgraphcomm(Topocomm, MPI.Distgraphcomm):
    """An `Intracomm` of a graph of ranks, of which each knows its neighbours."""


CLASSES = (
    (MPI.Cartcomm, Cartcomm),
    (MPI.Graphcomm, Graphcomm),
    (MPI.Distgraphcomm, Distgraphcomm),
    (MPI.Intracomm, Intracomm),
)


def _is_idle(comm: Communicator) -> bool:
    """Return whether no operation of a communicator is in flight."""
    return not _core.pending(comm._engine)


def _early(name: str) -> Any:
    """Return the method by which MPI runs a collective while it is one of the first."""

    def method(self: Intracomm, *args: Any, **options: Any) -> Any:
        state = self._state
        if state.first and state.comm is None:
            state.first -= 1
            return self._by_mpi(name, *args, **options)
        self.__class__ = Intracomm
        return getattr(self, name)(*args, **options)

    return functools.wraps(getattr(MPI.Intracomm, name))(method)


# The class of communicators whose first collectives MPI runs.
EARLY = type(
    Intracomm.__name__,
    (Intracomm,),
    {"__doc__": Intracomm.__doc__, **{name: _early(name) for name in (*tasks.TASKS, *OBJECTS)}},
)


def accelerate(comm: MPI.Intracomm) -> Intracomm:
    """Return an mpi4py communicator whose collectives run here.
    Local, or collective if `comm` has a topology; then, or in the first collective of it, the ranks
    make a `Communicator`.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The ranks. If it is accelerated already, it is returned. If it is freed, or has no ranks
        because `Split` was given ``MPI.UNDEFINED``, the calls on it raise MPI's error.

    Returns
    -------
    Intracomm
        It has the handle of `comm`, and is an object of a subclass of its class, so that a program
        can use it in place of `comm`. Communicators that are made of it (by `Split`, `Dup`,
        `Create_cart` and others) are accelerated, too, most of them after a number of collectives.
        `Free` frees `comm`.

    Raises
    ------
    ArgumentError
        If `comm` is an intercommunicator, ``MPI.COMM_NULL``, or none of mpi4py's.
    CommunicatorError
        If MPI is not initialised yet, or finalised already.

    Notes
    -----
    :doc:`/hpc/mpi4py` lists the calls that run here, and those that MPI runs.

    Examples
    --------
    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> from collectives.mpi4py import accelerate
    >>> comm = accelerate(MPI.COMM_WORLD)
    >>> isinstance(comm, MPI.Intracomm), comm == MPI.COMM_WORLD
    (True, True)
    >>> x = np.ones(3)
    >>> comm.Allreduce(MPI.IN_PLACE, x)
    >>> bool((x == comm.size).all())
    True
    """
    if isinstance(comm, Intracomm):
        return comm
    if not MPI.Is_initialized():
        raise CommunicatorError(
            "MPI is not initialised, and comm has no ranks before: call MPI.Init() first"
        )
    if MPI.Is_finalized():
        _core.finalise_noticed()
        _core.guard()
    processes.mark_rank()
    windows.watch()
    for theirs, ours in CLASSES:
        if isinstance(comm, theirs):
            made = ours(comm)
            if isinstance(made, Topocomm) and made:
                made._near()
            return _counting(made)
    if isinstance(comm, MPI.Intercomm):
        raise ArgumentError(
            "comm is an intercommunicator, whose collectives are MPI's own: use it as it is"
        )
    given = "MPI.COMM_NULL" if comm is MPI.COMM_NULL else shown(comm)
    raise ArgumentError(f"comm is {given}, and must be an mpi4py intracommunicator")


def install(module: Any) -> None:
    """Accelerate ``COMM_WORLD`` in ``mpi4py.MPI``, once that is initialised. Local."""

    def replace() -> None:
        module.COMM_WORLD = accelerate(module.COMM_WORLD)
        copyreg.pickle(module.Intracomm, _reduced)

    def replacing(initialise: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(initialise)
        def function(*args: Any) -> T:
            result = initialise(*args)
            replace()
            return result

        return function

    if module.Is_initialized():
        replace()
    else:  # the program has set mpi4py.rc.initialize to False
        module.Init = replacing(module.Init)
        module.Init_thread = replacing(module.Init_thread)


def _wrapped(comm: Any) -> Any:
    """Return a communicator that MPI has made of an accelerated one."""
    if not isinstance(comm, MPI.Intracomm) or not comm:
        return comm
    made = accelerate(comm)
    if isinstance(made, Topocomm):
        made._near()
        return made
    made._state.first = FIRST
    return _counting(made)


def _counting(comm: Intracomm) -> Intracomm:
    """Return a communicator in the class that counts its first collectives, if MPI has to run them,
    because all objects of one communicator have to agree.
    """
    if comm and comm._state.first:
        comm.__class__ = EARLY
    return comm


def _reduced(comm: MPI.Intracomm) -> Any:
    """Return the pickle of a plain communicator; mpi4py's constant is not the one of its name."""
    found = comm.__reduce__()
    return (_constant, (found,)) if isinstance(found, str) else found


def _constant(name: str) -> Any:
    return getattr(MPI, name)


def _named(name: str) -> Intracomm:
    """Return the communicator that a pickle names."""
    return accelerate(getattr(MPI, name))
