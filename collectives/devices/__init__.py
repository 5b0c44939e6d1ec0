"""Arrays in the memory of GPUs: what they are, the driver under them, and how they travel.

The engine of a communicator hands calls with such arrays to `calls`, which `Entry` loads. `arrays`
reads the arrays, and `transports` says which way a call goes. `staging` runs the collective of the
host on pieces of them (`columns`) in pinned memory (`ring`), `nccl` has NCCL do it. `ipc` is for
ranks of one host that can read each other's device memory: the collective runs in that memory
(`direct`), `peers` has what the ranks share, and `passes` enqueues the folds of `kernels`. An MPI
that accepts device pointers (`cuda_aware_mpi`) sends the messages of the same plans. `messages` are
sends and receives, `requests` what all that was started has in common. `accelerators` copies
tensors of torch to the host and back for the background, by torch's own means. No file but
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
        """Return what the communicator has for arrays of devices."""
        if self.made is None:
            from collectives.devices.calls import Devices

            with self.making:  # threads may have their first call at the same time
                if self.made is None:
                    self.made = Devices(*self.arguments)
        return self.made

    def close(self) -> None:
        """Give everything back, when no call is in flight."""
        if self.made is not None:
            self.made.close()
