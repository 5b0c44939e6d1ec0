"""Agreements of the remaining ranks: on a number, and on these ranks.

Ranks without MPI eventually learn of every end: on one host by the locks that the kernel takes from
a process, between hosts by connections that end, of which ranks tell each other. So they can agree
in the manner of Chandra and Toueg (Unreliable failure detectors for reliable distributed systems,
1996, doi:10.1145/226643.226647) with a detector that is never wrong, unless the link between two
running hosts is cut: one rank after another sends its values to the others, which take them or see
it end. With MPI, the library must offer this: ULFM, the part of Open MPI that survives the loss of
a process. Nothing here waits for a rank that has ended.
"""

from __future__ import annotations

import struct
import time
from typing import Any

from collectives.errors import CommunicatorError, PeerLostError, StallError
from collectives.process import abort, binding, hosted, living
from collectives.process.meeting import Meeting
from collectives.process.waiting import Wait, until

SLICE = 0.02  # seconds between two checks for ended ranks

UNSUPPORTED = (
    "{call} needs ranks that continue when one is lost: those of `collectives run --elastic`, with "
    "Open MPI or with --no-mpi"
)


def agreed(meeting: Meeting, value: int) -> tuple[int, list[int]]:
    """Return the bitwise and of a number of all remaining ranks, and these ranks.
    Collective, among the remaining ranks.
    """
    if isinstance(meeting.mpi, hosted.HostedRanks):
        return _Agreement(meeting, meeting.mpi.again("agree"), value).reached()
    MPI = binding.load()

    def agree() -> int:
        while True:
            meeting.mpi.Ack_failed()
            try:
                return int(meeting.mpi.Agree(value))
            except MPI.Exception as error:  # on all ranks: one was lost that some had not seen
                if error.Get_error_class() != MPI.ERR_PROC_FAILED:
                    raise

    _check_support(meeting)
    return meeting.in_thread(agree, _trust), []


def shrunk(meeting: Meeting) -> Any:
    """Return a new MPI communicator of the remaining ranks. Collective, among them."""
    if isinstance(meeting.mpi, hosted.HostedRanks):
        _, ranks = agreed(meeting, -1)
        return meeting.mpi.part(ranks)

    def shrink() -> Any:
        meeting.mpi.Revoke()  # others may still wait in it
        return meeting.mpi.Shrink()

    _check_support(meeting)
    made = meeting.in_thread(shrink, _trust)
    abort.leave_unfinished()
    return made


def _trust(waited: float) -> None:
    """Check no rank, because MPI knows the ended ones."""


def _check_support(meeting: Meeting) -> None:
    """Raise an error if MPI ends the job, or hangs, when a rank is lost. Local."""
    if not binding.survives():
        raise CommunicatorError(UNSUPPORTED.format(call=meeting.call))


class _Agreement:
    """One agreement of ranks without MPI."""

    def __init__(self, meeting: Meeting, ranks: hosted.HostedRanks, value: int) -> None:
        self._meeting, self._ranks, self._value = meeting, ranks, value
        self._format = struct.Struct(f"q{-(-meeting.size // 8)}s")
        self._sent: list[Any] = []  # messages, kept until they are read
        self._ended: set[int] = set()
        self._looked = 0.0
        self._wait = Wait(timeout=meeting.timeout)

    def reached(self) -> tuple[int, list[int]]:
        """Return the agreed value. Collective."""
        others = [rank for rank in range(self._meeting.size) if rank != self._meeting.rank]
        for rank in others:
            self._send(rank, 0)
        value, left = self._value, {self._meeting.rank}
        for rank in others:
            heard = self._receive(rank, 0)
            if heard is not None:
                value &= heard[0]
                left.add(rank)
        self._value = value
        mask = sum(1 << rank for rank in left)
        for turn in range(self._meeting.size):
            if turn == self._meeting.rank:
                for rank in others:
                    self._send(rank, 1, mask)
            else:
                heard = self._receive(turn, 1)
                if heard is not None:
                    self._value, mask = heard
        return self._value, [rank for rank in range(self._meeting.size) if mask >> rank & 1]

    def _send(self, rank: int, tag: int, mask: int = 0) -> None:
        record = self._format.pack(self._value, mask.to_bytes(self._format.size - 8, "little"))
        self._sent.append(self._ranks.isend(record, rank, tag))

    def _receive(self, rank: int, tag: int) -> tuple[int, int] | None:
        """Return the values of a rank, or None if it has ended without sending them."""
        record = bytearray(self._format.size)
        letter = self._ranks.irecv(record, rank, tag)
        has_come = False

        def is_over() -> bool:
            nonlocal has_come
            has_ended = rank in self._gone()  # checked first, since it may have sent before its end
            try:
                has_come = letter.test()
            except PeerLostError:
                has_ended = True
            return has_come or has_ended

        if not until(is_over, self._wait):
            raise StallError(
                f"{self._meeting.call}: rank {self._meeting.rank} of {self._meeting.size} has "
                f"waited {self._meeting.timeout:.3g} s for rank {rank}, which has neither "
                f"called it nor ended"
            )
        if not has_come:
            return None
        value, mask = self._format.unpack(record)
        return value, int.from_bytes(mask, "little")

    def _gone(self) -> set[int]:
        """Return the ranks that have ended."""
        now = time.monotonic()
        if now > self._looked + SLICE:
            self._looked = now
            places = {member: rank for rank, member in enumerate(self._meeting.members)}
            gone = living.ended(self._meeting.members)
            self._ended |= {places[member] for member, *_ in gone}
        return self._ended
