"""Collectives for Python objects that can be pickled; large arrays in them are sent separately.

An object is pickled with protocol 5. Its *envelope* is one array of bytes: the pickle, then the
lengths of the buffers that are not in it, then their number. These buffers are the memory of large
arrays in the object. They are sent one by one, without a copy, and received into new memory, which
the received arrays then use. Before that, the ranks exchange the lengths of their envelopes. A rank
whose object cannot be pickled announces the error instead, so that no rank waits for the object.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from collectives import _core
from collectives.calls.messages import OBJECTS, Messages
from collectives.calls.moving import MovingCalls
from collectives.calls.vectors import VectorCalls
from collectives.errors import ArgumentError, CommunicatorError
from collectives.process.agreement import refusing
from collectives.text.words import error_text, shown

__all__ = ["ObjectCalls"]

# Buffers of this many bytes and more are sent separately; smaller ones are copied into the pickle.
# A broadcast of 32 arrays of 32 KiB takes 185 us in the pickle and 227 separately, of 64 KiB 287
# and 296, of 128 KiB 566 and 452 (MPICH; mpiexec -n 2 python benchmarks/measure_packing.py; EPYC,
# 2026-11-20, the fastest of many calls on a machine that others used, too).
APART = 1 << 16

IN_FLIGHT = 16  # buffers under way at a time: enough to keep all ranks busy
TEXT = 1000  # at most this many bytes of an error text are sent to other ranks

Bytes = NDArray[np.uint8]
Sizes = NDArray[np.int64]
T = TypeVar("T")


class Parcel(NamedTuple):
    """A pickled object: its envelope, and the buffers that are sent separately."""

    envelope: Bytes
    buffers: list[Bytes]

    def copied(self) -> Parcel:
        """Return a parcel with copies of the buffers, which do not share the object's memory."""
        return Parcel(self.envelope, [each.copy() for each in self.buffers])


