"""What an asynchronous call returns: a `Work` of torch.

Torch knows two ways to wait: `Work.wait`, and the future of a work, which DDP waits for in C++.
An exception that is set on a `torch.futures.Future` is stored as if it were a result: nobody raises
it, and DDP takes it for tensors and crashes. What a function raises that was attached by ``then``
is an error in C++ too. So the future of a work is always that of such a function.

Functions that a program attaches to a future run in the thread that completes it, or at once, in
the thread that attaches them, if it is complete already. Which of the two differs between ranks. A
communication hook of DDP that is written in Python may start collectives in such functions
(PowerSGD does), and their order must not depend on it. So there `get_future` waits for the call,
and all that follows runs in the thread of the backward pass, as with NCCL. DDP itself, which asks
for futures in C++, does not have to wait.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import distributed as dist

from collectives import background
from collectives.torch.distributed.lanes import Lane, is_in_lane
from collectives.torch.distributed.unseen import unseen


def _must_wait(caller: FrameType) -> bool:
    """Return whether functions may be attached to a future that start collectives: by a hook of
    DDP, or in a lane. DDP itself asks in C++, which leaves no frame above that of the engine.
    """
    if is_in_lane():
        return True
    is_in_backward: bool = torch._C._current_graph_task_id() != -1
    return is_in_backward and caller.f_globals.get("__name__") != "torch.autograd.graph"


def _future(result: Any) -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return future


class DoneWork(dist._Work):
    """A call that is complete."""

    def __init__(self, tensors: Sequence[Any] = (), source: int = -1) -> None:
        super().__init__()
        self._tensors, self._source = list(tensors), source

    @unseen
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once. Local."""
        return True

    def synchronize(self) -> None:
        """Return at once. Local."""

    def is_completed(self) -> bool:
        """Return True. Local."""
        return True

    def is_success(self) -> bool:
        """Return True. Local."""
        return True

    def exception(self) -> None:
        """Return None. Local."""

    def result(self) -> list[Any]:
        """Return the tensors. Local."""
        return self._tensors

    @unseen
    def get_future(self) -> Any:
        """Return a future that is complete. Local."""
        return _future(self._tensors)

    def source_rank(self) -> int:
        """Return the rank that has sent the tensors. Local."""
        return self._source

    _source_rank = source_rank


DONE = DoneWork()  # of synchronous calls, for which torch wants no more than wait()


class PendingWork(dist._Work):
    """A call that may be in flight."""

    def __init__(
        self,
        requests: Sequence[Any],
        tensors: Sequence[Any],
        lane: Lane | None,
        after: Callable[[], object] | None = None,
        source: int = -1,
    ) -> None:
        super().__init__()
        self._requests, self._tensors, self._after = requests, list(tensors), after
        self._lane, self._source = lane, source
        self._lock = threading.Lock()  # of the result: a thread of the program and a lane want it
        self._making = threading.Lock()  # of the future
        self._is_done = False
        self._error: BaseException | None = None
        self._child: Any = None

    @unseen
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is complete; raise its error. Local.

        The calling thread does the work itself, so that it need not wait for another to wake up.
        """
        seconds = timeout.total_seconds() if timeout else None
        for request in self._requests:
            request.wait(seconds)
        self._finish()
        return True

    def _finish(self) -> None:
        """Copy the results to their places, once. Local."""
        if self._is_done and self._error is None:
            return
        with self._lock:
            if not self._is_done:
                try:
                    if self._after is not None:
                        self._after()
                except BaseException as error:
                    self._error = error
                self._is_done = True
                self._after = None
        if self._error is not None:
            raise self._error

    def synchronize(self) -> None:
        """Wait until the call is complete; raise its error. Local."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the call is complete, or has failed. Local."""
        try:
            if not all(request.test() for request in self._requests):
                return False
            self._finish()
        except Exception:
            pass
        return True

    def is_success(self) -> bool:
        """Return whether the call is complete, without an error. Local."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error of the call, or None if it has none so far. Local."""
        if not self.is_completed():
            return None
        try:
            self.wait()
        except Exception as error:
            return error
        return None

    def result(self) -> list[Any]:
        """Return the tensors, when the call is complete. Local."""
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        """Return the rank that sends the tensors. Local."""
        return self._source

    _source_rank = source_rank

    @unseen
    def get_future(self) -> Any:
        """Return a future, which is complete when the call is, and raises its error. Local.

        It waits for the call where the functions that are attached to the future may start
        collectives (see above).
        """
        waits = self._lane is not None and _must_wait(sys._getframe(1))
        if waits:
            with contextlib.suppress(Exception):  # the future raises it
                self.wait()
        with self._making:
            if self._child is None:
                parent: torch.futures.Future[None] = torch.futures.Future()
                self._child = parent.then(self._take)
                completion = _Completion(self._requests, parent)
                if waits:
                    parent.set_result(None)
                elif self._lane is not None:
                    self._lane.run(completion.run)
                else:
                    threading.Thread(target=completion.run, daemon=True).start()
            return self._child

    def finish_in_lane(self) -> None:
        """Have the lane copy the results when the call is complete, if nobody has waited. Local."""
        parent: torch.futures.Future[None] = torch.futures.Future()
        parent.then(self._take)
        assert self._lane is not None
        self._lane.run(_Completion(self._requests, parent).run)

    @unseen
    def _take(self, parent: Any) -> list[Any]:
        """Return what the future of the work has; raise the error of the work in C++."""
        self.wait()
        return self._tensors


def united(works: Sequence[Any], tensors: Sequence[Any], lane: Lane) -> Any:
    """Return one work for several that are of the same group. Local."""
    pending = [each for each in works if isinstance(each, PendingWork)]
    if not pending:
        return DONE
    requests = [request for each in pending for request in each._requests]
    return PendingWork(requests, tensors, lane, partial(_finish_all, pending))


def _finish_all(works: Sequence[PendingWork]) -> None:
    for each in works:
        each._finish()


class _Completion:
    """What completes a future when some requests are complete."""

    def __init__(self, requests: Sequence[Any], future: torch.futures.Future[None]) -> None:
        self.requests, self.future = requests, future

    def run(self) -> None:
        for request in self.requests:
            ended = threading.Event()
            background.when_complete(request, ended.set)
            ended.wait()
        self.future.set_result(None)  # what was attached to it waits for the requests again
