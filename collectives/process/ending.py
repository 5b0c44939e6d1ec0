"""The end of a rank under MPI: it waits for the other ranks, but not for ever.

``MPI_Finalize`` returns when all ranks have called it, and never if one of them is stopped. So a
rank waits here first, while others run on its host. If all remaining ranks are stopped, it ends
the job at its deadline.

While MPI is finalised, it waits for the ranks of other hosts. They may still compute for hours, or
their host may be lost, and MPI cannot tell the two cases apart. So each rank asks the next host, in
the order of ranks, for a connection to a TCP port. A refusal is an answer. It asks once when it
learns of the host, and every few seconds while MPI is finalised. A host that has never answered is
not considered lost.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from collectives import _core
from collectives.process import abort, binding, living, processes, report
from collectives.process.settings import patience
from collectives.process.waiting import Wait

LOOK = 0.5  # seconds between two checks for stopped ranks
LONGEST_NAP = 0.01  # seconds

PORT = 9  # "discard", which hardly any host offers
ANSWER = 3.0  # seconds

_has_asked = False
_answering: tuple[str, str] | None = None  # the name and the address of a host that has answered


def await_others(MPI: Any) -> None:
    """Wait until all other ranks of this host have reached their end, or end the job. Then let the
    core watch another host while MPI is finalised. Local.
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
            elif passed - halted > patience() and not told:
                told = True
                _give_up(left, passed - halted)
        with _core.Turn():
            MPI.COMM_SELF.Iprobe()  # others may wait for messages of this rank that MPI still has
        _core.move_mails()  # or UCX
        time.sleep(min(LONGEST_NAP, passed / 10))
    _watch_next_host(MPI, patience(), abort.wished())


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


# -- the next host ---------------------------------------------------------------------------------


def note_hosts(hosts: Sequence[str], mine: int) -> None:
    """Take the hosts of a communicator, and check once whether the next one answers. Local."""
    global _has_asked
    others = [each for each in (*hosts[mine + 1 :], *hosts[:mine]) if each != hosts[mine]]
    if others and not _has_asked:
        _has_asked = True
        with contextlib.suppress(RuntimeError):  # no more threads
            threading.Thread(target=_ask, args=others[:1], daemon=True).start()  # names take time


def _ask(host: str) -> None:
    global _answering
    import socket

    with contextlib.suppress(OSError, UnicodeError):
        for *_, (address, *_) in socket.getaddrinfo(host, PORT, type=socket.SOCK_STREAM):
            if _core.host_answers(str(address), PORT, ANSWER):
                _answering = host, str(address)
                return


def _watch_next_host(MPI: Any, seconds: float, ends: bool) -> None:
    """Let the core watch the next host while MPI is finalised, if it has answered before."""
    if _answering is None:
        return
    host, address = _answering
    rank = MPI.COMM_WORLD.Get_rank()
    text = (
        f"collectives: rank {rank} has reached the end of its program, and {host} ({address}), "
        f"where other ranks are, has not answered for {seconds:.3g} s: it is down, or the link to "
        f"it is cut\n"
    )
    is_open = binding.family(MPI) == "openmpi"
    launcher, daemon = (-1, _daemon()) if is_open else (_launcher(), 0)
    _core.watch_host(address, PORT, seconds, text, ends, launcher, daemon)


def _launcher() -> int:
    """Return the descriptor of MPICH's connection to its launcher, or -1."""
    text = os.environ.get("PMI_FD", "")
    return int(text) if text.isdecimal() else -1


def _daemon() -> int:
    """Return Open MPI's daemon that has started the ranks of this host, or 0. It is 0 for a daemon
    of many jobs, and for the launcher.
    """
    is_for_one_job = os.environ.get("PMIX_NAMESPACE", "").startswith("prterun")
    parent = os.getppid()
    return parent if is_for_one_job and processes.name(parent) == "prted" else 0
