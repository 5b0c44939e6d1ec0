"""The link to the next host, which may be cut when a rank is at its end.

``MPI_Finalize`` waits for the ranks of other hosts. They may still compute for hours, or their host
may be lost, and MPI does not find out which. So each rank asks the next host, in the order of
ranks, for a connection to a TCP port. A refusal is an answer. It asks once when it learns of the
host, and every few seconds while MPI is finalised. A host that has never answered is not taken for
lost.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

from collectives import _core
from collectives.process import binding, orphan

__all__ = ["note", "watch"]

PORT = 9  # "discard": hardly any host offers it
ANSWER = 3.0  # seconds

_has_asked = False
_answering: tuple[str, str] | None = None  # the name and the address of a host that has answered


def note(hosts: Sequence[str], mine: int) -> None:
    """Hear of the hosts of a communicator, and ask the next one whether it answers. Local."""
    global _has_asked
    others = [each for each in (*hosts[mine + 1 :], *hosts[:mine]) if each != hosts[mine]]
    if others and not _has_asked:
        _has_asked = True
        with contextlib.suppress(RuntimeError):  # no more threads
            threading.Thread(target=_ask, args=others[:1], daemon=True).start()  # names take time


def _ask(host: str) -> None:
    global _answering
    with contextlib.suppress(OSError, UnicodeError):
        for *_, (address, *_) in socket.getaddrinfo(host, PORT, type=socket.SOCK_STREAM):
            if _core.host_answers(str(address), PORT, ANSWER):
                _answering = host, str(address)
                return


def watch(MPI: Any, patience: float, ends: bool) -> None:
    """Have the next host watched while MPI is finalised, if there is one that has answered."""
    if _answering is None:
        return
    host, address = _answering
    rank = MPI.COMM_WORLD.Get_rank()
    text = (
        f"collectives: rank {rank} has reached the end of its program, and {host} ({address}), "
        f"where other ranks are, has not answered for {patience:.3g} s: it is down, or the link to "
        f"it is cut\n"
    )
    is_open = binding.family(MPI) == "openmpi"
    launcher, daemon = (-1, _daemon()) if is_open else (_launcher(), 0)
    _core.watch_host(address, PORT, patience, text, ends, launcher, daemon)


def _launcher() -> int:
    """Return the descriptor by which MPICH talks to its launcher, or -1."""
    text = os.environ.get("PMI_FD", "")
    return int(text) if text.isdecimal() else -1


def _daemon() -> int:
    """Return the process of Open MPI that has started the ranks of this host, or 0. One that is
    there for many jobs is left alone, and so is the launcher.
    """
    is_for_one_job = os.environ.get("PMIX_NAMESPACE", "").startswith("prterun")
    parent = os.getppid()
    return parent if is_for_one_job and orphan.name(parent) == "prted" else 0
