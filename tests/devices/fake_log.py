"""A log of the accesses of processes to shared memory, in the file of the memory.

Each operation that touches such memory is noted when it is enqueued, and looks for those of other
processes that it should come after: a conflict with one that has not run and is not in its clock is
a race. Clocks travel with shared events. An operation that has run may be known to be over in ways
that nobody sees here, like messages.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from fake_errors import Race

if TYPE_CHECKING:
    from fake_memory import Allocation, Span
    from fake_order import Op

ENTRIES, WORDS = 512, 8
STREAM, NUMBER, BEGIN, END, WRITES, DONE = range(6)  # words of an entry
NBYTES = (1 + ENTRIES) * WORDS * 8


class Log:
    """The log of an allocation, from `offset` on in its file."""

    def __init__(self, fd: int, offset: int) -> None:
        self.fd, self.offset = fd, offset
        words = np.frombuffer(mmap.mmap(fd, NBYTES, offset=offset), np.uint64)
        self.head, self.entries = words[:1], words[WORDS:].reshape(ENTRIES, WORDS)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out; the caller keeps out threads of this one."""
        fcntl.lockf(self.fd, fcntl.LOCK_EX, 1, self.offset)
        try:
            yield
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, self.offset)

    def note(self, op: Op, memory: Allocation, span: Span, is_write: bool) -> Callable[[], None]:
        """Note an access; raise Race if there is one, or return what notes that it is over."""
        begin, end = span.address - memory.address, span.end - memory.address
        with self.locked():
            others = self.entries[: int(self.head[0])]
            found = (others[:, BEGIN] < end) & (others[:, END] > begin) & (others[:, DONE] == 0)
            if not is_write:
                found &= others[:, WRITES] == 1
            for other in others[found].tolist():
                is_ours = other[STREAM] >> 32 == os.getpid()
                if not is_ours and op.clock.get(other[STREAM], 0) < other[NUMBER]:
                    raise Race(
                        f"{'write' if is_write else 'read'} of bytes {begin} to {end} by {op} and "
                        f"the earlier {'write' if other[WRITES] else 'read'} of bytes "
                        f"{other[BEGIN]} to {other[END]} by process {other[STREAM] >> 32} have no "
                        f"order, in {memory}"
                    )
            count = int(self.head[0])
            entry = self.entries[count % ENTRIES]
            entry[:] = (op.stream.number, op.number, begin, end, is_write, 0, 0, 0)
            self.head[0] = count + 1
        stream, number = op.stream.number, op.number

        def over() -> None:
            if entry[STREAM] == stream and entry[NUMBER] == number:
                entry[DONE] = 1

        return over
