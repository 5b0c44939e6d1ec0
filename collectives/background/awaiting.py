"""Awaiting: a coroutine of asyncio or trio waits for a request while others run."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from collectives.background.engine import when_complete
from collectives.background.handle import Handle
from collectives.errors import CommunicatorError

Begin: TypeAlias = Callable[[Callable[[], None]], object]  # gets the function that wakes


def awaited(request: Any) -> Generator[Any, None, Any]:
    """Wait for a request or a handle in a coroutine; return its result. Local."""
    park = _parking()
    if isinstance(request, Handle):
        if not request.done():
            yield from park(lambda wake: request.add_done_callback(lambda handle: wake()))
    elif not request.test():
        yield from park(lambda wake: when_complete(request, wake))
    return request.wait()


def _parking() -> Callable[[Begin], Generator[Any, None, None]]:
    """Return the function that suspends coroutines of the running event loop. Local."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        return _park_in_trio
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise CommunicatorError(
            "a request is awaited where neither asyncio nor trio runs: call its wait(), or run the "
            "coroutine by asyncio.run or trio.run"
        ) from None
    return _park_in_asyncio


def _park_in_asyncio(begin: Begin) -> Generator[Any, None, None]:
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def finish() -> None:
        if not future.done():  # it may be cancelled
            future.set_result(None)

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish)

    begin(wake)
    yield from future


def _park_in_trio(begin: Begin) -> Generator[Any, None, None]:
    import trio

    task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
    is_parked = True

    def resume() -> None:
        nonlocal is_parked
        if is_parked:
            is_parked = False
            trio.lowlevel.reschedule(task)

    def wake() -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(resume)

    def abort(raise_cancel: object) -> Any:
        nonlocal is_parked
        is_parked = False
        return trio.lowlevel.Abort.SUCCEEDED

    begin(wake)
    yield from trio.lowlevel.wait_task_rescheduled(abort).__await__()
