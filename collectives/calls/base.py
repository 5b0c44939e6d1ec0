"""What the calls of a communicator have in common: what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import TYPE_CHECKING, Any

from collectives import _core
from collectives.choice.chooser import Chooser
from collectives.devices import Entry
from collectives.errors import ArgumentError
from collectives.process.meeting import Meeting
from collectives.text.words import shown

if TYPE_CHECKING:
    from typing_extensions import Self

LARGEST = 2**31 - 1  # int in C


class Calls:
    """The base of all calls; `Communicator` fills it."""

    rank: int
    size: int
    nodes: int
    timeout: float
    _mpi: Any
    _engine: _core.Engine
    _call: Callable[..., Any]  # that of the engine
    _start: Callable[..., _core.Request]  # the same, for calls that do not block
    _segment: _core.Segment | None
    _chooser: Chooser
    _meeting: Meeting
    _devices: Entry
    _exchanges: dict[tuple[int | None, int | None], _core.Choice]

    if TYPE_CHECKING:

        def _grown(self, mpi: Any, call: str) -> Self:
            """Return a communicator that this one has made."""

        def _let_go(self) -> list[Any]:
            """Leave the shared memory; return the communicators of MPI that are left to free."""

        def forget(self) -> None:
            """Discard the choices of algorithms."""


def integer(name: str, value: Any, low: int, high: int, otherwise: str = "") -> int:
    """Return an argument of any integer type, if it is in a range."""
    try:
        number = index(value)
    except Exception:  # also of a user's type
        number = low - 1
    if not low <= number <= high:
        raise ArgumentError(
            f"{name} is {shown(value)}, and must be an integer in {low}..{high}{otherwise}"
        )
    return number
