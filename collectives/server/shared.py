"""Servers and workers of one host: parameters and gradients in shared memory.

A server has a block of memory with its workers on the host:

- *head*: the current version of the parameters and its buffer, the number of
  steps of the slowest worker, and the error of the server if it has failed;
- a *desk* for each worker: the counts of gradients that it has sent and that the server has taken,
  the buffer that it reads, its questions and the answers;
- two *slots* for the gradients of each worker;
- *buffers* for the parameters, two more than workers.

The server writes new parameters into a buffer that is not current and that no worker reads, and
then makes it the current one. A worker writes the number of the buffer that it will read, and then
checks that this is still the current one. So a pull is a copy of parameters of one version, and
neither side ever waits for the other: a worker that is stopped while it reads blocks one buffer,
and there is one for each worker. Buffers that are never used take no memory.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from collectives import _core
from collectives.errors import CollectivesError
from collectives.server.transport import (
    FAILURE_BYTES,
    Bytes,
    Claim,
    Event,
    Left,
    Push,
    Wait,
    failure_of,
    failure_text,
)
from collectives.text.words import from_record, to_record

SLOTS = 2
HEAD, DESK, SLOT_HEAD = 2048, 2048, 128  # bytes

# Words of the head.
CURRENT, SLOWEST, FAILED = 0, 1, 2
FAILURE = 1024  # the first byte of the text

# Words of a desk: those that the worker writes, and those that the server does.
PUSHED, READS, LEFT, CLAIMED, STEP, COUNT, PULLS, PULLED = range(8)
TAKEN, ANSWERED, FIRST, LAST = range(16, 20)
WHY = 1024  # the first byte of the reason of a worker that gives up

# `CURRENT` has the version plus 1 (0 before there is one) and in its last bits the buffer, and
# `READS` the same plus 1, or 0.
BUFFER_BITS = 16


class Layout:
    """The places of a server's block in the memory of a host.

    Attributes
    ----------
    stop : int
        The byte behind it.
    """

    start: int
    workers: list[int]
    values: int
    gradient: int

    def __init__(self, start: int, workers: Sequence[int], values: int, gradient: int) -> None:
        self.start, self.workers = start, list(workers)
        self.values, self.gradient = values, gradient
        self.slot: int = SLOT_HEAD + (gradient + 127 & -128)
        self.buffer: int = max(values + 4095 & -4096, 4096)
        self.desks: int = start + HEAD
        self.slots: int = self.desks + DESK * len(self.workers)
        self.buffers: int = self.slots + SLOTS * self.slot * len(self.workers) + 4095 & -4096
        self.count: int = len(self.workers) + 2
        self.failure: slice[int, int, Any] = slice(start + FAILURE, start + FAILURE + FAILURE_BYTES)
        self.stop: int = self.buffers + self.count * self.buffer if self.workers else start

    def words(self, memory: mmap.mmap, start: int, nbytes: int) -> _core.Words:
        """Return the words in some bytes of the memory. Local."""
        return _core.Words(memory, start, nbytes // 8)

    def desk(self, memory: mmap.mmap, worker: int) -> _core.Words:
        """Return the words of the desk of a worker. Local."""
        return self.words(memory, self.desks + DESK * self.workers.index(worker), 256)

    def why(self, worker: int) -> slice:
        """Return the place of the reason of a worker that gives up."""
        start = self.desks + DESK * self.workers.index(worker) + WHY
        return slice(start, start + FAILURE_BYTES)

    def slot_of(self, memory: mmap.mmap, worker: int, number: int) -> tuple[_core.Words, Bytes]:
        """Return the head and the bytes of the slot for a worker's gradient of a number. Local."""
        place = SLOTS * self.workers.index(worker) + number % SLOTS
        start = self.slots + place * self.slot
        data = np.frombuffer(memory, np.uint8, self.gradient, start + SLOT_HEAD)
        return self.words(memory, start, 64), data

    def buffer_of(self, memory: mmap.mmap, number: int) -> Bytes:
        """Return the bytes of a buffer. Local."""
        return np.frombuffer(memory, np.uint8, self.values, self.buffers + number * self.buffer)


def _packed(number: float) -> int:
    """Return a floating-point number as a word."""
    return int.from_bytes(struct.pack("d", number), "little")


def _unpacked(word: int) -> float:
    number: float = struct.unpack("d", word.to_bytes(8, "little"))[0]
    return number


