"""Waiting for others: naps, a deadline, and a look around from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable

from collectives import _core

POLLS = 20  # before a wait takes naps
BRIEF = 0.05  # seconds of a wait with short naps
SHORT_NAP, NAP = 5e-5, 5e-4  # seconds
SLICE = 0.05  # seconds between two looks around


class Watch:
    """A wait, or a service that waits again and again."""

    def __init__(self, look: Callable[[float], object]) -> None:
        self.look = look
        self.began = self.looked = time.monotonic()
        self.idle = 0
        self.stopped = 0.0

    def now(self) -> float:
        """Return a time in seconds that does not pass while this process is stopped. Local."""
        return time.monotonic() - self.stopped

    def turn(self, moved: bool) -> None:
        """Give way if nothing has `moved`, and look around if it is time. Local."""
        now = time.monotonic()
        if moved:
            self.began, self.idle = now, 0
        else:
            self.idle += 1
            if self.idle <= POLLS:
                time.sleep(0)
            else:
                time.sleep(SHORT_NAP if now - self.began < BRIEF else NAP)
        if now - self.looked > SLICE:
            gap = _core.stopped(self.looked)
            self.began += gap
            self.stopped += gap
            self.looked = now
            _core.guard()  # the program may have ended
            _core.advance_all()  # another rank may wait for an operation in flight
            self.look(now - self.began)
