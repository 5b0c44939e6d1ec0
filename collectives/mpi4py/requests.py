"""Requests of collectives that run here, for programs that wait for them as for those of MPI.

For MPI, such a request is ``MPI_REQUEST_NULL``: MPI's own generalized requests would take 2 to 3 us
more, and need another thread to complete them. So their methods are overridden, and the class
methods of mpi4py, such as ``MPI.Request.Waitall``, are replaced when the first request is made.
These call MPI's methods, unless such a request is in the list.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from mpi4py import MPI

from collectives import _core
from collectives.mpi4py.tasks import Task

MOMENT = 2e-5  # seconds for which a wait for several requests polls one alone

NAMES = (
    *("Waitany", "Testany", "Get_status_any", "waitany", "testany", "get_status_any"),
    *("Waitall", "Testall", "Get_status_all", "waitall", "testall", "get_status_all"),
    *("Waitsome", "Testsome", "Get_status_some", "waitsome", "testsome", "get_status_some"),
)


class Ended:
    """A request that is complete from the start."""

    def test(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def _spin(self, seconds: float) -> bool:
        return True


_ENDED = (Ended(),)  # of an active request that has sent nothing
_new = MPI.Request.__new__


class Pending:
    """The base of requests of collectives here: messages in flight.

    Requests have slots, because making a dictionary of attributes takes longer than a short
    collective.
    """

    __slots__ = ()
    _parts: Sequence[_core.Request | Ended]  # none: the request is inactive
    _finish: Callable[[], None]

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        if self._parts:
            for part in self._parts:
                part.wait()
            self._parts = ()  # type: ignore[misc]  # subclasses have the slot
            self._finish()
        if status is not None:
            _empty(status)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        if not self._is_done():
            return False
        return self.Wait(status)

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        if not self._is_done():
            return False
        _empty(status)
        return True

    def wait(self, status: MPI.Status | None = None) -> None:
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        return self.Test(status), None

    get_status = Get_status

    def Cancel(self) -> None:
        raise MPI.Exception(MPI.ERR_REQUEST)

    cancel = Cancel

    def Free(self) -> None:
        raise MPI.Exception(MPI.ERR_REQUEST)

    def free(self) -> None:
        if self:
            self.Free()

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MPI.Request):
            return NotImplemented
        same = id(self) == id(other)
        return same or not (self or other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = object.__hash__

    def __reduce__(self) -> Any:
        raise ValueError("a request of a collective cannot be pickled")

    def _is_done(self) -> bool:
        """Make progress; return whether all parts are complete. Local."""
        return all(part.test() for part in self._parts)

    def _spin(self) -> None:
        """Wait for a moment. Local."""
        all(part._spin(MOMENT) for part in self._parts)  # until one is not complete


class Request(Pending, MPI.Request):
    """A nonblocking collective."""

    __slots__ = ("_finish", "_parts")

    def __new__(cls, parts: Any, finish: Callable[[], None]) -> Request:
        self: Request = _new(cls)
        self._parts = (parts or _ENDED) if isinstance(parts, list) else (parts,)
        self._finish = finish
        return self


class Prequest(Pending, MPI.Prequest):
    """A persistent collective, which can be started any number of times."""

    __slots__ = ("_finish", "_free", "_parts", "_task")
    _task: Task | None
    _free: Callable[[], None]

    def __new__(cls, task: Task, free: Callable[[], None]) -> Prequest:
        self: Prequest = MPI.Prequest.__new__(cls)
        self._task, self._finish, self._free = task, task.finish, free
        self._parts = ()
        return self

    def Start(self) -> None:
        if self._task is None or self._parts:
            raise MPI.Exception(MPI.ERR_REQUEST)
        parts = self._task.start(False)
        self._parts = (parts or _ENDED) if isinstance(parts, list) else (parts,)

    def Free(self) -> None:
        if self._task is None or self._parts:
            raise MPI.Exception(MPI.ERR_REQUEST)
        self._task = None
        self._free()

    def __bool__(self) -> bool:
        return self._task is not None


def _empty(status: MPI.Status | None) -> None:
    """Set a status to the values of MPI for a request without messages."""
    if status is not None:
        status.Set_source(MPI.ANY_SOURCE)
        status.Set_tag(MPI.ANY_TAG)
        status.Set_error(MPI.SUCCESS)
        status.Set_elements(MPI.BYTE, 0)
        status.Set_cancelled(False)


class _Mixed(NamedTuple):
    """A list of requests, of which some are MPI's."""

    ours: list[tuple[int, Pending]]
    places: list[int]
    theirs: list[MPI.Request]
    original: Callable[[str], Callable[..., Any]]
    messages: bool  # whether the call returns objects that were received
    keeps: bool  # whether complete requests are left as they are

    def call(self, name: str, statuses: Any) -> Any:
        """Call the method of mpi4py that tests MPI's requests."""
        name = f"Get_status_{name}" if self.keeps else f"Test{name}"
        found = self.original(name.lower() if self.messages else name)(self.theirs, statuses)
        return found if isinstance(found, tuple) else (found, None)

    def active(self) -> list[tuple[int, Pending]]:
        return [(at, each) for at, each in self.ours if each._parts]

    def end(self, each: Pending, status: MPI.Status | None) -> None:
        if self.keeps:
            _empty(status)
        else:
            each.Wait(status)

    def any(self, status: MPI.Status | None) -> tuple[int, bool, Any]:
        """Return the place of a request that is complete, whether there is one, and an object."""
        active = self.active()
        for at, each in active:
            if each._is_done():
                self.end(each, status)
                return at, True, None
        index, flag, *found = self.call("any", status)
        if index != MPI.UNDEFINED:
            return self.places[index], True, (found or [None])[0]
        return MPI.UNDEFINED, flag and not active, None

    def all(self, statuses: Any, waits: bool) -> tuple[bool, Any]:
        """Return whether all requests are complete, and the objects."""
        told: Any = None if statuses is None else []
        if waits:  # MPI's requests make progress during it
            for _, each in self.ours:
                each.Wait()
            found = self.original("waitall" if self.messages else "Waitall")(self.theirs, told)
        else:
            if not all(each._is_done() for _, each in self.ours):
                return False, None
            flag, found = self.call("all", told)
            if not flag:
                return False, None
            for _, each in self.ours:
                self.end(each, None)
        objects: list[Any] = [None] * (len(self.ours) + len(self.theirs))
        for place, each in zip(self.places, found if self.messages else (), strict=False):
            objects[place] = each
        if statuses is not None:
            _tell(statuses, range(len(objects)), dict(zip(self.places, told, strict=True)))
        return True, objects

    def some(self, statuses: Any) -> tuple[list[int] | None, Any]:
        """Return the places of complete requests, or None if none is active; and the objects."""
        active = self.active()
        ended = [(at, each) for at, each in active if each._is_done()]
        for _, each in ended:
            self.end(each, None)
        told: Any = None if statuses is None else []
        indices, found = self.call("some", told)
        if indices is None and not active:
            return None, None
        theirs = [self.places[index] for index in indices or ()]
        places = [*(at for at, _ in ended), *theirs]
        if statuses is not None:
            _tell(statuses, places, dict(zip(theirs, told, strict=False)))
        return places, [*(None for _ in ended), *(found or ())]

    def pause(self) -> None:
        os.sched_yield()
        for _, each in self.active()[:1]:
            each._spin()


