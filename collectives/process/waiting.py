"""Waits: their durations, their naps, and their checks of other ranks.

Every wait of Python code for another rank is a `Wait`. The time for which this process was stopped,
such as by Ctrl-Z, does not count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from collectives import _core

SLICE = 0.05  # seconds between two checks of the deadline and the other ranks


class Naps(NamedTuple):
    """Stages of a wait: turns that keep the core, turns that yield it, then naps, in seconds.

    A wait that is younger than `brief` takes `short` naps, of which 0 yields.
    """

    eager: int = 0
    yields: int = 0
    brief: float = 0.0
    short: float = 0.0
    nap: float = 0.0


MESSAGES = Naps(eager=100, brief=0.1, nap=5e-4)  # another rank is about to answer
REQUESTS = Naps(eager=100)  # operations in flight advance only by the turns of this wait
MINUTES = Naps(yields=199, nap=1e-3)  # others need the cores


class Wait:
    """A wait, or a service with many waits, with a deadline after `timeout` seconds.

    At intervals it calls `look`, with the seconds that it has waited.
    """

    def __init__(
        self,
        naps: Naps = MINUTES,
        look: Callable[[float], object] | None = None,
        timeout: float = math.inf,
    ) -> None:
        self._naps, self._look, self._timeout = naps, look, timeout
        self._began = self._looked = time.monotonic()
        self._idle = 0
        self._stopped = 0.0

    def passed(self) -> float:
        """Return the seconds since the beginning, or since the last progress."""
        gap = _core.stopped(self._looked)
        self._began += gap
        self._stopped += gap
        self._looked = time.monotonic()
        return self._looked - self._began

    def again(self) -> None:
        """Count the seconds from now on, after progress."""
        self.passed()  # an earlier stop must not count as a later one
        self._began = self._looked

    def left(self) -> float:
        """Return the seconds before the deadline; 0 after it."""
        return max(0.0, self._timeout - self.passed())

    def now(self) -> float:
        """Return a time in seconds that does not pass while this process is stopped."""
        return time.monotonic() - self._stopped

    def look(self) -> bool:
        """Call `look` if it is due; return whether the deadline has not passed."""
        if time.monotonic() - self._looked <= SLICE:
            return True
        waited = self.passed()
        if self._look is not None:
            self._look(waited)
        return waited <= self._timeout

    def turn(self, moved: bool = False) -> bool:
        """Yield or nap unless there was progress (`moved`), and `look`."""
        if moved:
            self.again()
            self._idle = 0
        else:
            self._idle += 1
            self._give_way()
        return self.look()

    def _give_way(self) -> None:
        naps = self._naps
        turns = self._idle - naps.eager
        if turns <= 0:
            return
        is_brief = naps.brief > 0 and time.monotonic() - self._began < naps.brief
        time.sleep(0 if turns <= naps.yields else naps.short if is_brief else naps.nap)


def move_on() -> None:
    """Advance operations in flight: another rank may wait for one of them before it comes."""
    _core.guard()  # the program may have ended
    _core.advance_all()


def until(is_over: Callable[[], bool], wait: Wait) -> bool:
    """Wait until `is_over()` is true; return False if it is not by the deadline."""
    while not is_over():
        move_on()
        if not wait.turn():
            return False
    return True
