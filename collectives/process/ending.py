"""The end of a rank under MPI: it waits for the other ranks, but not for ever.

``MPI_Finalize`` returns when all ranks have called it, and never if one of them is stopped. So a
rank waits here first, while others run on its host. If all remaining ranks are stopped, it ends
the job at its deadline.
"""

from __future__ import annotations

import time
from typing import Any

from collectives import _core
from collectives.process import abort, binding, living, report
from collectives.process.settings import patience
from collectives.process.waiting import Wait

LOOK = 0.5  # seconds between two checks for stopped ranks
LONGEST_NAP = 0.01  # seconds


def await_others(MPI: Any) -> None:
    """Wait until all other ranks of this host have reached their end, or end the job. Local."""
    if binding.survives():
        return
    wait = Wait()
    looked = halted = wait.passed()
    told = False
    while left := living.running():
        passed = wait.passed()
        if passed - looked > LOOK:
            looked = passed
            if left.items() - living.stopped().items():
                halted = passed
            elif passed - halted > patience() and not told:
                told = True
                _give_up(left, passed - halted)
        with _core.Turn():
            MPI.COMM_SELF.Iprobe()  # others may wait for messages of this rank that MPI still has
        _core.move_mails()  # or UCX
        time.sleep(min(LONGEST_NAP, passed / 10))


def _give_up(left: dict[int, int], waited: float) -> None:
    """Report the ranks that this rank has waited for; end the job if the environment allows it."""
    names = ", ".join(f"rank {rank} (process {process})" for rank, process in sorted(left.items()))
    verb = "is" if len(left) == 1 else "are"
    text = (
        f"has reached the end of its program and has waited {waited:.3g} s for {names}, which "
        f"{verb} stopped"
    )
    if abort.wished():
        abort.end_job(text)
    report.write(f"collectives: {text}\n")
