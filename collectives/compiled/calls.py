"""Calls: collectives at one place of a compiled program, which runs many times.

The program calls back twice for each collective: to submit it, and to wait for it. `CompiledCall`
keeps the submission between the two. If such a function raises an exception, the framework raises
an error of its own with the text. `text_of` keeps the exception and returns a text with its number,
and `found` returns the exception with the number in a text.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from collectives.text.words import error_text

STEPS = 8  # the kept steps: there is more than one if several threads run the program
ERRORS = 64  # the kept errors; each is looked up soon

Array = NDArray[Any]


class Waitable(Protocol):
    """A submission."""

    def done(self) -> bool:
        """Return whether it is complete, or has failed. Local."""

    def wait(self) -> Any:
        """Wait for it; return its arrays, or its array.
        Local, but it waits for the submissions of the other ranks.
        """


Start = Callable[[Sequence[Array]], Waitable]  # it submits some arrays
Parts = dict[int, Waitable]  # the submissions of one run of a call, by the number of the part


class CompiledCall:
    """Collectives at one place of a program. Its parts are added while the program is compiled."""

    def __init__(self) -> None:
        self._starts: list[Start] = []
        self._steps: OrderedDict[int, Parts] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """The number of its parts."""
        return len(self._starts)

    def add(self, start: Start) -> int:
        """Add a part; return its number. Local."""
        self._starts.append(start)
        return len(self._starts) - 1

    def submit(self, number: int, part: int, arrays: Sequence[Array]) -> int:
        """Submit a part of the step `number`, or of a new one if that is 0; return the step's
        number. Collective.
        """
        if number == 0:
            number = self._begin()
        self._find(number)[part] = self._starts[part](arrays)
        return number

    def done(self, number: int, part: int) -> bool:
        """Return whether a `part` of the step `number` is complete, or has failed. Local."""
        return self._find(number)[part].done()

    def wait(self, number: int, part: int) -> list[Array]:
        """Wait for a part; return its arrays.
        Local, but it waits for the submissions of the other ranks.
        """
        parts = self._find(number)
        try:
            results = parts[part].wait()
        except BaseException:
            _drain(parts)  # so that the names are free when the program continues
            parts.clear()
            raise
        del parts[part]
        return list(results) if isinstance(results, list | tuple) else [results]

    def _begin(self) -> int:
        """Return the number of a new step, after the submissions of abandoned ones have ended."""
        with self._lock:
            earlier = list(self._steps.values())
        for each in earlier:
            _drain(each)
        number = next(_numbers)
        with self._lock:
            self._steps[number] = {}
            if len(self._steps) > STEPS:
                self._steps.popitem(last=False)
        return number

    def _find(self, number: int) -> Parts:
        with self._lock:
            return self._steps[number]


def _drain(parts: Parts) -> None:
    """Wait for all submissions."""
    for each in list(parts.values()):
        with contextlib.suppress(RuntimeError):  # the result is not used
            each.wait()


_numbers = itertools.count(1)

# -- errors ----------------------------------------------------------------------------------------

_errors: OrderedDict[int, BaseException] = OrderedDict()
_MARK = re.compile(r"\[collectives: error (\d+)\]")


def text_of(error: BaseException) -> str:
    """Keep an error; return a text that identifies it. Local."""
    number = next(_numbers)
    _errors[number] = error
    while len(_errors) > ERRORS:
        _errors.popitem(last=False)
    return f"{error_text(error)} [collectives: error {number}]"


def found(text: str) -> BaseException | None:
    """Return the kept error with the number in a text, or None. Local."""
    mark = _MARK.search(text)
    return None if mark is None else _errors.get(int(mark[1]))
