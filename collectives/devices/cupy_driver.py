"""The driver by CuPy: its binding to CUDA's runtime, and its compiler for kernels.

It is imported when an array of a device comes, so that a program without one never imports CuPy.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime
from numpy.typing import NDArray

from collectives.devices.driver import Location, Nccl

# Of driver_types.h, where CuPy has no name for them.
MANAGED = 3  # cudaMemoryTypeManaged
DEVICE = 2  # cudaMemoryTypeDevice
NOT_READY = 600  # cudaErrorNotReady
NO_MEMORY = 2  # cudaErrorMemoryAllocation
LEGACY = 1  # cudaStreamLegacy
NO_TIMES = runtime.eventDisableTiming
PORTABLE = runtime.hostAllocPortable  # for all devices of the process


class PinnedMemory:
    """Host memory that a device reads and writes directly."""

    address: int
    array: NDArray[Any]

    def __init__(self, nbytes: int) -> None:
        self.address = _memory(runtime.hostAlloc, max(nbytes, 1), PORTABLE)
        memory = (ctypes.c_uint8 * nbytes).from_address(self.address)
        self.array = np.ctypeslib.as_array(memory)

    def free(self) -> None:
        runtime.freeHost(self.address)
        self.address = 0


class CupyDriver:
    """An implementation of `collectives.devices.driver.Driver`."""

    def __init__(self) -> None:
        self._count: int = runtime.getDeviceCount()
        self._kernels: dict[tuple[int, str, str], Any] = {}

    def devices(self) -> int:
        return self._count

    def on(self, device: int) -> AbstractContextManager[Any]:
        if self._count == 1:
            return _HERE
        context: AbstractContextManager[Any] = cupy.cuda.Device(device)
        return context

    def place(self, address: int) -> Location:
        found = runtime.pointerGetAttributes(address)
        kind = {DEVICE: "device", MANAGED: "managed"}.get(found.type, "host")
        return Location(kind, found.device)

    def identity(self, device: int) -> str:
        return str(cupy.cuda.Device(device).pci_bus_id)

    def nccl(self) -> Nccl:
        from collectives.devices.cupy_nccl import CupyNccl  # CuPy loads NCCL when it is asked for

        return CupyNccl()

    # -- memory ------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        # Not from CuPy's pool, whose memory cannot be exported piece by piece.
        return _memory(runtime.malloc, nbytes)

    free = staticmethod(runtime.free)

    def array(self, shape: tuple[int, ...], dtype: Any, address: int, owner: Any) -> Any:
        if not address:
            return cupy.empty(shape, dtype)
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        memory = cupy.cuda.UnownedMemory(address, nbytes, owner)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))

    selected = staticmethod(runtime.getDevice)

    def pinned(self, nbytes: int) -> PinnedMemory:
        return PinnedMemory(nbytes)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDefault, stream)

    def copy_rows(
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        stream: int,
    ) -> None:
        if max(target_pitch, source_pitch) <= _MOST_PITCH:
            ends = target, target_pitch, source, source_pitch
            runtime.memcpy2DAsync(*ends, width, rows, runtime.memcpyDefault, stream)
            return
        for row in range(rows):
            self.copy(target + row * target_pitch, source + row * source_pitch, width, stream)

    # -- order -------------------------------------------------------------------------------

    def stream(self) -> int:
        return int(runtime.streamCreateWithFlags(runtime.streamNonBlocking))

    end_stream = staticmethod(runtime.streamDestroy)

    def event(self) -> int:
        return int(runtime.eventCreateWithFlags(NO_TIMES))

    end_event = staticmethod(runtime.eventDestroy)
    record = staticmethod(runtime.eventRecord)
    wait = staticmethod(runtime.streamWaitEvent)
    synchronize = staticmethod(runtime.eventSynchronize)

    def done(self, event: int) -> bool:
        status: int = runtime.eventQuery(event)  # CuPy raises no error here
        if status not in (0, NOT_READY):
            raise runtime.CUDARuntimeError(status)
        return status == 0

    def is_capturing(self, stream: int) -> bool:
        if stream in (0, LEGACY):
            return False  # the default stream cannot be captured
        return bool(runtime.streamIsCapturing(stream))

    # -- kernels -----------------------------------------------------------------------------

    def kernel(self, source: str, name: str) -> Any:
        key = runtime.getDevice(), source, name
        if key not in self._kernels:
            module = cupy.RawModule(code=source, options=("--std=c++17",))
            self._kernels[key] = module.get_function(name)
        return self._kernels[key]

    def launch(self, kernel: Any, blocks: int, threads: int, arguments: bytes, stream: int) -> None:
        # A scalar of a structured dtype is passed by value, as its bytes.
        struct = np.frombuffer(arguments, np.dtype((np.void, len(arguments))))[0]
        with _stream_of(stream):
            kernel((blocks,), (threads,), (struct,))

    def processors(self) -> int:
        what = runtime.cudaDevAttrMultiProcessorCount
        return int(runtime.deviceGetAttribute(what, runtime.getDevice()))

    # -- memory of other processes -------------------------------------------------------------

    def export_memory(self, address: int) -> bytes:
        return bytes(runtime.ipcGetMemHandle(address))

    open_memory = staticmethod(runtime.ipcOpenMemHandle)
    close_memory = staticmethod(runtime.ipcCloseMemHandle)

    def shared_event(self) -> int:
        return int(runtime.eventCreateWithFlags(NO_TIMES | runtime.eventInterprocess))

    def export_event(self, event: int) -> bytes:
        return bytes(runtime.ipcGetEventHandle(event))

    open_event = staticmethod(runtime.ipcOpenEventHandle)


_HERE = nullcontext()  # the only device is always the current one
_MOST_PITCH = 2**31 - 1  # cudaDevAttrMaxPitch: rows that are further apart are copied one by one


class _Handle:
    """A stream as CuPy takes it since version 14."""

    def __init__(self, stream: int) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream


def _stream_of(stream: int) -> Any:
    """Return a stream as one of CuPy."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_Handle(stream))
    return cupy.cuda.ExternalStream(stream)


def _memory(allocate: Any, *arguments: int) -> int:
    """Return memory of the runtime, or raise MemoryError if it has none."""
    try:
        address: int = allocate(*arguments)
    except runtime.CUDARuntimeError as error:
        if error.status == NO_MEMORY:
            raise MemoryError(str(error)) from error
        raise
    return address