class ObjectCalls(MovingCalls, VectorCalls, Messages):
    """The collectives for Python objects that are not arrays."""

    def broadcast_object(self, obj: Any, root: int = 0, *, timeout: float | None = None) -> Any:
        """Give the root's object to every rank.
        Collective.

        Objects are sent as pickles. Loading a pickle can run any code that its sender chose, so use
        this only between ranks that trust each other.

        Parameters
        ----------
        obj : object
            On the root, any object that can be pickled; ignored on other ranks. Arrays of 64 KiB
            and more in it are not copied into the pickle.
        root : int
            The rank that has the object.
        timeout : float, optional
            As for `allreduce`. It limits each wait by itself; there are several.

        Returns
        -------
        object
            `obj` itself on the root, a copy on other ranks. Arrays in the copy are writable if
            those of the root are.

        Raises
        ------
        ArgumentError
            On every rank, if the object cannot be pickled. Nothing was sent, and the communicator
            is usable afterwards.
        CollectivesError
            Otherwise, as for `allreduce`.

        Notes
        -----
        An error while a pickle is loaded, for example because a module exists only on the sender,
        is raised on that rank alone. All data has arrived by then, and the communicator is usable
        afterwards.

        Examples
        --------
        >>> import collectives as cc
        >>> cc.broadcast_object({"rate": 0.1, "layers": [64, 10]})
        {'rate': 0.1, 'layers': [64, 10]}
        """
        root = self._begin("broadcast_object", root, timeout)
        parcel, error = _tried(lambda: _pack(obj, "obj")) if self.rank == root else (None, None)
        size = np.array([_length(parcel, error)], np.int64)
        self.broadcast(size, out=size, root=root, timeout=timeout)
        if size[0] < 0:
            raise self._refusal("broadcast_object", self._from_root(size, root), error, timeout)
        in_flight = InFlight(timeout)
        if parcel is not None:
            for buffer in (parcel.envelope, *parcel.buffers):
                # The root's memory is only read, but the core refuses an `out` that is read-only.
                out = buffer if buffer.flags.writeable else None
                in_flight.add(self.ibroadcast(buffer, out=out, root=root))
            in_flight.wait()
            return obj
        envelope = np.empty(size[0], np.uint8)
        # All ranks use one form of a call: trials (`choice.online`) count the blocking ones.
        parcel = _unfilled(self.ibroadcast(envelope, out=envelope, root=root).wait(timeout))
        for buffer in parcel.buffers:
            in_flight.add(self.ibroadcast(buffer, out=buffer, root=root))
        in_flight.wait()
        return _unpack(parcel)

    def gather_object(
        self, obj: Any, root: int = 0, *, timeout: float | None = None
    ) -> list[Any] | None:
        """Give the objects of all ranks to the root.
        Collective.

        Parameters
        ----------
        obj : object
            This rank's contribution, as for `broadcast_object`. Like that method, use this one only
            between ranks that trust each other.
        root : int
            The rank that gets the objects.
        timeout : float, optional
            As for `broadcast_object`.

        Returns
        -------
        list or None
            On the root, a copy of every rank's object, its own included, in the order of the ranks.
            None on other ranks.

        Raises
        ------
        ArgumentError
            On every rank, if the object of any rank cannot be pickled; the text names the rank and
            the reason.
        CollectivesError
            Otherwise, as for `allreduce`.

        Examples
        --------
        >>> import collectives as cc
        >>> found = cc.gather_object("nothing unusual")
        >>> found is None or len(found) == cc.size()
        True
        """
        root = self._begin("gather_object", root, timeout)
        parcel, sizes = self._announce("gather_object", obj, timeout)
        joined = self.gatherv(parcel.envelope, counts=sizes, root=root, timeout=timeout)
        in_flight = InFlight(timeout)
        if self.rank != root:
            for buffer in parcel.buffers:
                in_flight.add(self._message(buffer, root, None, None))
            in_flight.wait()
            return None
        parcels = []
        for source, envelope in enumerate(_cut(joined, sizes)):
            if source == root:
                parcels.append(parcel.copied())
                continue
            parcels.append(_unfilled(envelope))
            for buffer in parcels[-1].buffers:
                in_flight.add(self._message(None, None, buffer, source))
        in_flight.wait()
        return [_unpack(each) for each in parcels]

    def allgather_object(self, obj: Any, *, timeout: float | None = None) -> list[Any]:
        """Give the objects of all ranks to every rank.
        Collective.

        Parameters
        ----------
        obj : object
            This rank's contribution, as for `broadcast_object`. Like that method, use this one only
            between ranks that trust each other.
        timeout : float, optional
            As for `broadcast_object`.

        Returns
        -------
        list
            A copy of every rank's object, its own included, in the order of the ranks.

        Raises
        ------
        CollectivesError
            As for `gather_object`.

        Examples
        --------
        >>> import collectives as cc
        >>> cc.allgather_object(("rank", cc.rank()))[0]
        ('rank', 0)
        """
        self._begin("allgather_object", 0, timeout)
        parcel, sizes = self._announce("allgather_object", obj, timeout)
        joined = self.allgatherv(parcel.envelope, counts=sizes, timeout=timeout)
        parcels = [_unfilled(envelope) for envelope in _cut(joined, sizes)]
        in_flight = InFlight(timeout)
        for root, each in enumerate(parcels):
            sources = parcel.buffers if root == self.rank else each.buffers
            for x, out in zip(sources, each.buffers, strict=True):
                in_flight.add(self.ibroadcast(x, out=out, root=root))
        in_flight.wait()
        return [_unpack(each) for each in parcels]

    def scatter_object(
        self, objs: Iterable[Any] | None, root: int = 0, *, timeout: float | None = None
    ) -> Any:
        """Give each rank one of the root's objects.
        Collective.

        Parameters
        ----------
        objs : sequence or None
            On the root, ``size`` objects as for `broadcast_object`, the one for rank 0 first;
            ignored on other ranks. Like that method, use this one only between ranks that trust
            each other.
        root : int
            The rank that has the objects.
        timeout : float, optional
            As for `broadcast_object`.

        Returns
        -------
        object
            A copy of ``objs[rank]``, also on the root.

        Raises
        ------
        ArgumentError
            On every rank, if the root passes another number of objects, or one that cannot be
            pickled.
        CollectivesError
            Otherwise, as for `allreduce`.

        Examples
        --------
        >>> import collectives as cc
        >>> tasks = [{"part": r} for r in range(cc.size())]
        >>> cc.scatter_object(tasks) == {"part": cc.rank()}
        True
        """
        root = self._begin("scatter_object", root, timeout)
        size = np.empty(1, np.int64)
        parcels, error = None, None
        if self.rank == root:
            parcels, error = _tried(lambda: _pack_each(objs, self.size))
            if parcels is None:
                lengths = [_length(None, error)] * self.size
            else:
                lengths = [_length(each, None) for each in parcels]
            self.scatter(np.array(lengths, np.int64), out=size, root=root, timeout=timeout)
        else:
            self.scatter(None, out=size, root=root, timeout=timeout)
        if size[0] < 0:
            raise self._refusal("scatter_object", self._from_root(size, root), error, timeout)
        in_flight = InFlight(timeout)
        if parcels is not None:
            for dest, each in enumerate(parcels):
                if dest == root:
                    continue
                for buffer in (each.envelope, *each.buffers):
                    in_flight.add(self._message(buffer, dest, None, None))
            in_flight.wait()
            return _unpack(parcels[root].copied())
        envelope = np.empty(size[0], np.uint8)
        self._message(None, None, envelope, root).wait(timeout)
        parcel = _unfilled(envelope)
        for buffer in parcel.buffers:
            in_flight.add(self._message(None, None, buffer, root))
        in_flight.wait()
        return _unpack(parcel)

    def _begin(self, name: str, root: Any, timeout: float | None) -> int:
        """Check the arguments, and under ``COLLECTIVES_VALIDATE=1`` the calls of all ranks."""
        engine = self._engine
        if engine.broken is not None:
            raise CommunicatorError(engine.broken)
        with refusing(engine, name):
            number = engine.check_root(root)
            if timeout is not None:
                _core.seconds(timeout)
        if engine.agree is not None:
            with engine:
                engine.agree(name, f"root={number}", True, timeout)
        return number

    def _announce(self, name: str, obj: Any, timeout: float | None) -> tuple[Parcel, Sizes]:
        """Pickle this rank's object; return the parcel and the lengths of all ranks' envelopes."""
        parcel, error = _tried(lambda: _pack(obj, "obj"))
        mine = np.array([_length(parcel, error)], np.int64)
        lengths = self.allgather(mine, timeout=timeout).reshape(-1)
        if parcel is None or (lengths < 0).any():
            raise self._refusal(name, lengths, error, timeout)
        return parcel, lengths

    def _from_root(self, length: Sizes, root: int) -> Sizes:
        """Return what the root announced as if all ranks had announced something."""
        lengths = np.zeros(self.size, np.int64)
        lengths[root] = length[0]
        return lengths

    def _refusal(
        self, name: str, lengths: Sizes, error: Exception | None, timeout: float | None
    ) -> ArgumentError:
        """Return the error of a call that some ranks cannot continue, with their reasons."""
        counts = np.maximum(-lengths, 0)
        mine = np.empty(0, np.uint8) if error is None else _text(error)
        texts = _cut(self.allgatherv(mine, counts=counts, timeout=timeout), counts)
        told = [
            f"rank {rank}: {text.tobytes().decode(errors='replace')}"
            for rank, text in enumerate(texts)
            if len(text)
        ]
        refusal = ArgumentError(f"{name}: {'; '.join(told)}")
        refusal.__cause__ = error and error.__cause__
        return refusal

    def _message(
        self, x: Bytes | None, dest: int | None, out: Bytes | None, source: int | None
    ) -> _core.Request:
        """Start a message with the tag that is reserved for objects."""
        request: _core.Request = self._post(x, dest, out, source, OBJECTS, None, False)
        return request


