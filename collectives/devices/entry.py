"""The entry to this room, which loads the rest of it when the first array of a device comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # few programs need it
    from collectives.devices.calls import Devices


class Entry:
    """What the engine of a communicator asks for its `Devices`."""

    def __init__(self, room: int, size: int, transport: str, chooser: Callable[[], object]) -> None:
        self.arguments = room, size, transport, chooser
        self.made: Devices | None = None
        self.making = threading.Lock()

    def __call__(self) -> Devices:
        """Return what the communicator has for arrays of devices. Local."""
        if self.made is None:
            from collectives.devices.calls import Devices

            with self.making:  # threads may have their first call at the same time
                if self.made is None:
                    self.made = Devices(*self.arguments)
        return self.made

    def close(self) -> None:
        """Give back what was made, when no call is in flight. Local."""
        if self.made is not None:
            self.made.close()


def is_request(value: object) -> bool:
    """Return whether `value` is a call on a device that was started. Local."""
    from collectives.devices.calls import DevicePlan
    from collectives.devices.direct import DirectRequest
    from collectives.devices.messages import MessageRequest
    from collectives.devices.requests import StreamRequest
    from collectives.devices.staging import DeviceRequest

    kinds = DevicePlan, DeviceRequest, DirectRequest, MessageRequest, StreamRequest
    return isinstance(value, kinds)
