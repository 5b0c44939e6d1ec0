"""A thread that waits for the arrays of submissions to come from devices."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from collectives.background.copies import Copies, failed
from collectives.errors import CommunicatorError

Arrival = Callable[[CommunicatorError | None], object]


class Copier:
    """The thread that waits for copies, one after the other. It starts with the first copies."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Copies, Arrival]] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, copies: Copies, arrived: Arrival) -> None:
        """Call `arrived` when arrays have come, with the error if a device fails. Local."""
        self._queue.put((copies, arrived))
        with self._starting:
            if self._thread is None:
                name = "collectives copies"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            copies, arrived = self._queue.get()
            problem = None
            try:
                copies.wait()
            except BaseException as error:
                problem = failed(error)
            arrived(problem)
            del copies, arrived  # they would keep arrays alive
