"""Arrays in the memory of GPUs, the interface to a GPU's runtime, and the transports.

The engine of a communicator hands calls with such arrays to `calls`, which `Entry` loads. `arrays`
reads the arrays, and `transports` selects the transport of a call. `staging` runs the collective of
the host on pieces of them (`columns`) in pinned memory (`ring`), `nccl` calls NCCL. `ipc` is for
ranks of one host that can read each other's device memory: the collective runs in that memory
(`direct`), `peers` has the shared memory and events, and `passes` enqueues the folds of `kernels`.
An MPI that accepts device pointers (`cuda_aware_mpi`) sends the messages of the same plans.
`messages` are sends and receives, `requests` has the base class of all requests. `accelerators`
copies tensors of torch to the host and back for the background, by torch's functions. No file but
`cupy_driver` and `cupy_nccl` imports CuPy; `runtime` loads them when the first array of a device
comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # few programs need it
    from collectives.devices.calls import Devices


class Entry:
    """The interface of `Devices` for the engine of a communicator."""

    def __init__(self, room: int, size: int, transport: str, chooser: Callable[[], object]) -> None:
        self.arguments: tuple[int, int, str, Callable[[], object]] = room, size, transport, chooser
        self.transport = transport
        self.made: Devices | None = None
        self.making: threading.Lock = threading.Lock()

    def __call__(self) -> Devices:
        """Return the communicator's state for arrays of devices."""
        if self.made is None:
            from collectives.devices.calls import Devices

            with self.making:  # threads may have their first call at the same time
                if self.made is None:
                    self.made = Devices(*self.arguments)
        return self.made

    def close(self) -> None:
        """Free all memory and streams, when no call is in flight."""
        if self.made is not None:
            self.made.close()
