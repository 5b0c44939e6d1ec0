"""Requests to stop: signals that a rank gets, and that `Communicator.stop_requested` shares."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

import numpy as np

from collectives.errors import CommunicatorError
from collectives.process import processes
from collectives.text import logs

SIGNALS = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT

# The name of a file that is open in processes that have called `watch`, so that others see it.
MARK = "collectives-stop"

APART = 1.0  # seconds from which on a second Ctrl-C is another one: launchers may repeat the first

_earlier: dict[int, Any] | None = None  # the handlers of the program, once it is watched
_reason = ""  # the request, in words; empty if there is none
wanted = np.zeros(1, np.uint8)  # 1 if there is one; the core reads it
_interrupted = 0.0  # the time of the first Ctrl-C
_mark: int | None = None


def watch() -> None:
    """Let the signals request a stop from now on. Local; the first time in the main thread.

    Signals that the program ignores, or that code outside of Python handles, are left to it.
    """
    global _earlier, _mark
    if _earlier is not None:
        return
    if threading.current_thread() is not threading.main_thread():
        raise CommunicatorError(
            "the first call of stop_requested was made outside of the main thread, which alone may "
            "install handlers of signals: call it there once, on all ranks"
        )
    found = {number: signal.getsignal(number) for number in SIGNALS}
    _earlier = {n: each for n, each in found.items() if each not in (None, signal.SIG_IGN)}
    for number in _earlier:
        signal.signal(number, _note)
    processes.after_fork(_forget)
    with contextlib.suppress(AttributeError, OSError):  # a system without such files
        _mark = os.memfd_create(MARK, os.MFD_CLOEXEC)


def reason() -> str:
    """Return the request to stop in words, or an empty text. Local."""
    return _reason


def request(text: str) -> None:
    """Note a request to stop, unless there is one. Local."""
    global _reason
    _reason = _reason or text
    wanted[0] = True


def all_stop() -> None:
    """Note that all ranks of a communicator have agreed to stop. Local."""
    if _reason:
        logs.note("INFO", f"all ranks stop: this one got {_reason}")
    request("the request of another rank")


def _note(number: int, frame: FrameType | None) -> None:
    """Handle a signal: note the request, and call the handler of the program."""
    global _interrupted
    assert _earlier is not None
    request(signal.Signals(number).name)
    handler = _earlier[number]
    if handler is signal.default_int_handler:
        _interrupted = _interrupted or time.monotonic()
        if time.monotonic() - _interrupted < APART:
            return
    if callable(handler):
        handler(number, frame)


def _forget() -> None:
    """Drop requests in a forked child.

    Launchers send signals to the children of a rank, too. SIGTERM may come from the rank, which
    ends a child by it. The others are meant for the rank.
    """
    if _mark is not None:
        os.close(_mark)
    for number, handler in (_earlier or {}).items():
        is_default = handler in (signal.SIG_DFL, signal.default_int_handler)
        ignores = is_default and number != signal.SIGTERM
        signal.signal(number, signal.SIG_IGN if ignores else handler)


def listens(process: int, number: int) -> bool:
    """Return whether a `process` takes the signal `number` as a request to stop. Local."""
    if number not in SIGNALS:
        return False
    place = f"/proc/{process}"
    try:
        with open(f"{place}/status", encoding="utf-8", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
        is_caught = int(caught.split()[1], 16) >> number - 1 & 1
        return bool(is_caught) and any(map(_is_mark, os.scandir(f"{place}/fd")))
    except (OSError, StopIteration):  # it has ended, or belongs to another user
        return False


def _is_mark(file: os.DirEntry[str]) -> bool:
    try:
        return os.readlink(file.path).startswith(f"/memfd:{MARK} ")
    except OSError:  # it was closed
        return False
