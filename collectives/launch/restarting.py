"""A job that is started again when it fails."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import FrameType

from collectives.process import orphan

__all__ = ["VARIABLE", "call", "child"]

VARIABLE = "COLLECTIVES_RESTART"  # how often the job was started before; ranks see it

PASSED_ON = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

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


def child(command: Sequence[str]) -> int:
    """Run a launcher; return its exit status, or 128 + the number of the signal that has ended it.
    Local.

    The signals that end this process are passed on, and the launcher ends with it.

    Parameters
    ----------
    command : sequence of str
    """
    # In a group of its own: Ctrl-C reaches it by this process, and once.
    launcher = subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=functools.partial(orphan.follow_parent, signal.SIGTERM),
    )

    def pass_on(number: int, frame: FrameType | None) -> None:
        launcher.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        status = launcher.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - status if status < 0 else status
