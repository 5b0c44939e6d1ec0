"""The base of the calls of a communicator, and the names that it explains."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import index
from types import MethodType
from typing import TYPE_CHECKING, Any, NoReturn

from collectives import _core
from collectives.errors import ArgumentError
from collectives.text.words import missing, shown

if TYPE_CHECKING:
    from typing_extensions import Self

    from collectives.choice.chooser import Chooser
    from collectives.devices import Entry
    from collectives.process.meeting import Meeting

LARGEST = 2**31 - 1  # int in C


class _Listed(type):
    """The type of `Calls`, whose `dir` omits the names of other libraries."""

    def __dir__(cls) -> list[str]:
        return sorted({*super().__dir__()} - _ELSEWHERE)


class Calls(metaclass=_Listed):
    """The base of all calls; `Communicator` fills it."""

    rank: int
    size: int
    nodes: int
    timeout: float
    _mpi: Any
    _engine: _core.Engine
    _call: Callable[..., Any]  # that of the engine
    _vector: Callable[..., Any]  # the same, for vector forms
    _start: Callable[..., _core.Request]  # the same, for calls that do not block
    _barrier: Callable[[str | None, float | None], None]
    _segment: _core.Segment | None
    _chooser: Chooser
    _meeting: Meeting
    _devices: Entry
    _exchanges: dict[tuple[int | None, int | None], _core.Choice]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - _ELSEWHERE)

    if TYPE_CHECKING:

        @property
        def bits(self) -> str:
            """The mode of the bits of results, as for `Communicator`."""

        @property
        def _proc_null(self) -> int:
            """The number that stands for no rank."""

        def _grown(self, mpi: Any, call: str, bits: str | None = None) -> Self:
            """Return a communicator that this one has made."""

        def _let_go(self) -> list[Any]:
            """Leave the shared memory; return the communicators of MPI to be freed."""

        def forget(self) -> None:
            """Discard the choices of algorithms."""


# The words that begin the sentence of a docstring about the ranks that make a call.
_CALLERS = re.compile(r"\b(Collective|Local)\b")


def defaulted(function: Callable[..., Any], owner: type, name: str) -> Callable[..., Any]:
    """Give a function that calls a method of the default communicator the method's name, text and
    signature; return it. Local.
    """
    method = getattr(owner, name)
    function.__name__ = function.__qualname__ = name
    doc = method.__doc__ or ""  # python -OO
    found = _CALLERS.search(doc)
    at = len(doc) if found is None else found.start()
    it_is = f"It is `Communicator.{name}` on the default communicator. "
    function.__doc__ = f"{doc[:at]}{it_is}{doc[at:]}"
    # `inspect.signature` omits the first parameter of a bound method.
    function.__wrapped__ = MethodType(method, owner)  # type: ignore[attr-defined]
    return function


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


def check_every(every: Any) -> None:
    """Refuse a number of calls, of which one does something, that is not positive."""
    if not isinstance(every, int) or every < 1:
        raise ArgumentError(f"every is {shown(every)}, and must be a positive number of calls")


class _Elsewhere:
    """A name of mpi4py or torch, which raises an error with the name of its counterpart here.

    A ``__getattr__`` of the class could raise it, too, but would slow down the look-up of every
    method.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, comm: Calls | None, owner: type) -> NoReturn:
        raise missing(comm, "'Communicator' object", self.name, dir(comm or owner))


# The names of mpi4py and torch for these methods, other than those that only differ in capitals.
_ELSEWHERE = {
    *("Get_rank", "Get_size", "bcast", "ibcast", "Bcast", "Ibcast"),
    *("Reduce_scatter", "Reduce_scatter_block", "Ireduce_scatter", "Ireduce_scatter_block"),
    *("get_rank", "get_world_size", "all_reduce", "all_gather", "all_gather_into_tensor"),
    *("all_gather_object", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
}


def explain_names(owner: type[Calls]) -> None:
    """Have names of mpi4py and torch raise errors that name the methods of a class."""
    _ELSEWHERE.update(name.capitalize() for name in dir(owner) if name.isalpha())
    for name in _ELSEWHERE:
        setattr(owner, name, _Elsewhere(name))
