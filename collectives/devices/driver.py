"""The interface to a GPU's runtime: all that the library asks of it.

Memory is addresses, streams and events are handles. `cupy_driver` implements it with CuPy; the
tests have an implementation without a GPU, which runs streams later and checks what they depend on.
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
    """The place of an address."""

    kind: str  # "device", "managed", "host"
    device: int


class Pinned(Protocol):
    """Host memory that a device reads and writes directly."""

    address: int
    array: NDArray[Any]  # of uint8

    def free(self) -> None:
        """Give it back. No copy may be in flight. Local."""


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
        """Send and receive at once: rank, address and bytes of each message."""

    def check(self) -> None:
        """Raise the error of an operation that has failed since it was enqueued."""

    def abort(self) -> None:
        """End the work on the streams, and the communicator, without waiting for other ranks."""

    def close(self) -> None:
        """Destroy it, when nothing of it is on a stream."""


class Nccl(Protocol):
    """The interface of a driver to NCCL."""

    version: int  # as NCCL writes it: 22304 is 2.23.4
    dtypes: frozenset[str]  # that it folds

    def unique_id(self) -> bytes:
        """Return what ranks need to join: 128 bytes that rank 0 tells the others."""

    def join(self, unique_id: bytes, size: int, rank: int) -> NcclGroup:
        """Become rank `rank` of `size` with the current device; it waits for the other ranks."""


class Driver(Protocol):
    """The interface to a GPU's runtime. All calls are local; only `synchronize` waits for a device.

    Streams and events are integers, as the runtime has them; stream 0 is the default stream, which
    waits for all other streams of its device that do not say otherwise. An event belongs to the
    device that was current when it was made.
    """

    def devices(self) -> int:
        """Return how many devices this process sees."""

    def on(self, device: int) -> AbstractContextManager[Any]:
        """Return a context in which `device` is the current one; the one before is restored."""

    def place(self, address: int) -> Location:
        """Return where an address lies."""

    def identity(self, device: int) -> str:
        """Return what tells a device of this host from the others, the same in all processes."""

    def nccl(self) -> Nccl:
        """Return NCCL, or raise an error that says why it cannot be used."""

    # -- memory ------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        """Return the address of so many bytes on the current device, aligned to 512 bytes."""

    def free(self, address: int) -> None:
        """Give memory of `allocate` back."""

    def array(self, shape: tuple[int, ...], dtype: Any, address: int, owner: Any) -> Any:
        """Return a new array on the current device: in the memory at `address`, which `owner`
        keeps, or with an address of 0 in memory of its own. Local.
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
        """Copy `rows` pieces of `width` bytes, which begin `pitch` bytes after one another."""

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
        """Let an event stand for all that is on a stream now."""

    def wait(self, stream: int, event: int) -> None:
        """Let later work on a stream wait for the work that an event stands for now."""

    def done(self, event: int) -> bool:
        """Return whether what an event stands for has happened; raise what failed on the device."""

    def synchronize(self, event: int) -> None:
        """Wait, without the GIL, until what an event stands for has happened."""

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
        """Return what another process needs to map memory of `allocate`."""

    def open_memory(self, handle: bytes) -> int:
        """Map what another process has exported; return the address here."""

    def close_memory(self, address: int) -> None:
        """Unmap memory of `open_memory`."""

    def shared_event(self) -> int:
        """Make an event that other processes may wait for."""

    def export_event(self, event: int) -> bytes:
        """Return what another process needs to wait for a shared event."""

    def open_event(self, handle: bytes) -> int:
        """Open an event of another process."""


class Events:
    """Events of a device that are used again."""

    driver: Driver
    device: int

    def __init__(self, driver: Driver, device: int) -> None:
        self.driver, self.device = driver, device
        self.spare: list[int] = []
        self.is_closed: bool = False

    def take(self) -> int:
        """Return an event that nobody uses, until `give`."""
        with self.driver.on(self.device):
            try:
                return self.spare.pop()
            except IndexError:
                return self.driver.event()

    def give(self, event: int) -> None:
        """Take an event back."""
        if self.is_closed:
            self.driver.end_event(event)
        else:
            self.spare.append(event)

    def close(self) -> None:
        """End those that nobody uses; others end when they are given back."""
        self.is_closed = True
        while self.spare:
            self.driver.end_event(self.spare.pop())


class Held:
    """An object that gives memory of a device back when nobody has it any more.

    The end of the process, and of a forked child, gives it back by itself.
    """

    def _drop(self) -> None:
        """Give it back."""

    def __del__(
        self,
        is_ending: Callable[[], bool] = sys.is_finalizing,  # at the end, modules are emptied
        is_forked: Callable[[], bool] = _core.is_forked,
    ) -> None:
        if not (is_ending() or is_forked()):
            with contextlib.suppress(Exception):  # of a device that has failed
                self._drop()
