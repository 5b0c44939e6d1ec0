"""Collectives between neighbours on mpi4py's topologies, run by this library.

A block is a number of bytes. If MPI allows that the blocks that a rank sends differ in length from
those that it receives, each block has a count of its own. Only the topology determines this, or
arguments that must be equal on all ranks, so that all ranks decide alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from collectives.calls.neighbors import Neighbors
from collectives.communicator import Communicator
from collectives.errors import MismatchError
from collectives.mpi4py.calls import Calls, Made
from collectives.mpi4py.messages import Bytes, Message, typed_blocks
from collectives.mpi4py.requests import Request
from collectives.mpi4py.tasks import Task, nothing


class NeighborCalls(Calls):
    """The collectives between the neighbours of a topology."""

    def _near(self, lane: int | None = None) -> Neighbors | None:
        """Return the neighbours on the communicator of this library, or on one for a persistent
        collective; None on all ranks if they do not name each other. Collective, the first time.
        """
        comm, known = self._comm, self._state.near
        if lane not in known:
            known[lane] = self._found(comm if lane is None else self._state.lanes[lane])
        found: Neighbors | None = known[lane]
        return found

    @Made
    def _ready(self) -> dict[str, Callable[..., Any]]:
        """Functions that run collectives on plain arrays of equal blocks on all ranks, by the names
        of mpi4py's methods; each returns whether it has run. Collective, the first time.
        """
        near = self._near()
        if near is None or not near._has_equal_blocks:
            return {}
        plain = near._engine.neighbors_plain
        return {
            "Neighbor_allgather": functools.partial(plain, near._allgather),
            "Neighbor_alltoall": functools.partial(plain, near._alltoall),
        }

    def _found(self, comm: Communicator) -> Neighbors | None:
        topology = self.Get_topology()
        if topology == MPI.CART:
            dims, periods, _ = MPI.Cartcomm(self).Get_topo()
            return comm.cart(dims, list(map(bool, periods)))
        if topology == MPI.GRAPH:
            sources = destinations = MPI.Graphcomm(self).Get_neighbors(comm.rank)
        else:
            sources, destinations, _ = MPI.Distgraphcomm(self).Get_dist_neighbors()
        try:
            return comm.graph(sources, destinations)
        except MismatchError:
            return None

    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        near = self._near()
        if near is None:
            found: list[Any] = self._by_mpi("neighbor_allgather", sendobj)
            return found
        self._state.here["neighbor_allgather"] += 1
        data = _dumped(sendobj)
        counts = near.neighbor_allgatherv(np.array([len(data)]))
        return _loaded(near, near.neighbor_allgatherv(data), counts)

    def neighbor_alltoall(self, sendobj: Any) -> list[Any]:
        near = self._near()
        if near is None:
            found: list[Any] = self._by_mpi("neighbor_alltoall", sendobj)
            return found
        objects = list(sendobj)
        if len(objects) != len(near.destinations):
            raise ValueError(f"expecting {len(near.destinations)} items, got {len(objects)}")
        self._state.here["neighbor_alltoall"] += 1
        parts = list(map(_dumped, objects))
        sent = list(map(len, parts))
        data = np.concatenate(parts) if parts else np.empty(0, np.uint8)
        counts = near.neighbor_alltoallv(np.array(sent, np.int64), [1] * len(sent))
        return _loaded(near, near.neighbor_alltoallv(data, sent), counts)


def allgather(near: Neighbors, sendbuf: Any, recvbuf: Any) -> Task:
    ends = len(near.sources)
    source, target = _given(near, sendbuf), _message(recvbuf, "recvbuf", ends)
    received = len(target.data) // max(1, ends)

    def start(blocking: bool) -> Any:
        x = source.load()
        if near._has_equal_blocks and len(x) == received:
            call = near.neighbor_allgather if blocking else near.ineighbor_allgather
            return call(x, target.data)
        return near._allgatherv(x, target.data, [received] * ends, None, None, blocking)

    return Task(start, target.finish)


def allgatherv(near: Neighbors, sendbuf: Any, recvbuf: Any) -> Task:
    target = _message(recvbuf, "recvbuf", len(near.sources), by_counts=True)
    source, counts = _given(near, sendbuf), target.counts or []

    def start(blocking: bool) -> Any:
        return near._allgatherv(source.load(), target.data, counts, target.displs, None, blocking)

    return Task(start, target.finish)


def alltoall(near: Neighbors, sendbuf: Any, recvbuf: Any) -> Task:
    ends, starts = len(near.sources), len(near.destinations)
    source = _message(sendbuf, "sendbuf", starts)
    target = _message(recvbuf, "recvbuf", ends)
    sent, received = len(source.data) // max(1, starts), len(target.data) // max(1, ends)

    def start(blocking: bool) -> Any:
        x = source.load()
        if near._has_equal_blocks and sent == received:
            call = near.neighbor_alltoall if blocking else near.ineighbor_alltoall
            return call(x, target.data)
        counts = [sent] * starts, [received] * ends, None, None
        return near._alltoallv(x, target.data, counts, None, blocking)

    return Task(start, target.finish)


def alltoallv(near: Neighbors, sendbuf: Any, recvbuf: Any) -> Task:
    source = _message(sendbuf, "sendbuf", len(near.destinations), by_counts=True)
    target = _message(recvbuf, "recvbuf", len(near.sources), by_counts=True)
    counts = source.counts or [], target.counts or [], source.displs, target.displs

    def start(blocking: bool) -> Any:
        return near._alltoallv(source.load(), target.data, counts, None, blocking)

    return Task(start, target.finish)


def alltoallw(near: Neighbors, sendbuf: Any, recvbuf: Any) -> Task:
    sources = typed_blocks(sendbuf, "sendbuf", len(near.destinations))
    targets = typed_blocks(recvbuf, "recvbuf", len(near.sources), writes=True)

    def start(blocking: bool) -> Any:
        out = [each.data for each in targets]
        return near._alltoallw([each.load() for each in sources], out, None, blocking)

    def finish() -> None:
        for target, rank in zip(targets, near.sources, strict=True):
            if rank is not None:
                target.finish()

    return Task(start, finish)


TASKS: dict[str, Callable[[Neighbors, Any, Any], Task]] = {
    f"Neighbor_{function.__name__}": function
    for function in (allgather, allgatherv, alltoall, alltoallv, alltoallw)
}


class _Nothing:
    """A stand-in for a buffer that has no parts, and is not read."""

    data = np.empty(0, np.uint8)
    counts: list[int] | None = None
    displs: list[int] | None = None
    finish = staticmethod(nothing)

    def load(self) -> Bytes:
        return self.data


def _message(spec: Any, name: str, parts: int, by_counts: bool = False) -> Message | _Nothing:
    """Return the message of a buffer specification."""
    if not parts:
        return _Nothing()
    return Message(spec, name, parts, writes=name == "recvbuf", by_counts=by_counts)


def _given(near: Neighbors, sendbuf: Any) -> Message | _Nothing:
    """Return the message of a rank to all its destinations, if there are any."""
    return _message(sendbuf, "sendbuf", int(bool(near.destinations)))


def blocking(name: str) -> Any:
    """Return the method that runs a collective."""

    def method(self: NeighborCalls, sendbuf: Any, recvbuf: Any) -> None:
        plain = self._ready.get(name)
        if plain is not None and plain(sendbuf, recvbuf):
            self._state.here[name] += 1
            return
        near = self._near()
        if near is None:
            self._by_mpi(name, sendbuf, recvbuf)
            return
        task = TASKS[name](near, sendbuf, recvbuf)
        self._state.here[name] += 1
        task.start(True)
        task.finish()

    return functools.wraps(getattr(MPI.Topocomm, name))(method)


def nonblocking(name: str) -> Any:
    """Return the method that starts a collective and returns at once."""
    theirs = f"I{name.lower()}"

    def method(self: NeighborCalls, sendbuf: Any, recvbuf: Any) -> Any:
        # The ranks have met, so that none has to wait for the others.
        ready = (self._state.moves or self._moves_requests()) and None in self._state.near
        near = self._near() if ready else None
        if near is None:
            return self._by_mpi(theirs, sendbuf, recvbuf)
        plain = self._ready.get(name)
        started, finish = plain is not None and plain(sendbuf, recvbuf, False), nothing
        if not started:
            task = TASKS[name](near, sendbuf, recvbuf)
            started, finish = task.start(False), task.finish
        self._state.here[theirs] += 1
        return Request(started, finish)

    return functools.wraps(getattr(MPI.Topocomm, theirs))(method)


def persistent(name: str) -> Any:
    """Return the method that prepares a collective."""
    theirs = f"{name}_init"

    def method(
        self: NeighborCalls, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> Any:
        def made(lane: int) -> Task | None:
            near = self._near(lane)
            return None if near is None else TASKS[name](near, sendbuf, recvbuf)

        return self._prepared(theirs, made, sendbuf, recvbuf, info)

    return functools.wraps(getattr(MPI.Topocomm, theirs))(method)


for _name in TASKS:
    setattr(NeighborCalls, _name, blocking(_name))
    setattr(NeighborCalls, f"I{_name.lower()}", nonblocking(_name))
    if hasattr(MPI.Topocomm, f"{_name}_init"):
        setattr(NeighborCalls, f"{_name}_init", persistent(_name))


def _dumped(value: Any) -> Bytes:
    return np.frombuffer(MPI.pickle.dumps(value), np.uint8)


def _loaded(near: Neighbors, data: Bytes, counts: Any) -> list[Any]:
    """Return the objects of the sources, and None for sources beyond an end."""
    sizes = iter(counts.tolist())
    lengths = [0 if s is None else next(sizes) for s in near.sources]
    ends = list(accumulate(lengths))
    return [
        None if s is None else MPI.pickle.loads(data[end - n : end])
        for s, end, n in zip(near.sources, ends, lengths, strict=True)
    ]