class InFlight:
    """Requests in flight, limited in number: adding one may first wait for the oldest."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout  # of each wait
        self.requests: deque[_core.Request] = deque()

    def add(self, request: _core.Request) -> None:
        """Add a request; if there are too many, wait for the oldest one. Local."""
        self.requests.append(request)
        if len(self.requests) > IN_FLIGHT:
            self.requests.popleft().wait(self.timeout)

    def wait(self) -> None:
        """Wait for all requests. Local."""
        while self.requests:
            self.requests.popleft().wait(self.timeout)


def _pack(obj: Any, name: str) -> Parcel:
    """Pickle an object."""
    buffers: list[Bytes] = []

    def inside(buffer: pickle.PickleBuffer) -> bool:
        """Return whether a buffer goes into the pickle; if not, put it on the list."""
        memory = buffer.raw()
        if memory.nbytes < APART:
            return True
        buffers.append(np.frombuffer(memory, np.uint8))
        return False

    file = io.BytesIO()
    try:
        pickle.Pickler(file, 5, buffer_callback=inside).dump(obj)
    except Exception as error:
        raise ArgumentError(f"{name} cannot be pickled: {error_text(error)}") from error
    # The lengths are known only now, and pickle ignores what follows the pickled object.
    file.write(np.array([*map(len, buffers), len(buffers)], np.int64).tobytes())
    return Parcel(np.frombuffer(file.getbuffer(), np.uint8), buffers)


def _pack_each(objs: Iterable[Any] | None, size: int) -> list[Parcel]:
    """Pickle the objects for all ranks."""
    try:
        each = list(objs)  # type: ignore[arg-type]  # raises TypeError if it is not iterable
    except TypeError:
        raise ArgumentError(
            f"objs is {shown(objs)}, and must be a sequence of {size} objects, one for each rank"
        ) from None
    if len(each) != size:
        raise ArgumentError(
            f"objs has {len(each)} objects, and must have {size}, one for each rank"
        )
    return [_pack(obj, f"objs[{rank}]") for rank, obj in enumerate(each)]


def _tried(make: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return what a function returns, or what it raises."""
    try:
        return make(), None
    except ArgumentError as error:
        return None, error


