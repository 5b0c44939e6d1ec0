"""`spawn` with ranks that are threads of this process."""

from __future__ import annotations

import copy
import io
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from collectives.algorithms.registry import Sharing
from collectives.errors import ArgumentError, CommunicatorError
from collectives.launch import spawning
from collectives.launch.spawning import Failure
from collectives.process.advice import joined
from collectives.slow import stations
from collectives.slow.stations import Station
from collectives.text.words import error_text

FAREWELL = 0.5  # seconds in which the other ranks may fail after one has failed

joined.append(stations.is_rank)
Sharing.is_rank = staticmethod(lambda: stations.number() is not None)


def spawn(
    function: Callable[..., Any], n: int, *args: Any, timeout: float | None = None, **keywords: Any
) -> list[Any]:
    """Call a function on `n` ranks, which are threads, and return their results in order; see
    `launch.spawning.spawn`. Each rank has a copy of the arguments. Local.
    """
    n = spawning.checked(function, n, timeout)
    if stations.is_rank():
        raise CommunicatorError(
            "spawn was called on a rank, and each of them would start more. Call spawn in a "
            "program that is started without a launcher"
        )
    try:
        arguments = [copy.deepcopy((args, keywords)) for _ in range(n)]
    except Exception as error:
        raise ArgumentError(f"the arguments cannot be copied: {error_text(error)}") from error
    every: list[Station] = []
    for rank in range(n):
        every.append(Station(rank, n, "threads", lambda dest, frame: every[dest].receive(frame)))
    ranks = [_Rank(each, function, *given) for each, given in zip(every, arguments, strict=True)]
    with _prefixed():
        for each in ranks:
            each.start()
        _join(ranks, timeout)
    failures = [each.failure for each in ranks if each.failure is not None]
    if failures:
        raise spawning.cause(sorted(failures, key=lambda each: ranks[each.rank].ended), n)
    return [each.result for each in ranks]


def _join(ranks: list[_Rank], timeout: float | None) -> None:
    """Wait until all ranks have returned, or for a moment after one has failed."""
    began = time.monotonic()
    n, limit = len(ranks), None
    while running := [each.station.rank for each in ranks if each.is_alive()]:
        ranks[running[0]].join(0.01)
        now = time.monotonic()
        if limit is None and any(each.failure for each in ranks):
            limit = now + FAREWELL
        if limit is not None and now > limit:
            return
        if limit is None and timeout is not None and now - began >= timeout:
            for each in ranks:
                each.station.give_up(f"the timeout of {timeout:g} s is over")
            returned = {each.station.rank for each in ranks if not each.is_alive()}
            raise spawning.late(running, returned, n, timeout)


class _Rank(threading.Thread):
    """A rank: its function, and the result or the failure."""

    def __init__(
        self, station: Station, function: Callable[..., Any], args: Any, keywords: Any
    ) -> None:
        super().__init__(name=f"rank-{station.rank}", daemon=True)
        self.station, self.result = station, None
        self.failure: Failure | None = None
        self.ended = 0.0
        self._task = function, args, keywords

    def run(self) -> None:
        function, args, keywords = self._task
        stations.enter(self.station)
        rank, n = self.station.rank, self.station.size
        try:
            self.result = function(*args, **keywords)
            self.station.leave(stations.LEFT)
        except SystemExit as error:
            status = "" if error.code is None else repr(error.code)
            how = f"called sys.exit({status})"
            self._fail(error, spawning.lost(rank, n, how, "before it returned"))
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
                trace = trace.tb_next
            text = "".join(traceback.format_exception(type(error), error, trace))
            self._fail(error, Failure(rank, error, text, text.strip().rpartition("\n")[2]))
        finally:
            stations.leave()

    def _fail(self, error: BaseException, failure: Failure) -> None:
        self.ended = time.monotonic()
        self.failure = failure
        self.station.give_up(error_text(error))


class _Stream(io.TextIOBase):
    """A stream of the program, in which the lines of ranks begin with their numbers."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._held: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        rank = stations.number()
        with self._lock:
            if rank is None:
                self._stream.write(text)
                return len(text)
            *lines, self._held[rank] = (self._held.get(rank, "") + text).split("\n")
            for line in lines:
                self._stream.write(f"[{rank}] {line}\n")
            if lines:
                self._stream.flush()
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def end(self) -> None:
        """Write the lines that have no end. Local."""
        for rank, text in sorted(self._held.items()):
            if text:
                self._stream.write(f"[{rank}] {text}\n")
        self._stream.flush()


@contextmanager
def _prefixed() -> Iterator[None]:
    before = sys.stdout, sys.stderr
    made = [None if each is None else _Stream(each) for each in before]
    sys.stdout, sys.stderr = made
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for each in made:
            if each is not None:
                each.end()
