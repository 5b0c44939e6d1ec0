"""The schedule: the order of the submissions of all ranks, and their execution.

All ranks add the same submissions in the same order and take from the schedule at the same turns.
So all of them take the same submissions, without communication.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from collectives import _core
from collectives.background.handle import Handle
from collectives.communicator import Communicator
from collectives.compression import Piece
from collectives.errors import ArgumentError
from collectives.process import environment
from collectives.process.agreement import agreed_terms

FUSION = 4 << 20  # bytes of submissions that run as one
CHUNK = 4 << 20  # bytes of a piece of a long allreduce or broadcast, on one host
CHUNK_BETWEEN_HOSTS = 1 << 20  # shorter ones take much longer; urgent submissions wait for one
APART = 256 << 10  # bytes above which an array is not copied together with others
LONG = 2  # chunks from which on a submission is cut


class Batch(NamedTuple):
    """The submissions that run at one turn: several as one, or one, or a piece of one."""

    handles: list[Handle]
    first: int = 0  # the first element of a piece
    elements: int = 0  # the number of elements of a piece; 0 if it is no piece
    is_last: bool = True


class Schedule:
    """Submissions that all ranks have made, in the order of their priorities."""

    fusion: int
    apart: int
    added: int

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
        """Take out the next batch, or None. Local, and at the same turns on all ranks."""
        if not self.ready:
            return None
        head = self.ready[0]
        key = head.fuses
        nbytes = head.nbytes
        if key is None or head.steps is not None:
            return Batch([self.ready.pop(0)])
        if head.codec is not None:
            return Batch(self._fused(key))
        if self.is_long(head):
            return self._piece(head)
        if nbytes > self.apart:
            return Batch([self.ready.pop(0)])
        return Batch(self._fused(key))

    def is_long(self, handle: Handle) -> bool:
        """Return whether the submission `handle` runs in pieces. Local."""
        if handle.nbytes < LONG * self.chunk:
            return False
        return handle.fuses is not None and not handle.takes_steps

    def _piece(self, head: Handle) -> Batch:
        """Return the next piece of a long submission, which stays until its last one is taken."""
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
            if fits and each.fuses == key and each.steps is None:
                taken.append(each)
                total += nbytes
            else:
                kept.append(each)
        self.ready = kept
        return taken


def _order(handle: Handle) -> tuple[int, int]:
    return -handle.priority, handle.number


def agreed_fusion(comm: Communicator) -> int:
    """Return the smallest limit of fusion in the ranks' environments. Collective."""
    problem, fusion = None, 0
    try:
        fusion = _fusion()
    except ArgumentError as error:
        problem = error
    every: list[int] = agreed_terms(comm.allgather_object, "background", problem, {}, fusion)
    return min(every)


def _fusion() -> int:
    """Return the most bytes of submissions that run as one, from the environment."""
    for name in ("COLLECTIVES_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD"):
        if environment.text(name) is not None:
            return environment.size(name, FUSION, least=0) or 1  # nothing fits
    return FUSION


# -- execution --------------------------------------------------------------------------------

Requests = Iterator[_core.Request]


class RequestChain:
    """A generator of requests, each of which is yielded when it has started."""

    def __init__(self, steps: Requests) -> None:
        self.steps = steps
        self.request: _core.Request | None = None
        self.ended: bool = False
        self.began: float = time.monotonic()

    def advance(self) -> bool:
        """Advance as far as possible without waiting; return whether it has ended. Local."""
        while not self.ended:
            if self.request is not None and not self.request.test():
                return False
            self.request = next(self.steps, None)
            self.ended = self.request is None
        return True

    def look(self, waited: float) -> None:
        """End the request in flight if it has `waited` for too many seconds. Local."""
        if self.request is not None:
            self.request._look(waited)

    def awaited(self) -> list[int]:
        """Return the ranks that it waits for. Local."""
        return [] if self.request is None else self.request._awaited()


def run_batch(
    batch: Batch, comm: Communicator, memory: Any, ended: Callable[[Sequence[Handle]], None]
) -> Requests:
    """Run a batch of submissions; yield each started request. Collective."""
    first = batch.handles[0]
    if first.codec is not None:
        yield from _compressed(batch.handles, comm)
    elif first.steps is not None:
        first.begun()
        first.value = yield from first.steps.run(comm)
    elif len(batch.handles) > 1:
        bundle = _core.Bundle(batch.handles, memory)
        bundle.pack()
        yield bundle.start()
        bundle.unpack()
    elif batch.elements:
        yield first.start_piece(batch.first, batch.elements)
    else:
        yield first.start()
    if batch.is_last:
        ended(batch.handles)


def _compressed(handles: list[Handle], comm: Communicator) -> Requests:
    """Reduce some arrays with a codec. The place of an array without a name is its name."""
    pieces = [
        Piece(each.name or f"\0{place}", each.arrays.values, each.arrays.shape)
        for place, each in enumerate(handles)
    ]
    for each in handles:
        each.begun()
    yield from handles[0].codec.allreduce(comm, pieces)
    for each in handles:
        each.finish()
