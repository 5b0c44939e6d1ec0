"""Stations: the mail of the ranks of one process or thread, in frames.

A frame is (context, kind, source, key, payload): the communicator, one of the words below, the rank
that has sent it, and what it is about. Frames of one rank arrive in the order in which it sent
them.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from collectives.errors import CommunicatorError

DATA, CALLED, WAITS, GAVE_UP, ENDED = "data", "called", "waits", "gave up", "ended"
DISAGREED, WAITED, LOST, FAILED = "disagreed", "waited", "lost", "failed"  # why ranks give up
LEFT, DIED = "left", "died"  # how a rank has ended


class Context(NamedTuple):
    """The ranks of a communicator, whose messages are separate from those of others."""

    id: object
    ranks: tuple[int, ...]  # in the job


class Station:
    """The mail of one rank: what has come from the others, and the way to them."""

    rank: int
    size: int
    carrier: str

    def __init__(
        self,
        rank: int,
        size: int,
        carrier: str,
        send: Callable[[int, tuple[Any, ...]], None] | None = None,
    ) -> None:
        self.rank, self.size, self.carrier = rank, size, carrier
        self.process: int = os.getpid()
        self._send = send
        self._came = threading.Condition()
        self.number: int = 0  # of the frames that have come
        self._letters: dict[Any, deque[Any]] = defaultdict(deque)
        self.calls: dict[Any, dict[int, Any]] = defaultdict(dict)
        self.waits: dict[Any, tuple[str, int]] = {}  # for messages: the call, and for whom
        self.given_up: dict[Any, tuple[int, str, str]] = {}
        self.ended: dict[int, tuple[str, int]] = {}  # how, and the process
        self.live: list[Any] = []  # operations in flight
        self.kept: dict[str, Any] = {}  # the objects of this rank, by name

    def post(self, dest: int, *frame: Any) -> None:
        """Send a frame to a rank of the job. Local."""
        if dest == self.rank:
            self.receive(frame)
        elif self._send is not None:
            self._send(dest, frame)

    def receive(self, frame: tuple[Any, ...]) -> None:
        """Take a frame that has come. Local, from any thread."""
        context, kind, source, key, payload = frame
        with self._came:
            if kind == DATA:
                self._letters[context, source, key].append(payload)
            elif kind == CALLED:
                self.calls[context, source][key] = payload
            elif kind == WAITS:
                self.waits[context, source] = key, payload
            elif kind == GAVE_UP:
                self.given_up.setdefault(context, (source, key, payload))
            else:
                self.ended.setdefault(source, (key, payload))
            self.number += 1
            self._came.notify_all()

    def take(self, context: object, source: int, key: object) -> Any:
        """Return the payload of the next frame of data, or None if none has come. Local."""
        with self._came:
            letters = self._letters.get((context, source, key))
            if not letters:
                return None
            found = letters.popleft()
            if not letters:
                del self._letters[context, source, key]
            return found

    def sender(self, context: object, key: object) -> int | None:
        """Return a rank whose frame of data has come, or None. Local."""
        with self._came:
            found = (place[1] for place in self._letters if (place[0], place[2]) == (context, key))
            return next(found, None)

    def wait(self, number: int, seconds: float) -> None:
        """Wait until more frames than `number` have come, or for some seconds. Local."""
        limit = time.monotonic() + seconds
        with self._came:
            while self.number == number and (left := limit - time.monotonic()) > 0:
                self._came.wait(left)

    def advance(self) -> None:
        """Advance all operations in flight. Local."""
        for each in list(self.live):
            each.advance()

    def give_up(self, text: str) -> None:
        """Make all calls of the other ranks raise an error with a text. Local."""
        for rank in range(self.size):
            if rank != self.rank:
                self.post(rank, None, GAVE_UP, self.rank, FAILED, text)

    def leave(self, how: str) -> None:
        """Tell the other ranks that this one ends. Local."""
        for rank in range(self.size):
            if rank != self.rank:
                self.post(rank, None, ENDED, self.rank, how, self.process)


_of_thread = threading.local()
_of_process: list[Station] = []
threads: set[int] = set()  # the ranks that are threads, by their numbers


def enter(station: Station) -> None:
    """Make this thread a rank. Local."""
    _of_thread.station = station
    threads.add(threading.get_ident())


def leave() -> None:
    """Make this thread a rank no more. Local."""
    threads.discard(threading.get_ident())
    del _of_thread.station


def is_rank() -> bool:
    """Return whether this thread or process is one of several ranks. Local."""
    return hasattr(_of_thread, "station") or bool(_of_process and _of_process[0].size > 1)


def here(join: Callable[[], Station | None] = lambda: None) -> Station:
    """Return the station of this thread, or of this process, which it may `join` first. Local."""
    found: Station | None = getattr(_of_thread, "station", None)
    if found is not None:
        return found
    if threads:
        raise CommunicatorError(
            "this thread is not a rank, and cannot make the default communicator: without the "
            "core, the ranks of spawn are threads. Pass it a communicator of its rank"
        )
    if not _of_process:
        _of_process.append(join() or Station(0, 1, "alone"))
    return _of_process[0]


def number() -> int | None:
    """Return the rank of this thread, or None if it is none. Local."""
    found: Station | None = getattr(_of_thread, "station", None)
    return None if found is None else found.rank
