"""Collectives of objects for mpi4py: pickled by ``MPI.pickle``, which programs may change.

Short pickles are sent in records, by one collective of bytes. If one is longer, or an object cannot
be pickled, its record is empty, and the calls of this library for objects follow on all ranks,
because all have seen the record.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from functools import reduce as fold
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from collectives._core import ALLGATHER, ALLTOALL, BROADCAST, SCATTER
from collectives.calls.parcels import FEW
from collectives.communicator import Communicator
from collectives.errors import ArgumentError
from collectives.text.words import error_text

RECORD = 256  # bytes, of which two are the length
EMPTY = bytes(RECORD)

Op = Callable[[Any, Any], Any]


class Pickled:
    """An object to send: loading its pickle returns the object."""

    def __init__(self, obj: Any) -> None:
        self._buffers: list[Any] = []
        self._error: BaseException | None = None
        try:
            try:
                self._data, self._buffers[:] = MPI.pickle.dumps_oob(obj)
            except TypeError:  # of a function that takes no `buffer_callback`, or of the object
                self._data = MPI.pickle.dumps(obj)
        except BaseException as error:  # it is raised later, when the other ranks learn of it
            self._error = error

    def record(self) -> bytes:
        """Return the pickle and its length, if it is short. Local."""
        if self._error is not None or self._buffers or len(self._data) > RECORD - 2:
            return EMPTY
        return (len(self._data).to_bytes(2, "little") + self._data).ljust(RECORD)

    def __reduce__(self) -> Any:
        return _loaded, self._parts()

    def _parts(self) -> tuple[pickle.PickleBuffer, ...]:
        if self._error is not None:
            raise self._error
        each: list[Any] = [self._data, *self._buffers]
        return tuple(map(pickle.PickleBuffer, each))


class Contribution(Pickled):
    """An object that an operation folds: loading its pickle returns an `Operand`."""

    def __reduce__(self) -> Any:
        return _operand, self._parts()


class Operand:
    """A received object for a fold."""

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __reduce__(self) -> Any:
        return Contribution(self.obj).__reduce__()


def _loaded(data: Any, *buffers: Any) -> Any:
    return MPI.pickle.loads_oob(data, buffers) if buffers else MPI.pickle.loads(data)


def _operand(data: Any, *buffers: Any) -> Operand:
    return Operand(_loaded(data, *buffers))


def bcast(comm: Communicator, obj: Any, root: int) -> Any:
    packed = Pickled(obj) if comm.rank == root else None
    row = np.empty(RECORD, np.uint8) if packed is None else _row(packed.record())
    comm._call(BROADCAST, row, row, None, root, None)
    found = _pickle(row.tobytes())
    received = None if found else comm.broadcast_object(packed, root)
    if packed is not None:
        return obj
    return MPI.pickle.loads(found) if found else received


def scatter(comm: Communicator, objs: Iterable[Any] | None, root: int) -> Any:
    row, every, packed = np.empty(RECORD, np.uint8), None, objs
    if comm.rank == root:
        records = []
        with contextlib.suppress(Exception):  # of iteration; the other ranks are told below
            packed = [Pickled(obj) for obj in (() if objs is None else objs)]
            records = [each.record() for each in packed]
        every = _rows(comm, records)
    comm._call(SCATTER, every, row, None, root, None)
    found = _pickle(row.tobytes())
    return MPI.pickle.loads(found) if found else comm.scatter_object(packed, root)


def gather(comm: Communicator, obj: Any, root: int) -> list[Any] | None:
    packed = Pickled(obj)
    pickles = _exchanged(comm, packed)
    if pickles is None:
        return comm.gather_object(packed, root)
    return [*map(MPI.pickle.loads, pickles)] if comm.rank == root else None


def allgather(comm: Communicator, obj: Any) -> list[Any]:
    packed = Pickled(obj)
    pickles = _exchanged(comm, packed)
    return comm.allgather_object(packed) if pickles is None else [*map(MPI.pickle.loads, pickles)]


def alltoall(comm: Communicator, objs: Iterable[Any]) -> list[Any]:
    """If one object of a rank needs more than a record, all records from that rank are empty, so
    that all ranks know.
    """
    packed, records = objs, []
    with contextlib.suppress(Exception):  # of iteration; the other ranks are told below
        packed = [Pickled(obj) for obj in objs]
        records = [each.record() for each in packed]
    rows = np.empty(comm.size * RECORD, np.uint8)
    comm._call(ALLTOALL, _rows(comm, records), rows, None, 0, None)
    pickles = _pickles(rows)
    return comm.alltoall_object(packed) if pickles is None else [*map(MPI.pickle.loads, pickles)]


def reduce(comm: Communicator, obj: Any, op: Op, root: int) -> Any:
    operands = comm.size if comm.rank == root else 0
    return _folded(comm, obj, op, operands, partial(comm.reduce_object, root=root))


def allreduce(comm: Communicator, obj: Any, op: Op) -> Any:
    return _folded(comm, obj, op, comm.size, comm.allreduce_object)


def scan(comm: Communicator, obj: Any, op: Op) -> Any:
    return _folded(comm, obj, op, comm.rank + 1, comm.scan_object)


def exscan(comm: Communicator, obj: Any, op: Op) -> Any:
    return _folded(comm, obj, op, comm.rank, comm.exscan_object)


def _exchanged(comm: Communicator, packed: Pickled) -> list[bytes] | None:
    """Return the pickles of all ranks, or None if a record is empty. Collective."""
    if comm.size > FEW:
        return None
    rows = np.empty(comm.size * RECORD, np.uint8)
    comm._call(ALLGATHER, _row(packed.record()), rows, None, 0, None)
    return _pickles(rows)


def _row(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(bytearray(data), np.uint8)


def _rows(comm: Communicator, records: list[bytes]) -> NDArray[np.uint8]:
    """Return records for all ranks, or empty ones if one of them is empty or their number is not
    that of the ranks.
    """
    is_short = len(records) == comm.size and EMPTY not in records
    return _row(b"".join(records) if is_short else EMPTY * comm.size)


def _pickles(rows: NDArray[np.uint8]) -> list[bytes] | None:
    """Return the pickles in records, or None if one of them is empty."""
    data = rows.tobytes()
    pickles = [_pickle(data[at : at + RECORD]) for at in range(0, len(data), RECORD)]
    return pickles if all(pickles) else None


def _pickle(record: bytes) -> bytes:
    """Return the pickle in a record; nothing, if it is empty."""
    return record[2 : 2 + int.from_bytes(record[:2], "little")]


def _folded(
    comm: Communicator, obj: Any, op: Op, operands: int, call: Callable[[Any, Any], Operand | None]
) -> Any:
    """Return the fold of the objects of the first `operands` ranks, in their order, or None if
    there are none. Collective.

    `call` is the collective for objects, which follows if a record is empty.
    """
    packed = Contribution(obj)
    pickles = _exchanged(comm, packed)
    if pickles is None:
        result = call(packed, lambda x, y: Operand(op(x.obj, y.obj)))
        return None if result is None else result.obj
    if not operands:
        return None
    objs = map(MPI.pickle.loads, pickles[:operands])
    try:
        return fold(op, objs)
    except Exception as error:
        raise ArgumentError(f"op raised {error_text(error)}") from error
