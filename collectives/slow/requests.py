"""Requests: operations that were started, and planned calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from collectives.errors import CollectivesError, CommunicatorError, StallError
from collectives.slow.arguments import seconds
from collectives.text.origin import place

if TYPE_CHECKING:
    from collectives.slow.operations import Operation


class Request:
    """An operation that was started; `test` and `wait` move it on."""

    aside: bool = False  # whether another request, or a blocking call, waits for this one
    origin: Any = None

    def __init__(
        self,
        engine: Any,
        plan: Any,
        keep: tuple[Any, ...],
        operation: Operation | None = None,
        after: Sequence[Callable[[], Any]] = (),
    ) -> None:
        self._engine, self._operation, self._after = engine, operation, list(after)
        self._result = keep[0] if keep else None
        self._title = title(plan.source)
        self._where = "an unknown place"
        self.taken: bool = False
        self._lock = threading.Lock()

    def begun(self) -> Request:
        """Note the place in the program that has started it. Local."""
        self._where = place()
        if self._engine.started is not None:
            self._engine.started(self)
        return self

    def _finish(self) -> None:
        with self._lock:
            while self._after:
                self._result = self._after.pop(0)()
            self.taken = True

    def test(self) -> bool:
        """Advance the operations in flight; return whether this one is complete. Local."""
        operation = self._operation
        if operation is not None:
            self._engine.station.advance()
            if not operation.is_done:
                self._look(0)
            if not operation.is_done:
                time.sleep(0)  # other threads, which are ranks, have to come to their turn
                return False
            if operation.error is not None:
                raise operation.error
        self._finish()
        return True

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the operation is complete; return its result. Local."""
        limit = None if timeout is None else seconds(timeout)
        if self._operation is not None:
            self._engine.wait(self._operation, limit)
        self._finish()
        return self._result

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio  # few programs need it

        while not self.test():
            yield from asyncio.sleep(0).__await__()
        return self.wait()

    @classmethod
    def __class_getitem__(cls, result: object) -> type[Request]:
        """Return the class, for annotations that name the type of the result. Local."""
        return cls

    def state(self) -> str | None:
        """Return the operation in words, or None if it is complete. Local."""
        operation = self._operation
        if operation is None or operation.is_done:
            return None
        return f"{operation.title}: {operation.waiting()}"

    def where(self) -> str:
        """Return the place in the program that has started it. Local."""
        return self._where

    def _look(self, waited: float, timeout: float | None = None) -> None:
        operation = self._operation
        if operation is None or operation.is_done:
            return
        try:
            limit = self._engine.timeout if timeout is None else timeout
            self._engine.look(operation, waited, limit)
        except CollectivesError as error:
            operation.fail(error, "stalled in" if isinstance(error, StallError) else "failed in")

    def __repr__(self) -> str:
        return f"<Request of {self.state() or f'{self._title}: complete'}>"


class PlannedCall:
    """A collective with its arguments, made by `Communicator.plan`, to be run many times."""

    def __init__(self, engine: Any, title: str, arguments: Sequence[Any]) -> None:
        self._engine, self._title, self._arguments = engine, title, arguments
        self._request: Request | None = None

    def _run(self, timeout: float | None, blocking: bool) -> Any:
        if self._request is not None and not self._request.test():
            raise CommunicatorError(f"{self._title} is in flight; wait for it before the next run")
        kind, x, out, op, root, algorithm, bits, *scales = self._arguments
        options = algorithm, timeout, *scales, blocking, bits
        return self._engine.call(kind, x, out, op, root, *options)

    def __call__(self, timeout: float | None = None) -> Any:
        return self._run(timeout, True)

    def start(self) -> PlannedCall:
        """Start a run and return at once; see `Communicator.iallreduce`. Collective."""
        self._request = self._run(None, False)
        return self

    def _started(self) -> Request:
        if self._request is None:
            raise CommunicatorError(f"{self._title} was not started")
        return self._request

    def test(self) -> bool:
        """Advance the run and return whether it is complete. Local."""
        return self._started().test()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the run that was started, and return its result. Local."""
        return self._started().wait(timeout)

    def _look(self, waited: float, timeout: float | None = None) -> None:
        self._started()._look(waited, timeout)

    @classmethod
    def __class_getitem__(cls, result: object) -> type[PlannedCall]:
        """Return the class, for annotations that name the type of the result. Local."""
        return cls

    def __repr__(self) -> str:
        state = None if self._request is None else self._request.state()
        return f"<PlannedCall of {self._title}{'' if state is None else ': in flight'}>"


def title(source: Any) -> str:
    """Return the algorithm of a plan in words. Local."""
    found: str = source.algorithm.title(source.p, source.root)
    return found
