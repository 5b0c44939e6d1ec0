"""The result of an asynchronous call: a `Work` of torch.

Torch has two ways to wait: `Work.wait`, and the future of a work, which DDP waits for in C++. An
exception that is set on a `torch.futures.Future` is stored like a result: it is never raised, and
DDP uses it as tensors and crashes. But an exception in a function that was attached by ``then`` is
an error in C++ too. So the future of a work is always the future of such a function.

Functions that a program attaches to a future run in the thread that completes it. If it is already
complete, they run at once in the thread that attaches them. Ranks may differ in this. A
communication hook of DDP in Python may start collectives in such functions (PowerSGD does), and
their order must be the same on all ranks. So `get_future` waits for the call in a hook, and the
functions run in the thread of the backward pass, as with NCCL. DDP itself requests futures in C++,
and does not wait.

A `CallbackThread` completes the futures of asynchronous calls, in the order of the calls. The
functions that a program has attached to a future (``then``) run there, one after the other, and may
wait.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from math import isfinite
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import distributed as dist
from torch._C import _autograd

from collectives import background
from collectives.communicator import Communicator
from collectives.errors import StallError
from collectives.process.waiting import MESSAGES, Wait, until
from collectives.torch.distributed.tensors import writable

MOMENT = 2e-3  # seconds in which a short message is received
LEAST = 1e-6  # seconds, because a timeout of 0 is the default

Function = TypeVar("Function", bound=Callable[..., Any])


def skip_dynamo(function: Function) -> Function:
    """Keep Dynamo from tracing a function and its callees.
    Local.

    Dynamo treats a process group as an object without attributes. `torch.compiler.disable` would
    have the same effect. But its wrapper takes half as long as a small allreduce, even in programs
    that compile nothing, and it imports Dynamo, which takes seconds.
    """
    try:
        frames: Any = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    except AttributeError:  # another version of torch
        disabled: Function = torch.compiler.disable(function)
        return disabled
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


_here = threading.local()  # has `callbacks` in a callback thread


class CallbackThread:
    """A thread that runs functions one after the other. It starts with the first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, function: Callable[[], object]) -> None:
        """Run a function after the earlier ones. Local."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                self._thread.start()
        self._queue.put(function)

    def _work(self) -> None:
        _here.callbacks = self
        while True:
            function = self._queue.get()
            if function is None:
                return
            function()
            del function  # it has tensors

    def stop(self, seconds: float) -> None:
        """End the thread after its remaining functions; wait for that, but at most so many seconds.
        Local.
        """
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(seconds)


class DoneWork(dist._Work):
    """A call that is complete, and the base of all others."""

    def __init__(self, tensors: Sequence[Any] = (), source: int = -1) -> None:
        super().__init__()
        self._tensors, self._source = list(tensors), source

    @skip_dynamo
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is complete; raise its error. Local."""
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the call is complete, or has failed. Local."""
        return True

    def is_success(self) -> bool:
        """Return whether the call is complete, without an error. Local."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error of the call, or None if it has none so far. Local."""
        return None

    def result(self) -> list[Any]:
        """Return the tensors, when the call is complete. Local."""
        self.wait()
        return self._tensors

    @skip_dynamo
    def get_future(self) -> Any:
        """Return a future, which is complete when the call is, and raises its error. Local."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._tensors)
        return future

    def source_rank(self) -> int:
        """Return the rank that has sent the tensors, or -1. Local."""
        return self._source

    _source_rank = source_rank


DONE = DoneWork()  # of synchronous calls, of which torch only calls wait()


class PendingWork(DoneWork):
    """A call that may be in flight."""

    def __init__(
        self,
        requests: Sequence[Any],
        tensors: Sequence[Any],
        callbacks: CallbackThread | None,
        after: Callable[[], object] | None = None,
        source: int = -1,
    ) -> None:
        super().__init__(tensors, source)
        self._requests, self._after, self._callbacks = requests, after, callbacks
        self._lock = threading.Lock()  # of the result, for the program and the callbacks
        self._making = threading.Lock()  # of the future
        self._is_done = False
        self._error: BaseException | None = None
        self._child: Any = None

    @skip_dynamo
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Complete the call in the calling thread, without waiting for another to wake up."""
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

    def is_completed(self) -> bool:
        try:
            if not all(request.test() for request in self._requests):
                return False
            self._finish()
        except Exception:
            pass
        return True

    def exception(self) -> BaseException | None:
        if not self.is_completed():
            return None
        try:
            self.wait()
        except Exception as error:
            return error
        return None

    @skip_dynamo
    def get_future(self) -> Any:
        """Return the future; wait for the call first if functions that are attached to the future
        may start collectives (see above).
        """
        waits = self._callbacks is not None and _must_wait(sys._getframe().f_back)
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
                elif self._callbacks is not None:
                    self._callbacks.run(completion.run)
                else:
                    threading.Thread(target=completion.run, daemon=True).start()
            return self._child

    def finish_in_thread(self) -> None:
        """Have the callback thread copy the results when the call is complete. Local."""
        parent: torch.futures.Future[None] = torch.futures.Future()
        parent.then(self._take)
        assert self._callbacks is not None
        self._callbacks.run(_Completion(self._requests, parent).run)

    @skip_dynamo
    def _take(self, parent: Any) -> list[Any]:
        """Return the value of the work's future; raise the error of the work in C++."""
        self.wait()
        return self._tensors


