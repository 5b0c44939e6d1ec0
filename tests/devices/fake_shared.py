"""Events that several processes use: a page with how often it was recorded, and which are done.

Each recording has a number from 1 on, and takes its clock (`fake_order`) along, so that a process
knows the order of its operations in other processes.
"""

from __future__ import annotations

import mmap
import os
import uuid

import numpy as np
from fake_errors import InvalidHandle
from fake_memory import HANDLE, open_file

SLOTS, WORDS = 64, 512
COOKIE, ALIVE, RECORDED, COMPLETED = 0, 2, 3, 4  # words of the page
NUMBER, DONE, COUNT, ENTRIES = 0, 1, 2, 3  # words of a slot
LENGTH = (1 + SLOTS) * WORDS * 8


class SharedEvent:
    """An event in a file in memory; its maker records it, others ask and wait."""

    def __init__(self, fd: int | None = None, cookie: bytes = b"") -> None:
        self.is_ours = fd is None
        self.cookie = cookie or uuid.uuid4().bytes
        if fd is None:
            fd = os.memfd_create("fake-event", os.MFD_CLOEXEC)
            os.ftruncate(fd, LENGTH)
        self.fd = fd
        self.words = np.frombuffer(mmap.mmap(fd, LENGTH), np.uint64)
        if self.is_ours:
            self.words[COOKIE : COOKIE + 2] = np.frombuffer(self.cookie, np.uint64)
            self.words[ALIVE] = 1
        self.finished: set[int] = set()  # beyond COMPLETED

    def slot(self, number: int) -> np.ndarray:
        """Return the words of a recording."""
        begin = (1 + number % SLOTS) * WORDS
        return self.words[begin : begin + WORDS]

    def recorded(self) -> int:
        """Return the number of the last recording; raise if the event is no more."""
        if not self.words[ALIVE]:
            raise InvalidHandle("the event was ended by the process that made it")
        return int(self.words[RECORDED])

    def clock(self, number: int) -> dict[int, int]:
        """Return the clock of a recording, if it is still there."""
        slot = self.slot(number)
        if number == 0 or int(slot[NUMBER]) != number:
            return {}
        entries = slot[ENTRIES : ENTRIES + 2 * int(slot[COUNT])].reshape(-1, 2).tolist()
        return dict(entries)

    def record(self, clock: dict[int, int]) -> int:
        """Note a recording; return its number."""
        number = self.recorded() + 1
        slot = self.slot(number)
        entries = list(clock.items())[-(WORDS - ENTRIES) // 2 + 1 :]
        slot[NUMBER] = 0
        slot[COUNT] = len(entries)
        slot[ENTRIES : ENTRIES + 2 * len(entries)] = np.array(entries, np.uint64).ravel()
        slot[NUMBER] = number
        self.words[RECORDED] = number
        return number

    def complete(self, number: int) -> None:
        """Note that what a recording stands for has happened."""
        self.slot(number)[DONE] = number
        self.finished.add(number)
        last = int(self.words[COMPLETED])
        while last + 1 in self.finished:
            last += 1
            self.finished.remove(last)
        self.words[COMPLETED] = last

    def is_complete(self, number: int) -> bool:
        """Return whether what a recording stands for has happened."""
        return int(self.words[COMPLETED]) >= number or int(self.slot(number)[DONE]) == number

    def export(self) -> bytes:
        """Return 64 bytes from which another process opens the event."""
        return HANDLE.pack(b"fevt", os.getpid(), self.fd, 0, 0, self.cookie)

    def end(self) -> None:
        """Close it; that of its maker is no more for the others, either."""
        if self.is_ours:
            self.words[ALIVE] = 0
        os.close(self.fd)


def open_event(handle: bytes) -> SharedEvent:
    """Open an event of another process."""
    if len(handle) != HANDLE.size or not handle.startswith(b"fevt"):
        raise InvalidHandle(f"no handle of an event: {handle!r}")
    _, pid, number, _, _, cookie = HANDLE.unpack(handle)
    fd = open_file(pid, number, "an event of another process")
    if os.fstat(fd).st_size != LENGTH or os.pread(fd, 16, COOKIE) != cookie:
        os.close(fd)
        raise InvalidHandle("an event of another process was ended")
    shared = SharedEvent(fd, cookie)
    shared.recorded()
    return shared
