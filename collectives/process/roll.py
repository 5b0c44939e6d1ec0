"""Who has come to a wait inside of MPI, which does not say so: ranks that wait tell the others.

On one host, shared memory says what each rank does. Between hosts, a rank that has waited for half
of its deadline sends a message to all others. At their deadlines, they know who has sent none.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from collectives import _core
from collectives.process import binding

T = TypeVar("T")

TAG = 32768  # the first one behind those of the library's messages; MPI need not have so many
NUMBER = struct.Struct("q")
GRACE = 0.5  # seconds in which what others have sent at their deadlines arrives
NAP = 0.005


class Roll:
    """The ranks of an MPI communicator, at their waits."""

    def __init__(self, mpi: Any, hosts: list[str]) -> None:
        self._mpi, self._hosts = mpi, hosts
        self._rank = mpi.Get_rank()
        self._number = 0
        self._has_told = False
        self._sent: list[Any] = []  # with their memory, which MPI may still read
        MPI = binding.load()
        is_able = MPI.Query_thread() == MPI.THREAD_MULTIPLE  # another thread may be inside
        self._works = is_able and MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) >= TAG

    def begin(self) -> None:
        """Begin a wait. Local, but all ranks must do it in the same order."""
        self._number += 1
        self._has_told = False

    def look(self, waited: float, timeout: float) -> None:
        """Tell the others that this rank has come, if it waits for long. Local."""
        if self._has_told or waited < timeout / 2 or not self._works:
            return
        self._has_told = True
        _bounded(self._tell, None, GRACE)

    def absent(self) -> list[str]:
        """Return the ranks that have not told this one that they have come, with their hosts; none
        if that is not known. Local, at the deadline.
        """
        missing: set[int] = set()
        if self._works:
            missing = _bounded(self._missing, missing, 2 * GRACE)
        return [f"rank {rank} on {self._hosts[rank]}" for rank in sorted(missing)]

    def _tell(self) -> None:
        record = bytearray(NUMBER.pack(self._number))
        with contextlib.suppress(binding.load().Exception):
            for rank in self._others():
                self._sent.append((self._mpi.Isend(record, rank, TAG), record))

    def _missing(self) -> set[int]:
        missing = set(self._others())
        limit = time.monotonic() + GRACE
        with contextlib.suppress(binding.load().Exception):
            while missing and time.monotonic() < limit:
                for rank in sorted(missing):
                    if self._number in self._heard(rank):
                        missing.discard(rank)
                _core.advance_all()
                time.sleep(NAP)
        return missing

    def _others(self) -> list[int]:
        return [rank for rank in range(len(self._hosts)) if rank != self._rank]

    def _heard(self, rank: int) -> list[int]:
        """Return the numbers of the waits that a rank has told of."""
        record = bytearray(NUMBER.size)
        numbers = []
        while self._mpi.Iprobe(rank, TAG):
            self._mpi.Recv(record, rank, TAG)
            numbers.append(NUMBER.unpack(record)[0])
        return numbers


def _bounded(call: Callable[[], T], otherwise: T, seconds: float) -> T:
    """Return what a `call` of MPI returns, or something else if it takes longer.

    Another thread makes it, because one that MPICH keeps inside may keep all others out.
    """
    results: list[T] = []
    thread = threading.Thread(
        target=lambda: results.append(call()), name="collectives-mpi", daemon=True
    )
    thread.start()
    thread.join(seconds)
    return results[0] if results else otherwise
