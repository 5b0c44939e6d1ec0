"""What the calls of a communicator have in common: what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from collectives import _core
from collectives.choice.chooser import Chooser
from collectives.devices import Entry
from collectives.process.meeting import Meeting

if TYPE_CHECKING:
    from typing_extensions import Self


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