class SharedLink:
    """The connection of a worker to a server of its host."""

    def __init__(self, memory: mmap.mmap, layout: Layout, worker: int, wait: Wait) -> None:
        self._memory, self._layout, self._worker, self._wait = memory, layout, worker, wait
        self._head = layout.words(memory, layout.start, 64)
        self._desk = layout.desk(memory, worker)
        self._wanted = 0, 0
        self._slots = [layout.slot_of(memory, worker, number) for number in range(SLOTS)]
        self._buffers = [layout.buffer_of(memory, number) for number in range(layout.count)]

    def push(self, numbers: tuple[int, int, float], write: Callable[[Bytes], object]) -> None:
        """Send a gradient, with `numbers`, that `write` writes. Local."""
        sent = self._desk[PUSHED]
        self._wait(lambda: sent - self._desk[TAKEN] < SLOTS, "take a gradient")
        head, data = self._slots[sent % SLOTS]
        write(data)
        head[0], head[1], head[2] = numbers[0], numbers[1], _packed(numbers[2])
        self._desk[PUSHED] = sent + 1

    def ask(self, version: int, slowest: int) -> None:
        """Store the wanted `version`, and the least steps of the `slowest` worker. Local."""
        self._wanted = version, slowest

    def arriving(self) -> Generator[tuple[int, int, Bytes], None, None]:
        """Yield the current parameters, once they are new enough. Local."""
        version, slowest = self._wanted

        def is_there() -> bool:
            newest = (self._head[CURRENT] >> BUFFER_BITS) - 1
            return newest >= version and self._head[SLOWEST] >= slowest

        self._wait(is_there, "apply the gradients of the other workers")
        while True:
            current = self._head[CURRENT]
            self._desk[READS] = current + 1
            if self._head[CURRENT] == current:
                break
        buffer = self._buffers[current & (1 << BUFFER_BITS) - 1]
        try:
            yield (current >> BUFFER_BITS) - 1, buffer.nbytes, buffer
        finally:
            self._desk[READS] = 0

    def claim(self, step: int, count: int) -> tuple[int, int] | None:
        """Return a piece of a batch of `count` examples, in a `step`. Local."""
        desk = self._desk
        number = desk[CLAIMED] + 1
        desk[STEP], desk[COUNT] = step, count
        desk[CLAIMED] = number
        self._wait(lambda: desk[ANSWERED] == number, "give a piece of the batch")
        first, last = desk[FIRST], desk[LAST]
        return (first, last) if last else None

    def leave(self, pulls: int, pulled_bytes: int, why: str) -> None:
        """Say that this worker has finished, or `why` it gives up; `pulls`, `pulled_bytes` count.
        Local.
        """
        self._memory[self._layout.why(self._worker)] = to_record(why, FAILURE_BYTES)
        self._desk[PULLS], self._desk[PULLED] = pulls, pulled_bytes
        self._desk[LEFT] = 1

    def failure(self) -> CollectivesError | None:
        """Return the error that the server has failed with, if it has. Local."""
        return failure_of(self._memory[self._layout.failure]) if self._head[FAILED] else None


class SharedEndpoint:
    """The connection of a server to the workers of its host."""

    def __init__(self, memory: mmap.mmap, layout: Layout) -> None:
        self._memory, self._layout = memory, layout
        self._head = layout.words(memory, layout.start, 64)
        self._desks = {worker: layout.desk(memory, worker) for worker in layout.workers}
        self._slots = {
            worker: [layout.slot_of(memory, worker, number) for number in range(SLOTS)]
            for worker in layout.workers
        }
        self._buffers = [layout.buffer_of(memory, number) for number in range(layout.count)]
        self._current = 0
        self._seen = dict.fromkeys(layout.workers, 0)  # gradients
        self._there = set(layout.workers)

    def events(self) -> Iterable[Event]:
        """Return the messages that have come. Local."""
        for worker in sorted(self._there):
            desk = self._desks[worker]
            has_left = desk[LEFT]  # before its last gradient is looked for
            pushed = desk[PUSHED]  # later gradients are for the next turn: others have theirs
            while self._seen[worker] < pushed:
                yield self._push(worker, self._seen[worker])
                self._seen[worker] += 1
            if desk[CLAIMED] > desk[ANSWERED]:
                yield Claim(worker, desk[STEP], desk[COUNT], partial(self._give, desk))
            if has_left:
                self._there.discard(worker)
                why = from_record(self._memory[self._layout.why(worker)])
                yield Left(worker, desk[PULLS], desk[PULLED], why)

    def _push(self, worker: int, number: int) -> Push:
        head, data = self._slots[worker][number % SLOTS]
        desk = self._desks[worker]

        def release() -> None:
            desk[TAKEN] = desk[TAKEN] + 1

        return Push(worker, head[0], head[1], _unpacked(head[2]), data, release)

    def _give(self, desk: _core.Words, piece: tuple[int, int] | None) -> None:
        desk[FIRST], desk[LAST] = piece or (0, 0)
        desk[ANSWERED] = desk[CLAIMED]

    def publish(self, version: int, slowest: int, values: Any, has_changed: bool) -> None:
        """Let workers have the `version` of the parameters with some `values`, and know how far the
        `slowest` is; copy them if it `has_changed`. Local.
        """
        if has_changed:
            mask = (1 << BUFFER_BITS) - 1
            in_use = {self._current}
            in_use.update(word - 1 & mask for desk in self._desks.values() if (word := desk[READS]))
            free = next(k for k in range(self._layout.count) if k not in in_use)
            self._buffers[free][:] = values
            self._current = free
            self._head[CURRENT] = version + 1 << BUFFER_BITS | free
        self._head[SLOWEST] = slowest

    def fail(self, error: CollectivesError) -> None:
        """Have the workers raise an `error`. Local."""
        self._memory[self._layout.failure] = failure_text(error)
        self._head[FAILED] = 1

    def is_quiet(self) -> bool:
        """Return whether nothing is on its way to a worker. Local."""
        return True
