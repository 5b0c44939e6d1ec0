"""A launcher as a child process: called to its end, captured, or started again when its job fails.

It runs in a session of its own, so that it gets Ctrl-C only once, from this process: after a second
one, launchers exit without ending their ranks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import IO, Any, NoReturn

from collectives.process import processes

VARIABLE = "COLLECTIVES_RESTART"  # the number of earlier starts of the job, for its ranks

GRACE = 5.0  # seconds that a launcher has to end its ranks

PASSED_ON = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

# Exit statuses of jobs that a user has ended, by the convention of shells and launchers.
ENDED = {128 + number for number in PASSED_ON}

# MPICH 5's hydra aborts with this message in some launches on a loaded machine. A user's program is
# not started again after that, because it may have run already.
HYDRA = re.compile(rb"assert \(!closed\) failed")
EXPLAINED = b"collectives: mpiexec itself failed, as MPICH's does under load; try again\n"

# Open MPI 5 prints this when a host is lost, though it ends with status 0 then.
LOST = re.compile(
    rb"^-{40,}\r?\n(PRTE has lost communication with a|A daemon failed to report back after)",
    re.MULTILINE,
)
LONGEST = 200  # bytes of the longest text to find
READING = 1.0  # seconds of silence after which the reading of an ended launcher stops


def call(command: Sequence[str]) -> int:
    """Run a launcher to its end; return its exit status. Local."""
    launcher = _started(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    reader = _Reader(launcher.stderr, HYDRA, EXPLAINED)
    with handling((signal.SIGTERM, signal.SIGHUP), _interrupt), _ending(launcher):
        status = launcher.wait()
    reader.found()
    return 128 - status if status < 0 else status


def capture(command: Sequence[str], timeout: float) -> tuple[int, str]:
    """Run the `command` of a launcher, until `timeout`; return exit status and output. Local.

    The status is 124 after the timeout.
    """
    with tempfile.TemporaryFile() as file:
        launcher = _started(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        with _ending(launcher):
            try:
                status = launcher.wait(timeout)
            except subprocess.TimeoutExpired:
                _end(launcher, signal.SIGTERM)
                status = 124
        file.seek(0)
        return status, file.read().decode(errors="replace")


def restarted(start: Callable[[], int], restarts: int) -> int:
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


def stand_in(command: Sequence[str], lost: re.Pattern[bytes] | None = None) -> int:
    """Run a launcher as if it were this process; return its exit status, or 128 plus the number of
    the signal that has ended it, or that was sent to it. Local.

    The signals that end this process are passed on.
    """
    launcher = _started(command, stderr=subprocess.PIPE if lost else None)
    sent: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        sent.append(number)
        launcher.send_signal(number)

    with handling(PASSED_ON, pass_on):
        reader = None if lost is None else _Reader(launcher.stderr, lost)
        status = launcher.wait()
        if reader is not None and reader.found():
            status = status or 1
    if status and sent:  # Open MPI's ends with status 1 then
        return 128 + sent[-1]
    return 128 - status if status < 0 else status


def _started(command: Sequence[str], **streams: Any) -> subprocess.Popen[bytes]:
    """Start a launcher, which ends with this process."""
    follow = functools.partial(processes.follow_parent, signal.SIGTERM)
    return subprocess.Popen(command, start_new_session=True, preexec_fn=follow, **streams)


@contextlib.contextmanager
def handling(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Handle signals of these `numbers` in the ``with`` statement. Local, in the main thread."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _ending(launcher: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a launcher if an exception ends the wait for it."""
    try:
        yield
    except BaseException:
        _end(launcher, signal.SIGINT)
        raise


def _end(launcher: subprocess.Popen[bytes], first: signal.Signals) -> None:
    """End a launcher, first with a signal that it can handle, then by force."""
    for number in (first, signal.SIGTERM, signal.SIGKILL):
        try:
            launcher.send_signal(number)
            launcher.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue
        return


class _Reader(threading.Thread):
    """A thread that copies the stderr of a launcher, and explains a pattern in it."""

    def __init__(
        self, stream: IO[bytes] | None, pattern: re.Pattern[bytes], explained: bytes = b""
    ) -> None:
        super().__init__(daemon=True)
        assert stream is not None
        self._stream, self._pattern, self._explained = stream, pattern, explained
        self._found = self._writes = False
        self._moved = time.monotonic()
        self.start()

    def run(self) -> None:
        last = b""  # the text may come in two pieces
        while piece := os.read(self._stream.fileno(), 1 << 16):
            self._writes = True
            last = last[-LONGEST:] + piece
            _write(piece)
            if not self._found and self._pattern.search(last) is not None:
                self._found = True
                _write(self._explained)
            self._moved = time.monotonic()
            self._writes = False

    def found(self) -> bool:
        """Return whether the pattern was found. Others, such as ssh, may keep the stream open."""
        while self.is_alive() and (self._writes or time.monotonic() - self._moved < READING):
            self.join(0.02)
        return self._found


def _write(piece: bytes) -> None:
    """Write all bytes to stderr, unless its reader has closed it."""
    with contextlib.suppress(OSError):
        while piece:
            try:
                piece = piece[os.write(2, piece) :]
            except BlockingIOError:
                select.select([], [2], [])
