"""Handles of submitted tensors of a framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from collectives import background
from collectives.background.group import all_or_none
from collectives.errors import CollectivesError
from collectives.horovod.errors import HorovodArgumentError, translated, translation
from collectives.horovod.process_sets import ProcessSet, global_process_set


class Handle:
    """A collective, or a group of them, that was submitted for tensors."""

    __slots__ = ("_finish", "_parts", "_result")

    def __init__(
        self, parts: Sequence[background.Handle], finish: Callable[..., Any] | None
    ) -> None:
        self._parts, self._finish = parts, finish
        self._result: Any = None

    def done(self) -> bool:
        """Return whether it is complete, or has failed. Local."""
        return all(each.done() for each in self._parts)

    def wait(self) -> Any:
        """Wait for it and return its output; see `synchronize`.
        Local, but it waits for the submissions of the other ranks.
        """
        if self._parts:
            self._result = self._made(waited(self._parts))
            self._parts = ()
        return self._result

    def _made(self, results: Sequence[Any]) -> Any:
        return results[0] if self._finish is None else self._finish(*results)

    def then(self, function: Callable[[Any], Any]) -> Handle:
        """Return a handle whose output is the function of this one's. Local."""
        if self._finish is None:
            return Handle(self._parts, function)
        return Handle(self._parts, lambda *results: function(self._made(results)))


def together(handles: Sequence[Handle]) -> Handle:
    """Return one handle for several, whose output is the list of their outputs. Local."""
    parts = [each._parts for each in handles]

    def finish(*results: Any) -> list[Any]:
        left = iter(results)
        return [
            handle._made([next(left) for _ in mine])
            for handle, mine in zip(handles, parts, strict=True)
        ]

    return Handle([part for mine in parts for part in mine], finish)


class Waitable(Protocol):
    """A submission."""

    def wait(self) -> Any:
        """Wait for it; return its result. Local."""


def waited(parts: Iterable[Waitable]) -> list[Any]:
    """Wait for all of some submissions; return their results, or raise the first error.
    Local.
    """
    results: list[Any] = []
    problem: BaseException | None = None
    for each in parts:
        try:
            results.append(each.wait())
        except (CollectivesError, RuntimeError) as error:
            problem = problem or error
    if isinstance(problem, CollectivesError):
        raise translation(problem) from problem
    if problem is not None:
        raise problem
    return results


def join(device: int = -1) -> int:
    """Take part in what the other ranks reduce, with zeros, until all ranks have joined.
    Collective.

    Parameters
    ----------
    device : int
        The CUDA device for zeros if NCCL sends tensors. By default, that of earlier tensors of this
        rank, or the current one.

    Returns
    -------
    int
        The rank that was last.

    Raises
    ------
    HorovodInternalError
        If a rank is lost, or a deadline has passed.
    """
    comm = global_process_set.comm()
    group: Any = comm._background
    with translated():
        if group is not None and group.nccl is not None:
            group.nccl.choose_device(device)
        return background.join(comm)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks have called it.
    Collective.

    Parameters
    ----------
    process_set : ProcessSet
        The ranks.

    Raises
    ------
    HorovodInternalError
        If a rank is lost, or a deadline has passed.
    """
    with translated():
        background.submit("barrier", group=process_set.comm()).wait()


def submit(kind: str, name: str | None, *arrays: Any, **options: Any) -> background.Handle:
    """Submit a collective; return its handle. Local."""
    try:
        key = None if name is None else f"{kind}.{name}"
        return background.submit(kind, *arrays, name=key, **options)
    except CollectivesError as error:
        raise translation(error) from error


def names(name: str | None, count: int) -> list[str | None]:
    """Return the names of the members of a group. Local."""
    if name is None:
        return [None] * count
    return [f"{name}, {k} of {count}" for k in range(1, count + 1)]


def grouped(
    name: str | None,
    tensors: Iterable[Any],
    start: Callable[[Any, str | None], Handle],
) -> Handle:
    """Submit several tensors, or none if one is refused; return one handle. Local."""
    each = list(tensors)
    if not each:
        raise HorovodArgumentError("tensors is empty, and must have at least one tensor")
    parts = names(name, len(each))
    with all_or_none(), translated():
        return together([start(*both) for both in zip(each, parts, strict=True)])
