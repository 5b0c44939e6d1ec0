"""Lanes: threads that complete the futures of asynchronous calls, in the order of the calls.

The functions that a program has attached to a future (``then``) run there, one after the other, and
may wait.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

_here = threading.local()


def is_in_lane() -> bool:
    """Return whether the calling thread is that of a lane. Local."""
    return hasattr(_here, "lane")


class Lane:
    """A thread that runs functions one after the other. It starts with the first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, function: Callable[[], object]) -> None:
        """Have a function run after those that were given before. Local."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                self._thread.start()
        self._queue.put(function)

    def _work(self) -> None:
        _here.lane = self
        while True:
            function = self._queue.get()
            if function is None:
                return
            function()
            del function  # it has tensors

    def stop(self, seconds: float) -> None:
        """End the thread when it has run what it was given; wait for that, but not for longer than
        so many seconds.
        Local.
        """
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(seconds)
