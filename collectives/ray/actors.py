"""The actors: a rank, and the store that ranks find each other by."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import Mapping
from typing import Any

from collectives.engines import rank as ranks
from collectives.errors import CollectivesError
from collectives.process import host

# Ray shows each actor its own GPUs by this variable.
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Meeting:
    """Keys and values; who asks for a key waits until there is a value."""

    def __init__(self) -> None:
        self._values: dict[str, asyncio.Future[bytes]] = {}

    def _value(self, key: str) -> asyncio.Future[bytes]:
        return self._values.setdefault(key, asyncio.get_running_loop().create_future())

    async def set(self, key: str, value: bytes) -> None:
        """Set the `value` of `key`. Local."""
        self._value(key).set_result(value)

    async def get(self, key: str) -> bytes:
        """Return the value of `key` as soon as a rank has set it. Local."""
        return await asyncio.shield(self._value(key))


class Store:
    """The keys and values of a `Meeting`, as a rank asks for them."""

    def __init__(self, meeting: Any, timeout: float) -> None:
        self._meeting, self._timeout = meeting, timeout

    def set(self, key: str, value: Any) -> None:
        """Set the `value` of `key`. Local."""
        import ray

        ray.get(self._meeting.set.remote(key, value), timeout=self._timeout)

    def get(self, key: str) -> bytes:
        """Return the value of `key` as soon as a rank has set it. Local."""
        import ray

        value: bytes = ray.get(self._meeting.get.remote(key), timeout=self._timeout)
        return value


class Rank:
    """A process that is a rank: of one job until the next one, or during a call."""

    def __init__(self) -> None:
        self._job = contextlib.ExitStack()
        self._failed = False
        self._executable: Any = None

    def place(self) -> tuple[str, str]:
        """Return the name of this host, and the GPUs that Ray gives this process. Local."""
        import ray

        return host.name(), os.environ.get(VISIBLE, "") if ray.get_gpu_ids() else ""

    def serve(
        self, environ: Mapping[str, str], meeting: ranks.Meeting, task: bytes
    ) -> ranks.Outcome:
        """Be a rank of a new job during one call. Collective."""
        os.environ.update(environ)
        return ranks.serve(meeting, task)

    def join(self, environ: Mapping[str, str], meeting: ranks.Meeting) -> ranks.Outcome:
        """Be a rank of a new job from now on, and of no other. Collective."""
        os.environ.update(environ)
        has_failed, self._failed = self._failed, False
        try:
            try:
                self._job.close()
            except CollectivesError:  # operations in flight
                if not has_failed:
                    raise
            gc.collect()  # as after a failed call of `serve`
            self._job.enter_context(ranks.job(meeting))
            return ranks.Outcome.of(None)
        except Exception as error:
            return ranks.failed(error)

    def build(self, task: bytes) -> ranks.Outcome:
        """Keep what a task returns as the executable. Collective."""
        try:
            self._executable = _value(self, task)
            return ranks.Outcome.of(None)
        except Exception as error:
            return ranks.failed(error)

    def call(self, task: bytes, *options: bool) -> ranks.Outcome:
        """Return the outcome of a task. Collective, or local if it runs on this rank alone."""
        try:
            return ranks.Outcome.of(_value(self, task, *options))
        except Exception as error:
            return ranks.failed(error)

    def value(self, task: bytes) -> Any:
        """Return the result of a task. Collective."""
        return _value(self, task)

    def has_failed(self) -> ranks.Outcome:
        """Return whether a call has failed in this job. Local."""
        return ranks.Outcome.of(self._failed)


# No method, as Ray puts frames of its own between those.
def _value(rank: Rank, task: bytes, on_executable: bool = False, alone: bool = False) -> Any:
    """Return the result of a task, which gets the executable or not."""
    try:
        return ranks.called(task, *([rank._executable] if on_executable else []))
    except BaseException as error:
        if not alone:
            rank._failed = True
            ranks.give_up(error)
        raise
