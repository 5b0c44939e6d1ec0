"""A job that is started again when it fails."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import IO

from collectives.process import orphan

VARIABLE = "COLLECTIVES_RESTART"  # how often the job was started before; ranks see it

PASSED_ON = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

# What Open MPI 5 says when a host is lost, though it ends with status 0 then.
LOST = re.compile(
    rb"^-{40,}\r?\n(PRTE has lost communication with a|A daemon failed to report back after)",
    re.MULTILINE,
)
LONGEST = 200  # bytes of it, at most
READING = 1.0  # seconds of silence after which nothing more is awaited of a launcher that has ended

# Exit statuses of jobs that somebody has ended, as shells and launchers give them.
ENDED = {128 + number for number in PASSED_ON}


def call(start: Callable[[], int], restarts: int) -> int:
    """Start a job, again if it fails; return its last exit status. Local.

    A job that was ended by SIGINT, SIGTERM or SIGHUP is not started again.
    """
    for attempt in range(restarts + 1):
        os.environ[VARIABLE] = str(attempt)
        status = start()
        if status == 0 or status in ENDED or attempt == restarts:
            break
        text = f"the job has ended with exit status {status}: restart {attempt + 1} of {restarts}"
        print(f"collectives: {text}", file=sys.stderr, flush=True)
    return status


def child(command: Sequence[str], lost: re.Pattern[bytes] | None = None) -> int:
    """Run a launcher; return its exit status, or 128 + the number of the signal that has ended it,
    or that it was sent. Local.

    The signals that end this process are passed on, and the launcher ends with it.
    """
    # In a group of its own: Ctrl-C reaches it by this process, and once.
    launcher = subprocess.Popen(
        command,
        start_new_session=True,
        stderr=subprocess.PIPE if lost else None,
        preexec_fn=functools.partial(orphan.follow_parent, signal.SIGTERM),
    )

    sent: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        sent.append(number)
        launcher.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        reader = None if lost is None else _Reader(launcher.stderr, lost)
        status = launcher.wait()
        if reader is not None and reader.found():
            status = status or 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if status and sent:  # Open MPI's ends with status 1 then
        return 128 + sent[-1]
    return 128 - status if status < 0 else status


class _Reader(threading.Thread):
    """Copies what a launcher writes to stderr, and looks for a pattern in it."""

    def __init__(self, stream: IO[bytes] | None, pattern: re.Pattern[bytes]) -> None:
        super().__init__(daemon=True)
        assert stream is not None
        self._stream, self._pattern = stream, pattern
        self._found = self._writes = False
        self._moved = time.monotonic()
        self.start()

    def run(self) -> None:
        last = b""  # what is found may come in two pieces
        while piece := os.read(self._stream.fileno(), 1 << 16):
            self._writes = True
            last = last[-LONGEST:] + piece
            self._found = self._found or self._pattern.search(last) is not None
            _write(piece)
            self._moved = time.monotonic()
            self._writes = False

    def found(self) -> bool:
        """Return whether it was found. Others, such as ssh, may keep the stream open."""
        while self.is_alive() and (self._writes or time.monotonic() - self._moved < READING):
            self.join(0.02)
        return self._found


def _write(piece: bytes) -> None:
    """Write bytes to stderr, however long that takes, unless nobody reads it."""
    with contextlib.suppress(OSError):
        while piece:
            try:
                piece = piece[os.write(2, piece) :]
            except BlockingIOError:
                select.select([], [2], [])
