"""A scope that waits for the requests that were started inside it."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any

from collectives import _core
from collectives.calls.base import Calls
from collectives.calls.grouped import GroupedRequest, in_flight

if sys.version_info >= (3, 11):

    def _add_note(error: BaseException, text: str) -> None:
        error.add_note(text)

else:

    def _add_note(error: BaseException, text: str) -> None:
        """Python 3.10 has no notes."""


class ScopedCalls(Calls):
    """The method that makes a scope."""

    def requests(self) -> RequestScope:
        """Wait at the end of a ``with`` statement for all requests that were started inside it.
        Local, but the end waits for the other ranks.

        Returns
        -------
        RequestScope
            A context manager. It counts the requests of this communicator that this thread starts:
            those of nonblocking collectives, messages and planned calls.

        Raises
        ------
        CollectivesError
            At the end of the statement: the error of the first request that fails, as for
            `Request.wait`. An exception of the program is not replaced. Then nothing is waited for,
            and the exception has a note with the requests in flight (from Python 3.11 on).

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> comm = cc.world()
        >>> sums, ones = np.empty(4), np.ones(4)
        >>> with comm.requests():
        ...     request = comm.iallreduce(ones, out=sums)
        >>> float(sums[0]) == comm.size
        True
        """
        return RequestScope(self._engine)


SWEEP = 16  # requests from which on a scope drops complete ones

_lock = threading.Lock()  # held to open and to close a scope


class _Open(list["RequestScope"]):
    """The open scopes of a communicator, which get each request that is started."""

    def __call__(self, request: Any) -> None:
        for scope in list(self):
            scope.note(request)


def _is_part(request: Any) -> bool:
    """Return whether another request, or a blocking call, waits for this one."""
    return isinstance(request, _core.Request) and request.aside


class RequestScope:
    """A ``with`` statement that waits for its requests; `Communicator.requests` makes it.

    Parameters
    ----------
    engine : Engine

    Attributes
    ----------
    forgotten : list of str
        After the statement, a line for each request that the program had not waited for itself,
        with the place that started it.
    """

    forgotten: list[str]

    def __init__(self, engine: _core.Engine) -> None:
        self._engine = engine
        self._requests: list[Any] = []
        self._sweep_at = SWEEP
        self.forgotten = []

    def __enter__(self) -> RequestScope:
        self._thread = threading.get_ident()
        with _lock:
            if self._engine.started is None:
                self._engine.started = _Open()
            self._engine.started.append(self)
        return self

    def note(self, request: Any) -> None:
        """Note that a request has been started."""
        if threading.get_ident() != self._thread:
            return
        if len(self._requests) >= self._sweep_at:  # those that are complete need not stay
            self._requests = [each for each in self._requests if not each.taken]
            self._sweep_at = 2 * len(self._requests) + SWEEP
        self._requests.append(request)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _lock:
            self._engine.started.remove(self)
            self._engine.started = self._engine.started or None
        left = [each for each in self._requests if not each.taken and not _is_part(each)]
        grouped = [each for each in left if isinstance(each, GroupedRequest)]
        parts = {id(part) for each in grouped for part in in_flight(each)}
        left = [each for each in left if id(each) not in parts]
        self._requests = []
        self.forgotten = [f"{each!r}, started at {each.where()}" for each in left]
        if error is not None:
            if left and isinstance(error, Exception):
                _add_note(error, "Not waited for: " + "; ".join(self.forgotten))
            return
        for each in left:
            each.wait()