def _tell(statuses: Any, places: Sequence[int], told: dict[int, MPI.Status]) -> None:
    """Set the statuses of these places to those of MPI's, or to empty ones."""
    if isinstance(statuses, list):
        statuses += [MPI.Status() for _ in range(len(statuses), len(places))]
    for status, place in zip(statuses, places, strict=False):
        _empty(status)
        if place in told:
            theirs = told[place]
            status.Set_source(theirs.Get_source())
            status.Set_tag(theirs.Get_tag())
            status.Set_error(theirs.Get_error())
            status.Set_elements(MPI.BYTE, theirs.Get_elements(MPI.BYTE))
            status.Set_cancelled(theirs.Is_cancelled())


def _answer(mixed: _Mixed, name: str, status: Any) -> Any:
    """Return the result of a class method for a list with requests of both kinds."""
    waits = name.startswith(("W", "w"))
    how = name[-3:]
    while True:
        if how == "all":
            flag, objects = mixed.all(status, waits)
            done = objects if waits else (flag, objects)
            return done if mixed.messages else flag
        if how == "any":
            index, flag, found = mixed.any(status)
            if flag or not waits:
                done = (index, found) if waits else (index, flag, found)
                return done if mixed.messages else index if waits else (index, flag)
        else:
            places, objects = mixed.some(status)
            if places or places is None or not waits:
                return (places, objects) if mixed.messages else places
        mixed.pause()


def _replaced(name: str, original: Callable[[str], Callable[..., Any]]) -> Any:
    """Return a class method that takes requests of both kinds."""
    theirs = original(name)
    word = "status" if name.endswith("any") else "statuses"

    def method(cls: Any, requests: Any, *args: Any, **options: Any) -> Any:
        if not any(isinstance(each, Pending) for each in requests):
            return theirs(requests, *args, **options)
        status = args[0] if args else options.get(word)
        pairs = list(enumerate(requests))
        ours = [(at, each) for at, each in pairs if isinstance(each, Pending)]
        others = [(at, each) for at, each in pairs if not isinstance(each, Pending)]
        mixed = _Mixed(
            ours,
            [at for at, _ in others],
            [each for _, each in others],
            original,
            name.startswith(("w", "t")),
            name.startswith(("G", "g")),
        )
        return _answer(mixed, name, status)

    return classmethod(functools.wraps(theirs)(method))


def _startall(requests: Any, *, theirs: Callable[..., Any]) -> None:
    for each in requests:
        if isinstance(each, Prequest):
            each.Start()
    theirs([each for each in requests if not isinstance(each, Prequest)])


@functools.cache
def install() -> None:
    """Replace the class methods of mpi4py that take lists of requests. Local."""
    originals = {name: getattr(MPI.Request, name) for name in NAMES if hasattr(MPI.Request, name)}
    for name in originals:
        _core.replace_in_type(MPI.Request, name, _replaced(name, originals.__getitem__))
    start = MPI.Prequest.Startall
    method = functools.partial(_startall, theirs=start)
    _core.replace_in_type(
        MPI.Prequest, "Startall", staticmethod(functools.update_wrapper(method, start))
    )
