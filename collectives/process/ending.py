"""The end of a rank under MPI: it waits for the other ranks, but not for ever.

``MPI_Finalize`` returns when all ranks have called it, and never if one of them is stopped. So a
rank waits here first, as long as others run on its host. If all that are left are stopped, it ends
the job at its deadline. While it waits for other hosts, inside of MPI, one of them is watched.
"""

from __future__ import annotations

import time
from typing import Any

from collectives import _core
from collectives.errors import ArgumentError
from collectives.process import abort, binding, environment, links, living, report
from collectives.process.settings import Settings
from collectives.process.waiting import Wait

LOOK = 0.5  # seconds between two looks which ranks are stopped
LONGEST_NAP = 0.01  # seconds
DEFAULT = Settings().timeout


def await_others(MPI: Any) -> None:
    """Wait until no other rank of this host is before its end, or end the job. Have another host
    watched while MPI is finalised. Local.
    """
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
            elif passed - halted > _patience() and not told:
                told = True
                _give_up(left, passed - halted)
        with _core.Turn():
            MPI.COMM_SELF.Iprobe()  # others may wait for what MPI has of this rank yet
        time.sleep(min(LONGEST_NAP, passed / 10))
    links.watch(MPI, _patience(), abort.wished())


def _patience() -> float:
    try:
        return environment.seconds("COLLECTIVES_TIMEOUT", DEFAULT)
    except ArgumentError:  # it is too late to say so
        return DEFAULT


def _give_up(left: dict[int, int], waited: float) -> None:
    """Say for whom this rank has waited, and end the job if that is wished."""
    names = ", ".join(f"rank {rank} (process {process})" for rank, process in sorted(left.items()))
    verb = "is" if len(left) == 1 else "are"
    text = (
        f"has reached the end of its program and has waited {waited:.3g} s for {names}, which "
        f"{verb} stopped"
    )
    if abort.wished():
        abort.end_job(text)
    report.write(f"collectives: {text}\n")
