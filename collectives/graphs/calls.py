"""Calls: collectives at one place of a compiled program, which runs again and again.

The program calls back twice for each collective: to submit it, and to wait for it. `Call` keeps
what is in flight between the two.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

STEPS = 8  # that are kept: there is more than one where several threads run the program

Array = NDArray[Any]


class Waitable(Protocol):
    """What was submitted: ``wait()`` returns arrays when ``done()``."""

    def done(self) -> bool:
        """Return whether it is complete, or has failed. Local."""

    def wait(self) -> Any:
        """Wait for it; return its arrays.
        Local, but it waits for what the other ranks submit.
        """


Start = Callable[[Sequence[Array]], Waitable]  # it submits some arrays


class _Step:
    """One run of a call: what it has submitted, by the number of the part."""

    def __init__(self) -> None:
        self.parts: dict[int, Waitable] = {}

    def drain(self) -> None:
        """Wait for all that was submitted, and forget it."""
        for each in list(self.parts.values()):
            with contextlib.suppress(RuntimeError):  # nobody wants the result
                each.wait()
        self.parts.clear()


class Call:
    """Collectives at one place of a program. Its parts are added while the program is compiled."""

    def __init__(self) -> None:
        self._starts: list[Start] = []
        self._steps: deque[tuple[int, _Step]] = deque(maxlen=STEPS)
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many parts it has."""
        return len(self._starts)

    def add(self, start: Start) -> int:
        """Add a part; return its number. Local."""
        self._starts.append(start)
        return len(self._starts) - 1

    def submit(self, number: int, part: int, arrays: Sequence[Array]) -> int:
        """Submit a part. Collective."""
        if number == 0:
            number = self._begin()
        self._find(number).parts[part] = self._starts[part](arrays)
        return number

    def done(self, number: int, part: int) -> bool:
        """Return whether a `part` of the step `number` is complete, or has failed. Local."""
        return self._find(number).parts[part].done()

    def wait(self, number: int, part: int) -> list[Array]:
        """Wait for a part; return its arrays.
        Local, but it waits for what the other ranks submit.
        """
        step = self._find(number)
        try:
            results = step.parts[part].wait()
        except BaseException:
            step.drain()  # so that the names are free when the program goes on
            raise
        del step.parts[part]
        return list(results) if isinstance(results, list | tuple) else [results]

    def _begin(self) -> int:
        """Return the number of a new step, when nothing is in flight of one that was given up."""
        with self._lock:
            earlier = [step for _, step in self._steps]
        for each in earlier:
            for part in list(each.parts.values()):
                with contextlib.suppress(RuntimeError):
                    part.wait()
        number = next(_numbers)
        with self._lock:
            self._steps.append((number, _Step()))
        return number

    def _find(self, number: int) -> _Step:
        with self._lock:
            return dict(self._steps)[number]


_numbers = itertools.count(1)
