"""Buffer specifications of mpi4py, read as bytes in a row.

A specification is a buffer, or a list of a buffer, counts, displacements and a datatype, some of
which may be left out. If its elements have no gaps, its memory is used directly. Otherwise MPI
packs and unpacks it: this process sends it to itself, and receives it as ``MPI.PACKED``.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from itertools import accumulate
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from collectives import _core
from collectives.mpi4py.datatypes import is_contiguous

Bytes = NDArray[np.uint8]

POINTER_MEMORY_TYPE, MEMORY_OF_HOST = 2, 1  # of the CUDA driver
LONG = {"binary128": "longdouble"}  # the names in DLPack and in NumPy
ON_HOST = (1, 3)  # the numbers of DLPack for memory of the host, and for pinned memory


class Message:
    """The data that a call sends or receives in one place.

    Parameters
    ----------
    spec : buffer or list
    name : str
        That of the argument, for errors.
    parts : int
        The number of parts into which the call divides it.
    writes : bool
        Whether the call receives data there.
    by_counts : bool
        Whether each part has a count of its own.

    Attributes
    ----------
    data : array of bytes
        The memory itself, or room for packed data.
    datatype : MPI.Datatype
    count : int
        The elements of each part, if all have the same number.
    counts, displs : list of int or None
        The bytes of each part, and their starts in `data`, if they are not adjacent.
    """

    def __init__(
        self,
        spec: Any,
        name: str,
        parts: int = 1,
        *,
        writes: bool = False,
        by_counts: bool = False,
    ) -> None:
        buffer, counts, displs, datatype = _items(spec, by_counts)
        memory = None if _is_bottom(buffer) else _memory(buffer, name, writes)
        if datatype is None:
            if memory is None:
                raise TypeError(f"{name} is {spec!r}, and needs a datatype: [buffer, datatype]")
            datatype = _automatic(buffer, name)
        self.datatype = _datatype(datatype)
        self._name, self._buffer = name, buffer
        length = 0 if memory is None else len(memory)
        if by_counts:
            self._read_counts(counts, displs, parts, length)
        else:
            self._read_count(counts, displs, parts, length)
        self._places: list[tuple[int, int]] = []
        if memory is not None and (not length or is_contiguous(self.datatype)):
            self.data: Bytes = self._in_place(memory)
        else:
            self._places = list(zip(self._counts, self._displs, strict=True))
            self.data = np.empty(sum(self._counts) * self.datatype.Get_size(), np.uint8)
            if writes:
                self._try()

    @property
    def nbytes(self) -> int:
        """The bytes of the elements, without the gaps between them."""
        return sum(self._counts) * self.datatype.Get_size()

    def load(self) -> Bytes:
        """Return the data, packed from memory first if it has gaps. Local."""
        for packed, in_memory in self._packed():
            _self().Sendrecv(in_memory, 0, recvbuf=packed, source=0)
        return self.data

    def finish(self) -> None:
        """Put received data in its place, if it was packed. Local."""
        for packed, in_memory in self._packed():
            _self().Sendrecv(packed, 0, recvbuf=in_memory, source=0)

    def _try(self) -> None:
        """Pack one element: if MPI cannot, this raises its error before other ranks wait. Local."""
        for count, displ in self._places:
            if count:
                one = np.empty(self.datatype.Get_size(), np.uint8)
                in_memory = [self._buffer, (1, displ), self.datatype]
                _self().Sendrecv(in_memory, 0, recvbuf=[one, MPI.PACKED], source=0)
                return

    def _packed(self) -> Iterator[tuple[Any, Any]]:
        """Yield MPI's specifications of each part, packed and in memory."""
        at = 0
        for count, displ in self._places:
            nbytes = count * self.datatype.Get_size()
            if nbytes:
                packed = [self.data[at : at + nbytes], MPI.PACKED]
                yield packed, [self._buffer, (count, displ), self.datatype]
            at += nbytes

    def _read_count(self, count: Any, displ: Any, parts: int, length: int) -> None:
        """Read the count of all parts, and the start of the first one."""
        first = 0 if displ is None else index(displ)
        if first < 0:
            raise ValueError(f"{self._name} has a negative displacement, {first}")
        if count is None:
            rest = length - first * self._extent() if length else 0
            every = self._divided(rest)
            if every % parts:
                raise ValueError(
                    f"{self._name} has {every} elements, which {parts} ranks cannot share equally"
                )
            count = every // parts
        self.count: int = index(count)
        if self.count < 0:
            raise ValueError(f"{self._name} has a negative count, {self.count}")
        self._counts, self._displs = [self.count * parts], [first]
        self.counts: list[int] | None = None
        self.displs: list[int] | None = None

    def _read_counts(self, counts: Any, displs: Any, parts: int, length: int) -> None:
        """Read the counts of the parts, and their starts."""
        if counts is None:
            every = self._divided(length)
            self._counts = [every // parts + (every % parts > part) for part in range(parts)]
        else:
            self._counts = _integers(counts, parts, f"the counts of {self._name}")
        if displs is None:
            self._displs = [0, *accumulate(self._counts)][:parts]
        elif _is_number(displs):
            self._displs = [index(displs) * part for part in range(parts)]
        else:
            self._displs = _integers(displs, parts, f"the displacements of {self._name}")
        size = self.datatype.Get_size()
        self.counts = [count * size for count in self._counts]
        self.displs = None

    def _divided(self, nbytes: int) -> int:
        """Return the number of elements in `nbytes` bytes."""
        if not nbytes:
            return 0
        extent = self._extent()
        if extent <= 0 or nbytes < 0 or nbytes % extent:
            raise ValueError(
                f"{self._name} has {nbytes} bytes, which are no whole number of elements of "
                f"{extent} bytes: pass a count"
            )
        return nbytes // extent

    def _extent(self) -> int:
        if self.datatype == MPI.DATATYPE_NULL:
            raise ValueError(f"{self._name} has a null datatype, and needs another one")
        return self.datatype.Get_extent()[1]

    def _in_place(self, memory: Bytes) -> Bytes:
        """Return the memory of all parts; store the starts of parts in it."""
        size = self.datatype.Get_size()
        ends = [at + n for at, n in zip(self._displs, self._counts, strict=True) if n]
        if ends and max(ends) * size > len(memory):
            raise ValueError(
                f"{self._name} has {len(memory)} bytes, and its counts and displacements take it "
                f"to have {max(ends) * size}"
            )
        if self.counts is None or self._displs == [0, *accumulate(self._counts)][:-1]:
            first = self._displs[0] * size
            return memory[first : first + sum(self._counts) * size]
        self.displs = [displ * size for displ in self._displs]
        return memory


def typed_blocks(spec: Any, name: str, parts: int, *, writes: bool = False) -> list[Message]:
    """Return a message for each part of an alltoallw, where each part has a datatype, and a
    displacement in bytes. Local.
    """
    buffer, counts, displs, datatypes = _typed_items(spec, name, parts)
    memory = None if _is_bottom(buffer) else _memory(buffer, name, writes)
    found = []
    for count, displ, datatype in zip(counts, displs, datatypes, strict=True):
        place: Any
        if memory is None and not displ:  # then the datatype has addresses
            place = MPI.BOTTOM
        elif memory is None:
            lower, extent = datatype.Get_true_extent()
            length = max(0, count - 1) * datatype.Get_extent()[1] + lower + extent
            place = MPI.memory.fromaddress(displ, max(0, length) if count else 0)
        else:
            place = memory[displ:]
        found.append(Message([place, count, datatype], name, writes=writes))
    return found


def _typed_items(
    spec: Any, name: str, parts: int
) -> tuple[Any, list[int], list[int], list[MPI.Datatype]]:
    """Return the buffer, counts, displacements and datatypes of an alltoallw, as mpi4py reads them:
    without counts, each is 1, and without displacements, each is 0.
    """
    counts = displs = None
    if len(spec) == 2:
        buffer, datatypes = spec
    elif len(spec) == 3:
        buffer, (counts, displs), datatypes = spec
    else:
        buffer, counts, displs, datatypes = spec
    sizes = [1] * parts if counts is None else list(map(index, counts))
    starts = [0] * parts if displs is None else list(map(index, displs))
    kinds = list(map(_datatype, datatypes))
    if not len(sizes) == len(starts) == len(kinds) == parts:
        raise ValueError(
            f"{name} has {len(sizes)} counts, {len(starts)} displacements and {len(kinds)} "
            f"datatypes, and must have {parts} of each"
        )
    if min(starts, default=0) < 0:
        raise ValueError(f"{name} has a negative displacement, {min(starts)}")
    # The datatype of no elements may be null.
    kinds = [kind if size else MPI.BYTE for size, kind in zip(sizes, kinds, strict=True)]
    return buffer, sizes, starts, kinds


def is_in_place(spec: Any) -> bool:
    """Return whether an argument stands for ``MPI.IN_PLACE``. Local."""
    return spec is None or spec is MPI.IN_PLACE


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array, or another one to write to if its elements are not aligned. Local."""
    return array if array.flags.aligned else np.empty_like(array)


def _items(spec: Any, by_counts: bool) -> tuple[Any, Any, Any, Any]:
    """Return the buffer, counts, displacements and datatype of a specification."""
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        raise ValueError(f"a buffer specification has 2 to 4 items, and this one {len(spec)}")
    if len(spec) == 4:
        buffer, counts, displs, datatype = spec
        return buffer, counts, displs, datatype
    buffer, counts = spec[:2]
    datatype = spec[2] if len(spec) == 3 else None
    if len(spec) == 2 and isinstance(counts, (MPI.Datatype, str)):
        return buffer, None, None, counts
    if isinstance(counts, tuple) or (isinstance(counts, list) and not by_counts):
        counts, displs = counts
        return buffer, counts, displs, datatype
    return buffer, counts, None, datatype


def _integers(values: Any, parts: int, name: str) -> list[int]:
    """Return `parts` integers: those of a sequence, or one for all parts."""
    if _is_number(values):
        return [index(values)] * parts
    found = [index(each) for each in values]
    if len(found) != parts or min(found) < 0:
        raise ValueError(f"{name} are {found}, and must be {parts} numbers, none of them negative")
    return found


def _is_number(value: Any) -> bool:
    """Return whether a count is one number for all parts, such as an array without dimensions."""
    try:
        index(value)
    except TypeError:
        return not hasattr(value, "__len__")  # then the caller raises this error
    return True


def _datatype(given: MPI.Datatype | str) -> MPI.Datatype:
    """Return a datatype, also of its code, or raise mpi4py's error."""
    if not isinstance(given, str):
        return given
    try:
        return MPI.Datatype.fromcode(given)
    except ValueError:
        raise KeyError(f"cannot map {given!r} to MPI datatype") from None


def _is_bottom(buffer: Any) -> bool:
    return buffer is None or buffer is MPI.BOTTOM


def _automatic(buffer: Any, name: str) -> str:
    """Return the code of the datatype of a buffer's elements."""
    if _has_buffer(buffer):
        return memoryview(buffer).format
    if hasattr(buffer, "__dlpack__"):
        dtype = _core.capsule_dtype(MPI.memory.frombuffer(buffer, readonly=True).obj, name)
    else:
        dtype = buffer.__cuda_array_interface__["typestr"]
    empty: Any = np.empty(0, LONG.get(dtype, dtype))
    return memoryview(empty).format


def _memory(buffer: Any, name: str, writes: bool) -> Bytes:
    """Return the bytes of a buffer in the order of memory."""
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.forc:
            raise BufferError(
                f"{name} is an array whose memory has gaps (shape {buffer.shape}, strides "
                f"{buffer.strides} bytes); pass a contiguous array, or a datatype"
            )
        found = buffer.view(np.ndarray).ravel("K").view(np.uint8)
    else:
        found = np.frombuffer(_held(buffer, name, writes), np.uint8)
    if writes and not found.flags.writeable:
        raise BufferError(f"{name} is read-only, and would be written")
    return found


def _held(buffer: Any, name: str, writes: bool) -> Any:
    """Return an object with the bytes of any buffer that mpi4py takes, if it is in host memory."""
    by_address = hasattr(buffer, "__cuda_array_interface__")
    if isinstance(buffer, int) or not (
        by_address or _has_buffer(buffer) or hasattr(buffer, "__dlpack__")
    ):
        raise TypeError(
            f"{name} is a {type(buffer).__name__}, and must be a buffer, or a list of a buffer, a "
            f"count and a datatype"
        )
    on_device = False
    if hasattr(buffer, "__dlpack_device__"):
        on_device = int(buffer.__dlpack_device__()[0]) not in ON_HOST
    elif by_address and not _has_buffer(buffer):
        on_device = _is_of_device(buffer.__cuda_array_interface__["data"][0])
    if on_device:
        raise BufferError(
            f"{name} is in the memory of a device, which an accelerated communicator does not "
            f"take: use collectives.Communicator(comm) for it, or MPI.Intracomm(comm), which is "
            f"MPI's own"
        )
    return MPI.memory.frombuffer(buffer, readonly=not writes)


def _has_buffer(buffer: Any) -> bool:
    try:
        memoryview(buffer)
    except (TypeError, ValueError, BufferError):  # the last two of arrays of NumPy without a format
        return isinstance(buffer, np.ndarray)
    return True


def _is_of_device(address: int) -> bool:
    """Return whether an address is of a CUDA device, by its driver; False without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    kind = ctypes.c_uint(0)
    failed = driver.cuPointerGetAttribute(
        ctypes.byref(kind), POINTER_MEMORY_TYPE, ctypes.c_uint64(address)
    )
    return not failed and kind.value != MEMORY_OF_HOST


@functools.cache
def _self() -> MPI.Intracomm:
    """Return a communicator of this process alone, on which the program sends nothing."""
    return MPI.Intracomm(MPI.COMM_SELF).Dup()
