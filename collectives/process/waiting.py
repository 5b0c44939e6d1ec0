"""Waiting for minutes: ranks that have nothing to do sleep, and leave their cores to others."""

from __future__ import annotations

import time

from collectives import _core

POLLS = 200  # before a waiting rank naps
NAP = 1e-3  # seconds


class Wait:
    """One wait: how long it has taken, without the time for which this process was stopped."""

    def __init__(self) -> None:
        self._began = self._looked = time.monotonic()
        self._polls = 0

    def passed(self) -> float:
        """Return the seconds that have passed. Local."""
        self._began += _core.stopped(self._looked)
        self._looked = time.monotonic()
        return self._looked - self._began

    def pause(self) -> None:
        """Let others run: for a moment at first, then for a millisecond. Local."""
        self._polls += 1
        time.sleep(0 if self._polls < POLLS else NAP)