def _must_wait(caller: FrameType | None) -> bool:
    """Return whether attached functions may start collectives: in a hook of DDP, or in a callback.
    DDP itself calls from C++, without a Python frame above that of the engine, and without any in
    the thread of a device.
    """
    if hasattr(_here, "callbacks"):
        return True
    if caller is None:
        return False
    is_in_backward: bool = torch._C._current_graph_task_id() != -1
    return is_in_backward and caller.f_globals.get("__name__") != "torch.autograd.graph"


def united(works: Sequence[Any], tensors: Sequence[Any], callbacks: CallbackThread) -> Any:
    """Return one work for several of the same group. Local."""
    pending = [each for each in works if isinstance(each, PendingWork)]
    if not pending:
        return DONE
    requests = [request for each in pending for request in each._requests]
    return PendingWork(requests, tensors, callbacks, partial(_finish_all, pending))


def _finish_all(works: Sequence[PendingWork]) -> None:
    for each in works:
        each._finish()


class _Completion:
    """A future, and the requests that complete it."""

    def __init__(self, requests: Sequence[Any], future: torch.futures.Future[None]) -> None:
        self.requests, self.future = requests, future

    def run(self) -> None:
        for request in self.requests:
            ended = threading.Event()
            background.when_complete(request, ended.set)
            ended.wait()
        self.future.set_result(None)  # attached functions wait for the requests


class AnySourceWork(DoneWork):
    """A message that any rank may send."""

    _starting = threading.Lock()  # from the probe of a message to the start of its receipt

    def __init__(self, comm: Communicator, tensor: Any, tag: int) -> None:
        super().__init__([tensor])
        self._comm, self._tag = comm, tag
        self._receipt: PendingWork | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None  # see `is_completed`

    def _has_come(self) -> bool:
        """Start to receive a message if one has come; return whether one has. Local."""
        if not self._starting.acquire(blocking=False):
            return False
        try:
            if self._receipt is None and self._error is None:
                source = self._comm._sender(self._tag)
                if source is None:
                    return False
                x, after = writable(self._tensors[0])
                request = self._comm.irecv(x, source, tag=self._tag)
                self._receipt = PendingWork((request,), self._tensors, None, after, source)
        except Exception as error:
            self._error = error
        finally:
            self._starting.release()
        return True

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit = timeout.total_seconds() if timeout else self._comm.timeout
        whole = Wait(timeout=limit)

        def look(waited: float) -> None:
            self._comm._engine.check_host()

        if not until(self._has_come, Wait(MESSAGES, look, limit)):
            raise StallError(
                f"recv from any rank timed out: no message with the tag {self._tag} has come in "
                f"{limit:g} s"
            )
        if self._receipt is None:
            assert self._error is not None
            raise self._error
        left = whole.left()
        return self._receipt.wait(timedelta(seconds=max(left, LEAST)) if isfinite(left) else None)

    def is_completed(self) -> bool:
        if self._receipt is None and self._error is None:
            # MPI may receive all of a message in the call that starts it: in another thread.
            if self._thread is None or not self._thread.is_alive():
                if self._comm._sender(self._tag) is None:
                    return False
                self._thread = threading.Thread(target=self._has_come, daemon=True)
                self._thread.start()
            self._thread.join(MOMENT)
        if self._receipt is None:
            return self._error is not None
        return self._receipt.is_completed()

    def exception(self) -> BaseException | None:
        return self._error if self._receipt is None else self._receipt.exception()

    def source_rank(self) -> int:
        return -1 if self._receipt is None else self._receipt.source_rank()

    _source_rank = source_rank

    def get_future(self) -> Any:
        parent: torch.futures.Future[None] = torch.futures.Future()
        child: Any = parent.then(lambda _: self.result())
        threading.Thread(target=parent.set_result, args=(None,), daemon=True).start()
        return child


TITLES = {
    "allreduce": "all_reduce",
    "allreduce_many": "all_reduce",
    "reduce_scatterv": "reduce_scatter",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "alltoallv": "all_to_all",
}


class Event:
    """An event of the profiler: a call, from now until its end."""

    def __init__(self, name: str, arrays: Sequence[Any]) -> None:
        inputs = arrays[0] if arrays else ()
        inputs = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
        title = f"collectives:{TITLES.get(name, name)}"
        self._lock = threading.Lock()
        self._future: torch.futures.Future[None] = torch.futures.Future()
        event = _autograd._record_function_with_args_enter(title, *tensors)
        # The end may be in a thread that the profiler does not know.
        torch.ops.profiler._call_end_callbacks_on_jit_fut(event, self._future)

    def end(self) -> None:
        """End the event, once. Local."""
        with self._lock:
            if not self._future.done():
                self._future.set_result(None)
