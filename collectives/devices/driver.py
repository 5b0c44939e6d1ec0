"""The interface to a GPU's runtime: all that the library asks of it.

Memory is addresses, streams and events are handles. `cupy_driver` implements it with CuPy; the
tests have an implementation without a GPU, which runs streams later and checks what they depend on.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

__all__ = ["Driver", "Pinned", "Place"]


class Place(NamedTuple):
    """Where an address lies."""

    kind: str  # "device", "managed", "host"
    device: int


class Pinned(Protocol):
    """Host memory that a device reads and writes directly."""

    address: int
    array: NDArray[Any]  # of uint8

    def free(self) -> None:
        """Give it back. No copy may be in flight. Local."""


class Driver(Protocol):
    """What a GPU's runtime can do. All calls are local; none but `synchronize` waits for a device.

    Streams and events are integers, as the runtime has them; stream 0 is the default stream, which
    waits for all other streams of its device that do not say otherwise. An event belongs to the
    device that was current when it was made.
    """

    name: str

    def devices(self) -> int:
        """Return how many devices this process sees."""

    def on(self, device: int) -> AbstractContextManager[Any]:
        """Return a context in which `device` is the current one; the one before is restored."""

    def place(self, address: int) -> Place:
        """Return where an address lies."""

    # -- memory ------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        """Return the address of so many bytes on the current device, aligned to 512 bytes.

        Raises
        ------
        MemoryError
            If the device has no memory left.
        """

    def free(self, address: int) -> None:
        """Give memory of `allocate` back."""

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
        """Let what comes later on a stream wait for what an event stands for now."""

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
