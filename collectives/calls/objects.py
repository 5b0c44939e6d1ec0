"""Collectives for Python objects that can be pickled; large arrays in them are sent separately.

The ranks exchange records of their parcels first; short objects have arrived then. A rank whose
object cannot be pickled announces the error instead, so that no rank waits for the object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from collectives import _core
from collectives._core import GATHER
from collectives.calls import parcels
from collectives.calls.messages import OBJECTS, Messages
from collectives.calls.moving import MovingCalls
from collectives.calls.parcels import Parcel
from collectives.calls.vectors import VectorCalls
from collectives.errors import ArgumentError
from collectives.process.agreement import refusing

if TYPE_CHECKING:
    from collectives.arrays.types import Bytes, Integers

T = TypeVar("T")

IN_FLIGHT = 16  # buffers in flight at a time: enough to keep all ranks busy


class ObjectCalls(MovingCalls, VectorCalls, Messages):
    """The collectives for Python objects that are not arrays."""

    def broadcast_object(
        self, obj: T | None, root: int = 0, *, timeout: float | None = None
    ) -> T | Any:
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
        name = "broadcast_object"
        with self._engine:
            root = self._begin(name, root, timeout)
            got = self._to_all(name, lambda: parcels.pack(obj, "obj"), root, timeout)
        return obj if self.rank == root else got

    def gather_object(
        self, obj: T, root: int = 0, *, timeout: float | None = None
    ) -> list[T] | None:
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
        with self._engine:
            root = self._begin("gather_object", root, timeout)
            got = self._to_root("gather_object", obj, root, timeout)
        return None if got is None else [parcels.unpack(each) for each in got]

    def _to_root(
        self, name: str, obj: Any, root: int, timeout: float | None
    ) -> list[Parcel] | None:
        """Return parcels with copies of all ranks' objects on the root, and None elsewhere."""
        parcel, sizes, envelopes = self._announce(name, obj, timeout)
        if envelopes is None:
            # All ranks know the counts already.
            options = None, None, timeout, 1.0, 1.0, True, _core.Parts(sizes)
            joined = self._engine.call_vector(GATHER, parcel.envelope, None, None, root, *options)
            envelopes = [] if joined is None else parcels.cut(joined, sizes)
        in_flight = InFlight(timeout)
        if self.rank != root:
            for buffer in parcel.buffers:
                in_flight.add(self._message(buffer, root, None, None))
            in_flight.wait()
            return None
        got = []
        for source, envelope in enumerate(envelopes):
            if source == root:
                got.append(parcel.copied())
                continue
            got.append(parcels.unfilled(envelope))
            for buffer in got[-1].buffers:
                in_flight.add(self._message(None, None, buffer, source))
        in_flight.wait()
        return got

    def allgather_object(self, obj: T, *, timeout: float | None = None) -> list[T]:
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
        with self._engine:
            self._begin("allgather_object", 0, timeout)
            parcel, sizes, envelopes = self._announce("allgather_object", obj, timeout)
            if envelopes is None:
                joined = self.allgatherv(parcel.envelope, counts=sizes, timeout=timeout)
                envelopes = parcels.cut(joined, sizes)
            got = [parcels.unfilled(envelope) for envelope in envelopes]
            in_flight = InFlight(timeout)
            for root, each in enumerate(got):
                sources = parcel.buffers if root == self.rank else each.buffers
                for x, out in zip(sources, each.buffers, strict=True):
                    in_flight.add(self.ibroadcast(x, out=out, root=root))
            in_flight.wait()
        return [parcels.unpack(each) for each in got]

    def scatter_object(
        self, objs: Iterable[T] | None, root: int = 0, *, timeout: float | None = None
    ) -> T | Any:
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
        name = "scatter_object"
        with self._engine:
            root = self._begin(name, root, timeout)
            return self._from_root(name, lambda: parcels.pack_each(objs, self.size), root, timeout)

    def alltoall_object(self, objs: Iterable[T], *, timeout: float | None = None) -> list[T]:
        """Send one object from each rank to each rank.
        Collective.

        Parameters
        ----------
        objs : sequence
            ``size`` objects as for `broadcast_object`, the one for rank 0 first. Like that method,
            use this one only between ranks that trust each other.
        timeout : float, optional
            As for `broadcast_object`.

        Returns
        -------
        list
            Copies of the objects that were sent to this rank, its own included, in the order of the
            ranks.

        Raises
        ------
        ArgumentError
            On every rank, if any rank passes another number of objects, or one that cannot be
            pickled; the text names the rank and the reason.
        CollectivesError
            Otherwise, as for `allreduce`.

        Examples
        --------
        >>> import collectives as cc
        >>> got = cc.alltoall_object([f"from {cc.rank()} to {r}" for r in range(cc.size())])
        >>> got[0] == f"from 0 to {cc.rank()}"
        True
        """
        with self._engine:
            self._begin("alltoall_object", 0, timeout)
            packed, error = parcels.tried(lambda: parcels.pack_each(objs, self.size))
            sizes = parcels.lengths(packed, error, self.size)
            lengths = self.alltoall(sizes, timeout=timeout)
            if packed is None or (lengths < 0).any():
                raise self._refusal("alltoall_object", lengths, error, timeout)
            envelopes = np.concatenate([each.envelope for each in packed])
            joined = self.alltoallv(envelopes, sizes, receive_counts=lengths, timeout=timeout)
            got = [parcels.unfilled(envelope) for envelope in parcels.cut(joined, lengths)]
            got[self.rank] = packed[self.rank].copied()
            in_flight = InFlight(timeout)
            # In the order of the distances, so that a buffer has the same number on both ranks.
            for step in range(1, self.size):
                dest, source = (self.rank + step) % self.size, (self.rank - step) % self.size
                for x, out in zip_longest(packed[dest].buffers, got[source].buffers):
                    to, by = None if x is None else dest, None if out is None else source
                    in_flight.add(self._message(x, to, out, by))
            in_flight.wait()
        return [parcels.unpack(each) for each in got]

    def _to_all(
        self, name: str, make: Callable[[], Parcel], root: int, timeout: float | None
    ) -> Any:
        """Return a copy of the object that the root has made a parcel of; None on the root."""
        parcel, error = parcels.tried(make) if self.rank == root else (None, None)
        record = parcels.record(parcel, error)
        self.broadcast(record, out=record, root=root, timeout=timeout)
        size, envelope = parcels.opened(record)
        if size < 0:
            raise self._refusal(name, self._of_root(size, root), error, timeout)
        in_flight = InFlight(timeout)
        if parcel is not None:
            for buffer in parcel.rest():
                # The root's memory is only read, but the core refuses an `out` that is read-only.
                out = buffer if buffer.flags.writeable else None
                in_flight.add(self.ibroadcast(buffer, out=out, root=root))
            in_flight.wait()
            return None
        if envelope is None:
            envelope = np.empty(size, np.uint8)
            # All ranks use one form of a call: trials (`choice.chooser`) count the blocking ones.
            in_flight.add(self.ibroadcast(envelope, out=envelope, root=root))
            in_flight.wait()
        parcel = parcels.unfilled(envelope)
        for buffer in parcel.buffers:
            in_flight.add(self.ibroadcast(buffer, out=buffer, root=root))
        in_flight.wait()
        return parcels.unpack(parcel)

    def _from_root(
        self, name: str, make: Callable[[], list[Parcel]], root: int, timeout: float | None
    ) -> Any:
        """Return a copy of the object in the parcel that the root has made for this rank."""
        record = parcels.record(None, None)
        packed, error, every = None, None, None
        if self.rank == root:
            packed, error = parcels.tried(make)
            every = parcels.records(packed, error, self.size)
        self.scatter(every, out=record, root=root, timeout=timeout)
        size, envelope = parcels.opened(record)
        if size < 0:
            raise self._refusal(name, self._of_root(size, root), error, timeout)
        in_flight = InFlight(timeout)
        if packed is not None:
            for dest, each in enumerate(packed):
                if dest == root:
                    continue
                for buffer in each.rest():
                    in_flight.add(self._message(buffer, dest, None, None))
            in_flight.wait()
            return parcels.unpack(packed[root].copied())
        if envelope is None:
            envelope = np.empty(size, np.uint8)
            in_flight.add(self._message(None, None, envelope, root))
            in_flight.wait()
        parcel = parcels.unfilled(envelope)
        for buffer in parcel.buffers:
            in_flight.add(self._message(None, None, buffer, root))
        in_flight.wait()
        return parcels.unpack(parcel)

    def _begin(self, name: str, root: Any, timeout: float | None, op: str = "") -> int:
        """Check the arguments, and under ``COLLECTIVES_VALIDATE=1`` the calls of all ranks. The
        caller keeps other threads out.
        """
        engine = self._engine
        engine.check_usable()
        with refusing(engine, name):
            number = engine.check_root(root)
            if timeout is not None:
                _core.seconds(timeout)
        if engine.agree is not None:
            text = f"op={op}, root={number}" if op else f"root={number}"
            engine.agree(name, text, True, timeout)
        return number

    def _announce(
        self, name: str, obj: Any, timeout: float | None
    ) -> tuple[Parcel, Integers, list[Bytes] | None]:
        """Pickle this rank's object; return the parcel, the lengths of all ranks' envelopes, and
        the envelopes if all are short.
        """
        parcel, error = parcels.tried(lambda: parcels.pack(obj, "obj"))
        mine = parcels.record(parcel, error, parcels.ROOM if self.size <= parcels.FEW else 0)
        rows = self.allgather(mine, timeout=timeout).reshape(self.size, -1)
        sizes, envelopes = zip(*map(parcels.opened, rows), strict=True)
        lengths = np.array(sizes, np.int64)
        if parcel is None or (lengths < 0).any():
            raise self._refusal(name, lengths, error, timeout)
        short = [each for each in envelopes if each is not None]
        return parcel, lengths, short if len(short) == self.size else None

    def _of_root(self, length: int, root: int) -> Integers:
        """Return the announcement of the root in a row for all ranks."""
        lengths = np.zeros(self.size, np.int64)
        lengths[root] = length
        return lengths

    def _refusal(
        self, name: str, lengths: Integers, error: Exception | None, timeout: float | None
    ) -> ArgumentError:
        """Return the error of a call that some ranks cannot continue, with their reasons."""
        counts = np.maximum(-lengths, 0)
        mine = np.empty(0, np.uint8) if error is None else parcels.text_of(error)
        texts = parcels.cut(self.allgatherv(mine, counts=counts, timeout=timeout), counts)
        told = [
            f"rank {rank}: {text.tobytes().decode(errors='replace')}"
            for rank, text in enumerate(texts)
            if len(text)
        ]
        refusal = ArgumentError(f"{name}: {'; '.join(told)}")
        refusal.__cause__ = error and error.__cause__
        return refusal

    def _message(
        self,
        x: Bytes | None,
        dest: int | None,
        out: Bytes | None,
        source: int | None,
    ) -> _core.Request:
        """Start a message with the tag that is reserved for objects."""
        return self._post(x, dest, out, source, OBJECTS, None, False)


class InFlight:
    """Requests in flight, limited in number: adding one may first wait for the oldest."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout  # of each wait
        self.requests: deque[_core.Request] = deque()

    def add(self, request: _core.Request) -> None:
        """Add a request; if there are too many, wait for the oldest one. Local."""
        request.aside = True
        self.requests.append(request)
        if len(self.requests) > IN_FLIGHT:
            self.requests.popleft().wait(self.timeout)

    def wait(self) -> None:
        """Wait for all requests. Local."""
        while self.requests:
            self.requests.popleft().wait(self.timeout)
