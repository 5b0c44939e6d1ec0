"""Arrays in the memory of the fake GPU, as frameworks have them: with a stream that they belong to.

They are written and read on their stream, like by the kernels of a framework, and their memory
goes back in the order of that stream when they are collected. An operation of the library that
is not ordered before or after that is a race.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import numpy as np
from exporters import (
    BFLOAT,
    CODES,
    CUDA,
    DELETER,
    DESTRUCTOR,
    READ_ONLY,
    Tensor,
    Unversioned,
    Versioned,
    capsule_of,
)
from fake_gpu import DEFAULT, LEGACY, FakeDriver

with contextlib.suppress(ImportError):
    import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 then


class Memory:
    """Memory on a device, which arrays share and views keep alive."""

    def __init__(self, driver: FakeDriver, nbytes: int, device: int, stream: int) -> None:
        self.driver, self.device, self.stream = driver, device, stream
        with driver.on(device):
            self.address = driver.allocate(max(nbytes, 1))
            driver.table.at(self.address).is_of_array = True
            self.queue = driver.stream_object(stream)

    def __del__(self) -> None:
        if hasattr(self, "queue"):
            self.driver.drop(self.address, self.queue)


class Borrowed:
    """Memory that is not an array's own, and the object that keeps it."""

    def __init__(self, address: int, owner: Any) -> None:
        self.address, self.owner = address, owner


class DeviceArray:
    """An array on a device; `Array` and `DLPackArray` are the two ways of showing it to others.

    Parameters
    ----------
    shape : tuple of int
    dtype : str
        A name of NumPy's, or "bfloat16" if ml_dtypes is there.
    device : int
    stream : int
        The one that writes and reads it.
    is_read_only : bool
        Whether it says so to others.
    memory : Memory, optional
        That of another array, for a view.
    offset : int
        Where a view begins, in bytes.
    strides : tuple of int, optional
        In bytes; without them it is contiguous.
    """

    def __init__(
        self,
        driver: FakeDriver,
        shape: tuple[int, ...],
        dtype: str = "float32",
        *,
        device: int = 0,
        stream: int = DEFAULT,
        is_read_only: bool = False,
        memory: Memory | None = None,
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.driver, self.shape, self.dtype = driver, tuple(shape), np.dtype(dtype)
        self.device, self.stream, self.is_read_only = device, stream, is_read_only
        self.strides = strides
        self.size = int(np.prod(self.shape, dtype=np.int64))
        self.nbytes = self.size * self.dtype.itemsize
        self.memory = memory or Memory(driver, self.nbytes, device, stream)
        self.address = self.memory.address + offset

    @classmethod
    def of(cls, driver: FakeDriver, values: Any, **where: Any) -> Any:
        """Make an array of a NumPy array; it is written later, on the stream."""
        values = np.asarray(values)
        made = cls(driver, values.shape, values.dtype.name, **where)
        made.put(values)
        return made

    def empty_like(self, shape: tuple[int, ...] | None = None, dtype: str | None = None) -> Any:
        """Make an array on the same device and stream; it holds poison."""
        where = {"device": self.device, "stream": self.stream}
        shape = self.shape if shape is None else shape
        return type(self)(self.driver, shape, dtype or self.dtype.name, **where)

    def view(self, shape: tuple[int, ...], offset: int, strides: tuple[int, ...] | None) -> Any:
        """Make an array in the same memory; offset and strides in bytes."""
        return type(self)(
            self.driver,
            shape,
            self.dtype.name,
            device=self.device,
            stream=self.stream,
            is_read_only=self.is_read_only,
            memory=self.memory,
            offset=self.address - self.memory.address + offset,
            strides=strides,
        )

    def put(self, values: Any) -> None:
        """Let new values be written on the stream; they must be contiguous here."""
        assert self.strides is None, "a view with strides is only read"
        data = np.broadcast_to(np.asarray(values, self.dtype), self.shape).tobytes()
        if data:
            with self.driver.on(self.device):
                self.driver.fill(self.address, data, self.stream)

    def get(self) -> np.ndarray:
        """Return the values as the stream sees them now; waits for it."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        steps = self.strides
        if steps is None:
            steps = np.empty(self.shape, self.dtype).strides
        assert min(steps, default=0) >= 0
        length = sum((n - 1) * step for n, step in zip(self.shape, steps, strict=True))
        with self.driver.on(self.device):
            data = self.driver.fetch(self.address, length + self.dtype.itemsize, self.stream)
        return np.ndarray(self.shape, self.dtype, data, 0, steps).copy()


class Array(DeviceArray):
    """An array with CUDA's array interface, version 3."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address if self.size else 0, self.is_read_only),
            "strides": self.strides,
            "version": 3,
            "stream": LEGACY if self.stream == DEFAULT else self.stream,
        }


# -- DLPack ----------------------------------------------------------------------------------------


python = ctypes.PyDLL(None)  # others give the functions of ctypes.pythonapi other types
is_valid = python.PyCapsule_IsValid
is_valid.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
get_pointer = python.PyCapsule_GetPointer
get_pointer.restype = ctypes.c_void_p
get_pointer.argtypes = (ctypes.c_void_p, ctypes.c_char_p)

NAME, NAME_VERSIONED = b"dltensor", b"dltensor_versioned"
exported: dict[int, tuple[Any, ...]] = {}  # what consumers hold, by the address of its struct


@DELETER
def delete(address: int) -> None:
    exported.pop(address, None)


@DESTRUCTOR
def destroy(capsule: int) -> None:
    for name in (NAME, NAME_VERSIONED):  # it has another name once it is consumed
        if is_valid(capsule, name):
            exported.pop(get_pointer(capsule, name), None)


class DLPackArray(DeviceArray):
    """An array that others read by DLPack."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, self.device)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if copy or dl_device not in (None, (CUDA, self.device)):
            raise BufferError("this array is exported as it is, where it is")
        if stream == 0:
            raise ValueError("0 is no stream of DLPack: 1 is the default stream")
        if stream != -1:
            self._order_before(LEGACY if stream is None else stream)
        is_versioned = max_version is not None and max_version >= (1, 0)
        if self.is_read_only and not is_versioned:
            raise BufferError("a read-only array needs max_version=(1, 0)")
        managed = Versioned() if is_versioned else Unversioned()
        self._describe(managed.tensor)
        managed.deleter = delete
        if is_versioned:
            managed.major, managed.minor = 1, 0
            managed.flags = READ_ONLY if self.is_read_only else 0
        address = ctypes.addressof(managed)
        exported[address] = self, managed
        return capsule_of(address, NAME_VERSIONED if is_versioned else NAME, destroy)

    def _order_before(self, consumer: int) -> None:
        """Let later work on the consumer's stream wait for the stream of the array."""
        with self.driver.on(self.device):
            event = self.driver.event()
            self.driver.record(event, self.stream)
            self.driver.wait(consumer, event)
            self.driver.end_event(event)

    def _describe(self, tensor: Tensor) -> None:
        ndim, itemsize = len(self.shape), self.dtype.itemsize
        tensor.data = self.address if self.size else 0
        tensor.device_type, tensor.device_id, tensor.ndim = CUDA, self.device, ndim
        is_bfloat = self.dtype.name == "bfloat16"
        tensor.code = BFLOAT if is_bfloat else CODES[self.dtype.kind]
        tensor.bits, tensor.lanes = itemsize * 8, 1
        tensor.shape = (ctypes.c_int64 * ndim)(*self.shape)
        if self.strides is not None:
            tensor.strides = (ctypes.c_int64 * ndim)(*(each // itemsize for each in self.strides))
