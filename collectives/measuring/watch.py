"""The deadline of measurements: ranks that measure MPI wait inside of it, where nobody looks at the
clock. A thread does.
"""

from __future__ import annotations

import threading
import weakref
from functools import partial

from collectives import Communicator
from collectives.process import abort, living
from collectives.process.waiting import Wait

LOOK = 0.5  # seconds between two looks; so seldom, it does not disturb what is measured
GRACE = 2.0  # seconds that launchers have to end a job of which a rank has died


class Watch:
    """What ends the job if a measurement takes longer than the deadline of its communicator, or a
    rank has died: a ``with`` statement for each, on all ranks.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._wait: Wait | None = None  # in a measurement
        if comm.size > 1:
            run = partial(_run, weakref.ref(self))
            threading.Thread(target=run, name="collectives-watch", daemon=True).start()

    def __enter__(self) -> None:
        self._wait = Wait()

    def __exit__(self, *_: object) -> None:
        self._wait = None

    def look(self) -> None:
        """End the job if there is no hope for the measurement under way. Local."""
        wait = self._wait
        waited = 0.0 if wait is None else wait.passed()
        if waited > GRACE:
            for rank, process, in_order in living.ended(range(self._comm.size)):
                if not in_order:
                    abort.end_job(f"ends the job: rank {rank} (process {process}) has died")
        if waited > self._comm.timeout:
            found = living.stopped().items()
            told = "".join(f"; rank {rank} (process {pid}) is stopped" for rank, pid in found)
            abort.end_job(
                f"has waited {self._comm.timeout:g} s for other ranks while it measures{told}"
            )


def _run(reference: weakref.ref[Watch]) -> None:
    ended = threading.Event()
    abort.before_end(ended.set)
    while not ended.wait(LOOK) and (watch := reference()) is not None:
        watch.look()
        del watch
