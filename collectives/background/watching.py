"""Requests of nonblocking calls that the background looks at, to tell when they are complete."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

from collectives import _core

LOOK = 0.05  # seconds between two looks at the deadline


class Watch:
    """A request, and what is called when it is complete or has failed."""

    def __init__(self, request: Any, function: Callable[[], object]) -> None:
        self.request, self.function = request, function
        self.began = self.looked = time.monotonic()

    def has_ended(self) -> bool:
        """Make progress; return whether the request is complete or has failed. Local."""
        try:
            now = time.monotonic()
            if now > self.looked + LOOK:
                self.began += _core.stopped(self.looked)
                self.looked = now
                self.request._look(now - self.began)
            ended: bool = self.request.test()
        except Exception:  # whoever waits for the request gets it, too
            return True
        return ended

    def run_callbacks(self) -> None:
        """Call the function; what it raises is reported and ignored. Local."""
        try:
            self.function()
        except Exception:
            traceback.print_exc()
