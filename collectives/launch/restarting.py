"""A job that is started again when it fails."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import IO

from collectives.process import orphan

__all__ = ["LOST", "VARIABLE", "call", "child"]

VARIABLE = "COLLECTIVES_RESTART"  # how often the job was started before; ranks see it

PASSED_ON = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

# What Open MPI 5 says when a host is lost, though it ends with status 0 then.
LOST = "PRTE has lost communication with a remote daemon", "A daemon failed to report back after"

LONGEST = max(map(len, LOST))
READING = 1.0  # seconds for the last lines of a launcher that has ended

# Exit statuses of jobs that somebody has ended, as shells and launchers give them.
ENDED = {128 + number for number in PASSED_ON}


def call(start: Callable[[], int], restarts: int) -> int:
    """Start a job, again if it fails; return its last exit status. Local.

    A job that was ended by SIGINT, SIGTERM or SIGHUP is not started again.

    Parameters
    ----------
    start : callable
        It runs the job and returns the exit status.
    restarts : int
        How often it is started again at most.
    """
    for attempt in range(restarts + 1):
        os.environ[VARIABLE] = str(attempt)
        status = start()
        if status == 0 or status in ENDED or attempt == restarts:
            break
        text = f"the job has ended with exit status {status}: restart {attempt + 1} of {restarts}"
        print(f"collectives: {text}", file=sys.stderr, flush=True)
    return status


def child(command: Sequence[str], lost: Sequence[str] = ()) -> int:
    """Run a launcher; return its exit status, or 128 + the number of the signal that has ended it.
    Local.

    The signals that end this process are passed on, and the launcher ends with it.

    Parameters
    ----------
    command : sequence of str
    lost : sequence of str
        If one of them is in a line that it writes to stderr, the status is not 0.
    """
    # In a group of its own: Ctrl-C reaches it by this process, and once.
    launcher = subprocess.Popen(
        command,
        start_new_session=True,
        stderr=subprocess.PIPE if lost else None,
        preexec_fn=functools.partial(orphan.follow_parent, signal.SIGTERM),
    )

    def pass_on(number: int, frame: FrameType | None) -> None:
        launcher.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        reader = _Reader(launcher.stderr, lost) if lost else None
        status = launcher.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if reader is not None and reader.found():
        status = status or 1
    return 128 - status if status < 0 else status


class _Reader(threading.Thread):
    """Copies what a launcher writes to stderr, and looks for texts in it."""

    def __init__(self, stream: IO[bytes] | None, texts: Sequence[str]) -> None:
        super().__init__(daemon=True)
        assert stream is not None
        self._stream, self._texts = stream, [text.encode() for text in texts]
        self._found = False
        self.start()

    def run(self) -> None:
        last = b""  # a text may come in two pieces
        while piece := os.read(self._stream.fileno(), 1 << 16):
            with contextlib.suppress(OSError):  # nobody reads it
                os.write(2, piece)
            last = last[-LONGEST:] + piece
            self._found = self._found or any(text in last for text in self._texts)

    def found(self) -> bool:
        """Return whether one was in it. Others, such as ssh, may keep the stream open."""
        self.join(READING)
        return self._found
