"""A call on arrays of a device that was checked, whichever transport it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from collectives import _core
from collectives.devices.arrays import DeviceArray
from collectives.devices.columns import Columns, Part
from collectives.text.words import error_text


class Job(NamedTuple):
    """A call that was checked.

    Attributes
    ----------
    kind : int
        The collective.
    title : str
        What messages call it.
    columns : Columns
        How it is cut.
    source, target : DeviceArray or None
    parts, target_parts : list of Part or None
        Where the parts of both arrays are, unless they are equal rows.
    is_risky : bool
        Whether pieces would be written where others have yet to be read.
    arguments : tuple
        The operation, root and algorithm.
    scales : tuple
        The factors of contributions and of the result.
    whole : int
        The elements that the ranks compare.
    text : str
        What they compare under ``COLLECTIVES_VALIDATE=1``.
    result : object
        What the caller gets.
    reduces : bool
        Whether it folds.
    is_shared : bool
        Whether its plan sends no messages: all goes through shared memory.
    before : (Request, callable) or None
        What has to be complete, too, and what returns the result then.
    finish : callable or None
        It makes of `result` what the caller gets, once it is complete.
    """

    kind: int
    title: str
    columns: Columns
    source: DeviceArray | None
    target: DeviceArray | None
    parts: list[Part] | None
    target_parts: list[Part] | None
    is_risky: bool
    arguments: tuple[Any, int, str | None]
    scales: tuple[float, float]
    whole: int
    text: str
    result: Any
    reduces: bool
    is_shared: bool
    before: tuple[_core.Request, Callable[[Any], Any]] | None = None
    finish: Callable[[Any], Any] | None = None

    @property
    def arrays(self) -> list[DeviceArray]:
        """The arrays that this rank gives or gets."""
        return [each for each in (self.source, self.target) if each is not None]

    def finished(self) -> Any:
        """Return what the caller gets, when all of it is complete. Local, and called once."""
        if self.before is not None:
            self.before[1](self.result)
        return self.result if self.finish is None else self.finish(self.result)


def give_up(engine: _core.Engine, title: str, error: BaseException) -> None:
    """Mark a communicator as broken, and tell the other ranks of this host. Local."""
    if engine.broken is None:
        engine.broken = f"the communicator is broken: rank {engine.rank} failed in {title}"
        if engine.segment is not None:
            engine.segment.give_up(f"it failed in {title}: {error_text(error)}")
