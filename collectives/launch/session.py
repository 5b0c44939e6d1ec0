"""A launcher as a child process, which ends when this process is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

GRACE = 5.0  # seconds that a launcher has to end its ranks

# MPICH 5's hydra aborts with this message in some launches on a loaded machine. A user's program is
# not started again after that, because it may have run already.
HYDRA = b"assert (!closed) failed"


def call(command: Sequence[str]) -> int:
    """Run a launcher to its end; return its exit status. Local.

    Notes
    -----
    The launcher runs in a session of its own, so that it gets Ctrl-C only once, from this process:
    after a second one, launchers exit without ending their ranks.
    """
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    reader = threading.Thread(target=_copy, args=(child,), daemon=True)
    reader.start()
    before = {
        number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        status = child.wait()
    except BaseException:
        _end(child, signal.SIGINT)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    reader.join(GRACE)
    return 128 - status if status < 0 else status


def capture(command: Sequence[str], timeout: float) -> tuple[int, str]:
    """Run the `command` of a launcher, until `timeout`; return exit status and output. Local.

    The status is 124 after the timeout.
    """
    with tempfile.TemporaryFile() as file:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = child.wait(timeout)
        except subprocess.TimeoutExpired:
            _end(child, signal.SIGTERM)
            status = 124
        except BaseException:
            _end(child, signal.SIGINT)
            raise
        file.seek(0)
        return status, file.read().decode(errors="replace")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _copy(child: subprocess.Popen[bytes]) -> None:
    """Pass the launcher's stderr on; explain the messages that are known."""
    assert child.stderr is not None
    tail = b""
    explained = False
    while data := os.read(child.stderr.fileno(), 65536):
        os.write(sys.stderr.fileno(), data)
        tail = (tail + data)[-4096:]
        if HYDRA in tail and not explained:
            explained = True
            text = "collectives: mpiexec itself failed, as MPICH's does under load; try again\n"
            os.write(sys.stderr.fileno(), text.encode())


def _end(child: subprocess.Popen[bytes], first: signal.Signals) -> None:
    """End a launcher, first with a signal that it can handle, then by force."""
    for number in (first, signal.SIGTERM, signal.SIGKILL):
        try:
            child.send_signal(number)
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue
        return
