"""Logs events of the library through `logging`, as the logger ``collectives``."""

from __future__ import annotations

import sys
from typing import Any

from collectives.text.origin import levels

NAME = "collectives"

_place: dict[str, Any] = {"rank": None, "host": None}


def locate(rank: int | str, host: str) -> None:
    """Set the rank and the host of this process in log records. Local."""
    _place.update(rank=rank, host=host)


def note(level: str, text: str) -> None:
    """Log a text. Local.

    It does nothing until the program has loaded `logging`: there is no listener before, and loading
    takes a while.
    """
    if "logging" not in sys.modules:
        return
    import logging  # and wait for it, if another thread is loading it

    found = logger(logging)
    number = getattr(logging, level)
    if found.isEnabledFor(number):
        found.log(number, "%s", text, extra=_place, stacklevel=levels())


def logger(logging: Any) -> Any:
    """Return the logger of the library, from the module `logging`. Local."""
    found = logging.getLogger(NAME)
    if not found.handlers:  # warnings are printed as such: not by the handler of last resort, too
        found.addHandler(logging.NullHandler())
    return found
