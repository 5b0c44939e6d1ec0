"""The interface to a GPU's runtime.

Memory is given by addresses, streams and events by handles. `cupy_driver` implements it with CuPy.
The tests have an implementation without a GPU, which delays the work on streams and checks its
order.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from collectives import _core


class Location(NamedTuple):
    """The kind of memory that an address belongs to, and its device."""

    kind: str  # "device", "managed", "host"
    device: int


class Pinned(Protocol):
    """Host memory that a device reads and writes directly."""

    address: int
    array: NDArray[Any]  # of uint8

    def free(self) -> None:
        """Free the memory. No copy may be in flight. Local."""


class NcclGroup(Protocol):
    """The ranks of a communicator of NCCL, each with a device. Its calls are put on a stream.

    All ranks put the same calls on their streams in the same order. Addresses are of the device,
    dtypes and operations are names of the library.
    """

    def allreduce(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        """Fold `count` elements of each rank; all ranks get the result."""

    def reduce(
        self, source: int, target: int, count: int, dtype: str, op: str, root: int, stream: int
    ) -> None:
        """Fold `count` elements of each rank; `root` gets the result."""

    def broadcast(self, source: int, target: int, nbytes: int, root: int, stream: int) -> None:
        """Copy bytes from `source` on rank `root` to `target` on all ranks."""

    def allgather(self, source: int, target: int, nbytes: int, stream: int) -> None:
        """Copy `nbytes` bytes of each rank to all ranks, one after the other."""

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        """Fold arrays of `count` elements for each rank; each rank gets its part of the result."""

    def exchange(
        self,
        sends: Sequence[tuple[int, int, int]],
        receives: Sequence[tuple[int, int, int]],
        stream: int,
    ) -> None:
        """Send and receive at once; a message is a rank, an address and a number of bytes."""

    def check(self) -> None:
        """Raise the error of an operation that has failed since it was enqueued."""

    def abort(self) -> None:
        """End the work on the streams, and the communicator, without waiting for other ranks."""

    def close(self) -> None:
        """Destroy the communicator, when no call of it is on a stream."""


class Nccl(Protocol):
    """The interface of a driver to NCCL."""

    version: int  # as NCCL writes it: 22304 is 2.23.4
    dtypes: frozenset[str]  # that it folds

    def unique_id(self) -> bytes:
        """Return the id with which ranks join: 128 bytes that rank 0 sends to the others."""

    def join(self, unique_id: bytes, size: int, rank: int) -> NcclGroup:
        """Become rank `rank` of `size` with the current device. Waits for the other ranks."""


class Driver(Protocol):
    """The interface to a GPU's runtime. All calls are local; only `synchronize` waits for a device.

    Streams and events are integers, as in the runtime. Stream 0 is the default stream, which waits
    for all other streams of its device, except those of `stream`. An event belongs to the device
    that was current when it was made.
    """

    def devices(self) -> int:
        """Return the number of devices that this process sees."""

    def on(self, device: int) -> AbstractContextManager[Any]:
        """Return a context in which `device` is the current one; the one before is restored."""

    def place(self, address: int) -> Location:
        """Return the location of an address."""

    def identity(self, device: int) -> str:
        """Return a name of a device that is unique on this host and the same in all processes."""

    def nccl(self) -> Nccl:
        """Return NCCL, or raise an error with the reason why it cannot be used."""

    # -- memory ------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        """Return the address of `nbytes` bytes on the current device, aligned to 512 bytes."""

    def free(self, address: int) -> None:
        """Free memory of `allocate`."""

    def array(self, shape: tuple[int, ...], dtype: Any, address: int, owner: Any) -> Any:
        """Return a new array on the current device, in the memory at `address`, which `owner`
        keeps. If `address` is 0, the array has memory of its own. Local.
        """
        ...

    def selected(self) -> int:
        """Return the current device. Local."""
        ...

    def pinned(self, nbytes: int) -> Pinned:
        """Return pinned host memory, aligned to 512 bytes."""

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes on a stream; either address may be of the device or of pinned memory."""

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
        """Copy `rows` rows of `width` bytes, whose starts are the pitch apart, in bytes."""

    # -- order -------------------------------------------------------------------------------

    def stream(self) -> int:
        """Make a stream on the current device that does not wait for the default stream."""

    def end_stream(self, stream: int) -> None:
        """Destroy a stream of `stream`."""

    def event(self) -> int:
        """Make an event on the current device; it counts as complete until it is recorded."""

    def end_event(self, event: int) -> None:
        """Destroy an event."""

    def record(self, event: int, stream: int) -> None:
        """Record an event on a stream: it is complete when the work before it is complete."""

    def wait(self, stream: int, event: int) -> None:
        """Let later work on a stream wait for the latest record of an event."""

    def done(self, event: int) -> bool:
        """Return whether an event is complete; raise the error of failed work on the device."""

    def synchronize(self, event: int) -> None:
        """Wait, without the GIL, until an event is complete."""

    def is_capturing(self, stream: int) -> bool:
        """Return whether a stream is being captured into a graph."""

    # -- kernels -----------------------------------------------------------------------------

    def kernel(self, source: str, name: str) -> Any:
        """Compile a kernel for the current device, or find it among those compiled before."""

    def launch(self, kernel: Any, blocks: int, threads: int, arguments: bytes, stream: int) -> None:
        """Run a kernel whose one parameter is a struct of these bytes."""

    def processors(self) -> int:
        """Return the number of multiprocessors of the current device."""

    # -- memory of other processes -------------------------------------------------------------

    def export_memory(self, address: int) -> bytes:
        """Return a handle with which another process maps memory of `allocate`."""

    def open_memory(self, handle: bytes) -> int:
        """Map memory that another process has exported; return its address in this process."""

    def close_memory(self, address: int) -> None:
        """Unmap memory of `open_memory`."""

    def shared_event(self) -> int:
        """Make an event that other processes may wait for."""

    def export_event(self, event: int) -> bytes:
        """Return a handle with which another process opens a shared event."""

    def open_event(self, handle: bytes) -> int:
        """Open an event of another process."""


class Events:
    """A pool of events of a device."""

    driver: Driver
    device: int

    def __init__(self, driver: Driver, device: int) -> None:
        self.driver, self.device = driver, device
        self.spare: list[int] = []
        self.is_closed: bool = False

    def take(self) -> int:
        """Take an event out of the pool, until `give`."""
        with self.driver.on(self.device):
            try:
                return self.spare.pop()
            except IndexError:
                return self.driver.event()

    def give(self, event: int) -> None:
        """Put an event back into the pool."""
        if self.is_closed:
            self.driver.end_event(event)
        else:
            self.spare.append(event)

    def close(self) -> None:
        """Destroy the events in the pool; others are destroyed when they are given back."""
        self.is_closed = True
        while self.spare:
            self.driver.end_event(self.spare.pop())


class Held:
    """An object that frees memory of a device when its last reference is dropped.

    At the end of the process, and of a forked child, the system frees the memory.
    """

    def _drop(self) -> None:
        """Free the memory."""

    def __del__(
        self,
        is_ending: Callable[[], bool] = sys.is_finalizing,  # at the end, modules are emptied
        is_forked: Callable[[], bool] = _core.is_forked,
    ) -> None:
        if not (is_ending() or is_forked()):
            with contextlib.suppress(Exception):  # of a device that has failed
                self._drop()
