"""The type of requests and plans on arrays of devices, which all programs load."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from collectives import _core


class OnDevice:
    """A request or a plan on arrays of devices, which `wait_all` takes."""

    def wait(self, timeout: float | None = None, host: bool = False) -> Any:
        """Wait for the result, and return it."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the result in a coroutine of asyncio or trio, while others run. Local."""
        return _core.awaited(self)
