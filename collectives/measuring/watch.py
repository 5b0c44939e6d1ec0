"""The deadline of measurements: ranks that measure MPI wait inside of it, where nobody looks at the
clock. A thread does.
"""

from __future__ import annotations

import threading

from collectives import Communicator
from collectives.process import abort, living
from collectives.process.waiting import Wait

__all__ = ["Watch"]

LOOK = 0.5  # seconds between two looks; so seldom, it does not disturb what is measured
GRACE = 2.0  # seconds that launchers have to end a job of which a rank has died


class Watch:
    """A thread that ends the job if this rank waits for longer than its deadline. Local.

    Parameters
    ----------
    comm : Communicator
        It has the deadline.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._wait = Wait()
        if comm.size > 1:
            threading.Thread(target=self._run, name="collectives-watch", daemon=True).start()

    def beat(self) -> None:
        """Note that this rank does not wait. Local."""
        self._wait = Wait()

    def _run(self) -> None:
        ended = threading.Event()
        abort.before_end(ended.set)
        everybody = range(self._comm.size)
        while not ended.wait(LOOK):
            waited = self._wait.passed()
            if waited > GRACE:
                for rank, process, in_order in living.ended(everybody):
                    if not in_order:
                        abort.end_job(f"ends the job: rank {rank} (process {process}) has died")
            if waited > self._comm.timeout:
                found = living.stopped().items()
                told = "".join(f"; rank {rank} (process {pid}) is stopped" for rank, pid in found)
                abort.end_job(
                    f"has waited {self._comm.timeout:g} s for other ranks while it measures{told}"
                )
