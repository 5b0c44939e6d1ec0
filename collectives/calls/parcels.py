"""Parcels: pickled objects, as they are sent.

An object is pickled with protocol 5. Its *envelope* is one array of bytes: the pickle, then the
lengths of the buffers that are not in it, then their number. These buffers are the memory of large
arrays in the object. They are sent one by one, without a copy, and received into new memory, which
the received arrays then use.

A rank announces its parcel in a *record*: the length of the envelope, and the envelope itself if
there is room for it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from collectives.errors import ArgumentError
from collectives.process.advice import alone
from collectives.text.words import error_text, shown

if TYPE_CHECKING:
    from collectives.arrays.types import Bytes, Integers

# Buffers of this many bytes and more are sent separately; smaller ones are copied into the pickle.
# A broadcast of 32 arrays of 32 KiB takes 185 us in the pickle and 227 separately, of 64 KiB 287
# and 296, of 128 KiB 566 and 452 (MPICH, 2 ranks; EPYC, 2026-11-20, the fastest of many calls on a
# machine that others used, too).
APART = 1 << 16

ROOM = 248  # bytes of an envelope in a record
FEW = 32  # the most ranks that all receive the records of all with envelopes in them

TEXT = 1000  # at most this many bytes of an error text are sent to other ranks

T = TypeVar("T")


class Parcel(NamedTuple):
    """A pickled object: its envelope, and the buffers that are sent separately."""

    envelope: Bytes
    buffers: list[Bytes]

    def rest(self) -> list[Bytes]:
        """Return the arrays that are sent after the record. Local."""
        is_short = len(self.envelope) <= ROOM
        return self.buffers if is_short else [self.envelope, *self.buffers]

    def copied(self) -> Parcel:
        """Return a parcel with copies of the buffers, which do not share the object's memory.
        Local.
        """
        return Parcel(self.envelope, [each.copy() for each in self.buffers])


def pack(obj: Any, name: str) -> Parcel:
    """Pickle an object. Local."""
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
    except BaseException as error:  # the other ranks wait for it
        raise ArgumentError(f"{name} cannot be pickled: {error_text(error)}") from error
    # The lengths are known only now, and pickle ignores what follows the pickled object.
    file.write(np.array([*map(len, buffers), len(buffers)], np.int64).tobytes())
    return Parcel(np.frombuffer(file.getbuffer(), np.uint8), buffers)


def pack_each(objs: Iterable[Any] | None, size: int) -> list[Parcel]:
    """Pickle the objects for all ranks. Local."""
    try:
        each = list(objs)  # type: ignore[arg-type]  # raises TypeError if it is not iterable
    except BaseException as error:  # the other ranks wait for the objects
        raise ArgumentError(
            f"objs is {shown(objs)}, and must be a sequence of {size} objects, one for each rank: "
            f"{error_text(error)}"
        ) from error
    if len(each) != size:
        raise ArgumentError(
            f"objs has {len(each)} objects, and must have {size}, one for each rank"
            f"{alone(len(each) - 1)}"
        )
    return [pack(obj, f"objs[{rank}]") for rank, obj in enumerate(each)]


def tried(make: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return the result of a function, or the `ArgumentError` that it raises. Local."""
    try:
        return make(), None
    except ArgumentError as error:
        return None, error


def text_of(error: Exception) -> Bytes:
    """Return the text of an error that is sent to the other ranks. Local."""
    return np.frombuffer(str(error).encode(errors="replace")[:TEXT], np.uint8)


def length(parcel: Parcel | None, error: Exception | None) -> int:
    """Return the announcement of a rank: the length of its envelope, or minus that of an error
    text. Local.
    """
    if error is not None:
        return -len(text_of(error))
    return 0 if parcel is None else len(parcel.envelope)


def lengths(parcels: list[Parcel] | None, error: Exception | None, size: int) -> Integers:
    """Return the announcements of a rank to each rank. Local."""
    each = [None] * size if parcels is None else parcels
    return np.array([length(parcel, error) for parcel in each], np.int64)


def record(parcel: Parcel | None, error: Exception | None, room: int = ROOM) -> Bytes:
    """Return the record of a rank. Local."""
    row = np.zeros(8 + room, np.uint8)
    row[:8].view(np.int64)[0] = length(parcel, error)
    if parcel is not None and len(parcel.envelope) <= room:
        row[8 : 8 + len(parcel.envelope)] = parcel.envelope
    return row


def records(parcels: list[Parcel] | None, error: Exception | None, size: int) -> Bytes:
    """Return the records of a rank for each rank. Local."""
    each = [None] * size if parcels is None else parcels
    return np.concatenate([record(parcel, error) for parcel in each])


def opened(row: Bytes) -> tuple[int, Bytes | None]:
    """Return the announcement in a record, and its envelope if it has it. Local."""
    size = int(row[:8].view(np.int64)[0])
    return size, row[8 : 8 + size] if 0 <= size <= len(row) - 8 else None


def cut(joined: Bytes, lengths: Integers) -> list[Bytes]:
    """Cut the joined bytes of all ranks into those of each rank. Local."""
    return np.split(joined, np.cumsum(lengths)[:-1])


def unfilled(envelope: Bytes) -> Parcel:
    """Return a parcel with memory for the buffers that an envelope announces. Local."""
    tail = envelope[-8:].tobytes()
    (number,) = np.frombuffer(tail, np.int64)
    lengths = np.frombuffer(envelope[len(envelope) - 8 - 8 * number :].tobytes(), np.int64)[:-1]
    return Parcel(envelope, [np.empty(length, np.uint8) for length in lengths])


def unpack(parcel: Parcel) -> Any:
    """Return the object in a parcel; its arrays use the buffers of the parcel. Local."""
    return pickle.loads(parcel.envelope.data, buffers=parcel.buffers)


def unpack_each(parcels: list[Parcel]) -> list[Any]:
    """Return the objects of all ranks, for a result that the other ranks wait for. Local."""
    objs = []
    for rank, each in enumerate(parcels):
        try:
            objs.append(unpack(each))
        except BaseException as error:
            raise ArgumentError(
                f"the object of rank {rank} cannot be loaded: {error_text(error)}"
            ) from error
    return objs