def _text(error: Exception) -> Bytes:
    """Return the text of an error that is sent to the other ranks."""
    return np.frombuffer(str(error).encode(errors="replace")[:TEXT], np.uint8)


def _length(parcel: Parcel | None, error: Exception | None) -> int:
    """Return what a rank announces: the length of its envelope, or minus that of an error text."""
    if error is not None:
        return -len(_text(error))
    return 0 if parcel is None else len(parcel.envelope)


def _cut(joined: Bytes, lengths: Sizes) -> list[Bytes]:
    """Cut the joined bytes of all ranks into those of each rank."""
    return np.split(joined, np.cumsum(lengths)[:-1])


def _unfilled(envelope: Bytes) -> Parcel:
    """Return a parcel with memory for the buffers that an envelope announces."""
    tail = envelope[-8:].tobytes()
    (number,) = np.frombuffer(tail, np.int64)
    lengths = np.frombuffer(envelope[len(envelope) - 8 - 8 * number :].tobytes(), np.int64)[:-1]
    return Parcel(envelope, [np.empty(length, np.uint8) for length in lengths])


def _unpack(parcel: Parcel) -> Any:
    """Return the object in a parcel; its arrays use the buffers of the parcel."""
    return pickle.loads(parcel.envelope.data, buffers=parcel.buffers)
