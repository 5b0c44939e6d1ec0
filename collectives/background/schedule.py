"""The schedule: what runs next of what all ranks have submitted.

All ranks add the same submissions in the same order and take from the schedule at the same turns.
So each of them takes the same, without a word to the others.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

from collectives.background.handle import Handle

CHUNK = 4 << 20  # bytes that run at a time of a long allreduce or broadcast, on one host
CHUNK_BETWEEN_HOSTS = 1 << 20  # a shorter one there takes much longer, and what is urgent waits
APART = 256 << 10  # bytes above which an array is not copied together with others
LONG = 2  # chunks from which on one is cut


class Batch(NamedTuple):
    """What runs at one turn: several submissions as one, or one, or a piece of one."""

    handles: list[Handle]
    first: int = 0  # of a piece: the first element
    elements: int = 0  # and how many; 0 if it is no piece
    is_last: bool = True


class Schedule:
    """Submissions that all ranks have made, in the order of their priorities."""

    def __init__(self, fusion: int, hosts: int) -> None:
        self.fusion, self.apart = fusion, min(fusion, APART)
        self.chunk = CHUNK if hosts == 1 else CHUNK_BETWEEN_HOSTS
        self.ready: list[Handle] = []
        self.added = 0

    def __len__(self) -> int:
        return len(self.ready)

    def add(self, handle: Handle) -> None:
        """Add the submission `handle`. Local, and in the same order on all ranks."""
        handle.scheduled()
        handle.number = self.added
        self.added += 1
        insort(self.ready, handle, key=_order)

    def pick(self) -> Batch | None:
        """Take out what runs next, or None. Local, and at the same turns on all ranks."""
        if not self.ready:
            return None
        head = self.ready[0]
        key = head.fuses
        nbytes = head.nbytes
        if key is None or head.what is not None:
            return Batch([self.ready.pop(0)])
        if head.codec is not None:
            return Batch(self._fused(key))
        if self.is_long(head):
            return self._piece(head)
        if nbytes > self.apart:
            return Batch([self.ready.pop(0)])
        return Batch(self._fused(key))

    def is_long(self, handle: Handle) -> bool:
        """Return whether the submission `handle` runs by pieces. Local."""
        if handle.nbytes < LONG * self.chunk:
            return False
        return handle.fuses is not None and not handle.takes_steps

    def _piece(self, head: Handle) -> Batch:
        """Return the next chunk of a long submission, which stays until its last one is taken."""
        size = head.itemsize
        total = head.nbytes // size
        first, count = head.position, self.chunk // size
        left = total - first
        if left < LONG * count:
            count = left
        head.position += count
        is_last = head.position == total
        if is_last:
            self.ready.pop(0)
        return Batch([head], first, count, is_last)

    def _fused(self, key: object) -> list[Handle]:
        """Take out submissions that can run as one with the first, in the order of the schedule."""
        taken: list[Handle] = []
        kept: list[Handle] = []
        total = 0
        for position, each in enumerate(self.ready):
            nbytes = each.nbytes
            fits = each.codec is not None or nbytes <= self.apart
            if fits and total + nbytes > self.fusion and taken:
                kept += self.ready[position:]
                break
            if fits and each.fuses == key and each.what is None:
                taken.append(each)
                total += nbytes
            else:
                kept.append(each)
        self.ready = kept
        return taken


def _order(handle: Handle) -> tuple[int, int]:
    return -handle.priority, handle.number
