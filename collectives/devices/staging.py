"""The staging transport: calls on arrays of devices, by way of pinned memory of the host.

A call is cut into pieces (`columns`). Each piece is copied to a slot of the ring, the collective of
the host runs on it there, and the result is copied to the device::

    copied   its copy from the device is enqueued, in order of the caller's stream
    begun    its collective on the host has begun
    ended    the copy of its result to the device is enqueued

All ranks begin the pieces of all calls in the order of the calls. So a call begins when those
before it have begun, and the engine has all of them begin before it starts another call
(`StartQueue`).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any

import numpy as np

from collectives import _core
from collectives._core import ALLREDUCE
from collectives.devices.columns import Piece
from collectives.devices.requests import AgreedCall, StartedCall, give_up
from collectives.devices.ring import Ring, Slot
from collectives.errors import CommunicatorError
from collectives.process.waiting import REQUESTS, Wait
from collectives.reductions import MAX

# Memory that MPI or a device may still touch after an error: it is kept until the process ends.
_lost: list[object] = []
_in_flight: set[DeviceRequest] = set()


class StartQueue:
    """The calls on devices of one communicator that wait to begin, in their order.

    While a call waits, the engine's `ahead` begins it before the engine starts another one.
    """

    def __init__(self) -> None:
        self.waiting: deque[DeviceRequest] = deque()
        self.is_moving: bool = False

    def add(self, request: DeviceRequest) -> None:
        """Put a request at the end. Local."""
        self.waiting.append(request)
        request.engine.ahead = self.begin_all

    def begin_all(self) -> None:
        """Begin all calls that wait. Local, unless they have more pieces than there are slots."""
        self.begin(None, True, None)

    def begin(self, last: DeviceRequest | None, waits: bool, timeout: float | None) -> bool:
        """Begin the calls that wait, and return whether all of them have begun. Local.

        The caller is inside of the engine. Each request keeps its own errors.
        """
        if self.is_moving:  # a call inside of `begin` is here again
            return False
        self.is_moving = True
        try:
            while self.waiting:
                request = self.waiting[0]
                if not request.begin(waits, timeout if request is last else None):
                    return False
                if self.waiting and self.waiting[0] is request:
                    self.waiting.popleft()
                if not self.waiting:
                    request.engine.ahead = None
                if request is last:
                    break
        finally:
            self.is_moving = False
        return True

    def discard(self, request: DeviceRequest) -> None:
        """Remove a request that has failed. Local."""
        if request in self.waiting:
            self.waiting.remove(request)
        if not self.waiting:
            request.engine.ahead = None


class DeviceRequest(StartedCall):
    """A started call on arrays of devices, which holds its arrays until it is complete.

    The nonblocking forms return it for arrays of devices. It makes progress in ``test`` and
    ``wait``, and before other calls on its communicator start. Pinned memory has room for a few
    pieces of a call. After a call with more pieces, a later call waits until the other ranks have
    called it, too.
    """

    _fatal = BaseException

    def __init__(self, call: AgreedCall, ring: Ring) -> None:
        job = call.job
        super().__init__(
            call.engine, ring.driver, ring.device, job.title, job.arrays, job.finished, job.before
        )
        self._chooser = call.devices.chooser()  # pieces may begin when the communicator is gone
        self._queue: StartQueue = call.devices.queue
        self._ring, self._job, self._events = ring, job, ring.spare
        self._blocking = call.blocking
        self._pieces: int | None = None
        if job.columns.counts is None or not job.columns.is_alltoall:
            self._pieces = self._pieces_of(job.columns.longest)
        self._copied = self._begun = self._ended = 0
        # A blocking call of one piece has nothing to overlap: it copies on the caller's stream.
        of_one_piece = self._blocking and self._pieces == 1
        self._uses_callers_stream = of_one_piece and len(self._streams) == 1 and not self._by_host
        self._reads = self._streams[0] if self._uses_callers_stream else ring.reads
        self._writes = self._streams[0] if self._uses_callers_stream else ring.writes
        self._filling: deque[Slot] = deque()
        self._working: deque[tuple[Slot, int, Piece, _core.Request | None]] = deque()
        self._agreement: tuple[Any, _core.Request | None] | None = None
        self._scratch = 0
        self._ready = [] if self._uses_callers_stream else self._follow()
        self._thread = threading.get_ident()
        _core.note_staged(self, True)
        _in_flight.add(self)

    def _moves(self) -> bool:
        self._move_queue(False, None)
        with self._guarded():
            while self._end(False, None):
                pass
        return self._is_finished

    def _enqueue(self, timeout: float | None) -> None:
        others = [] if self._blocking else self._others()
        if others:
            self._take_turns(others, timeout)
        self._move_queue(True, timeout)
        with self._guarded():
            while not self._is_finished:
                self._move_queue(True, timeout)  # another thread may have met an error
                self._end(True, timeout)

    def state(self) -> str:
        """Return the state of the call, for messages."""
        pieces = "?" if self._pieces is None else self._pieces
        return f"{self._title}: {self._ended} of {pieces} pieces have ended"

    def _awaited(self) -> _core.Request | None:
        """Return the request for which this call waits: a piece of it, or of a call before it."""
        first = next(iter([*self._queue.waiting]), self)  # other threads may change it
        holders = self._ring.next.holder, first._ring.next.holder
        calls: list[DeviceRequest] = [self, first, *(each for each in holders if each)]
        for each in calls:
            if each._pieces is None and each._agreement is not None:
                return each._agreement[1]
            for _, _, _, request in [*each._working][:1]:
                return request
        return None

    # -- the pieces ----------------------------------------------------------------------------

    def _others(self) -> list[DeviceRequest]:
        """Return the calls that this thread has in flight on other communicators."""
        return [
            each
            for each in _in_flight.copy()
            if each.engine is not self.engine and each._thread == self._thread
        ]

    def _take_turns(self, others: list[DeviceRequest], timeout: float | None) -> None:
        """Wait until the pieces have ended. Calls on other communicators make progress during the
        wait, because the other ranks may wait for these first.
        """
        wait = Wait(REQUESTS, lambda waited: self._look(waited, timeout))
        ended = 0
        while not self._is_finished:
            self._move_queue(False, timeout)
            with self._guarded():
                self._end(False, timeout)
                for each in others:
                    with contextlib.suppress(Exception):  # it keeps its error
                        each.test()
                if self._ended > ended:
                    ended = self._ended
                    wait.again()
                wait.turn()

    @property
    def _has_begun(self) -> bool:
        return self._begun == self._pieces

    def _move_queue(self, waits: bool, timeout: float | None) -> None:
        """Begin the pieces that can begin, and raise the error of this call, if any."""
        if self._error is None and not self._has_begun:
            with self.engine:
                self._queue.begin(self, waits, timeout)
        if self._error is not None:
            raise self._error

    def _pieces_of(self, longest: int) -> int:
        return max(1, -(-longest // self._job.columns.width))

    def begin(self, waits: bool, timeout: float | None) -> bool:
        """Begin the pieces that can begin, or with `waits` all; return whether all have begun.

        The caller is inside of the engine, and has begun all calls before. An error is kept.
        """
        try:
            with self._on():
                return self._begin(waits, timeout)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
            return True

    def _begin(self, waits: bool, timeout: float | None) -> bool:
        if self._pieces is None and not self._agree(waits, timeout):
            return False
        assert self._pieces is not None
        while self._begun < self._pieces:
            self._copy_in()
            if not self._filling:
                # Another thread may end that piece at the same time.
                holder = self._ring.next.holder
                if holder is not None and not holder._end(waits, timeout) and not waits:
                    return False
                continue
            slot = self._filling[0]
            ready = slot.filled if self._job.columns.inputs else slot.emptied
            if waits:
                self._driver.synchronize(ready)
            elif not self._driver.done(ready):
                return False
            self._filling.popleft()
            self._run(slot, timeout)
        return True

    def _agree(self, waits: bool, timeout: float | None) -> bool:
        """Exchange the length of the longest part on any rank, which gives the number of pieces.
        Return whether it is known.
        """
        if self._agreement is None:
            told = np.array([self._job.columns.longest], np.int64)
            span = _core.Span(told.ctypes.data, (1,), "int64", 8, told)
            options = MAX, 0, None, None, timeout, 1.0, 1.0, self._blocking
            request = self.engine.call_piece(ALLREDUCE, span, span, *options, 0)
            self._agreement = told, request
        told, request = self._agreement
        if request is not None:
            if waits:
                request.wait(timeout)
            elif not request.test():
                return False
        longest = max(int(told[0]), int(self._job.columns.longest))
        self._pieces = self._pieces_of(longest)
        return True

    def _follow(self) -> list[int]:
        """Return events after the present work on the caller's streams."""
        with self._on():
            events = [self._ring.spare.take() for _ in self._streams]
            for event, stream in zip(events, self._streams, strict=True):
                self._driver.record(event, stream)
        return events

    def _copy_in(self) -> None:
        """Copy pieces to all slots that are free."""
        job, ring = self._job, self._ring
        assert self._pieces is not None
        while self._copied < self._pieces and ring.next.holder is None:
            if self._copied == 0:
                for event in self._ready:
                    self._driver.wait(self._reads, event)
                if job.is_risky:
                    self._copy_aside()
            slot = ring.take(self, self._reads)
            self._filling.append(slot)
            if job.source is not None and job.columns.inputs:
                at = slot.address + job.columns.piece(self._copied).x * job.columns.itemsize
                array = self._scratch or job.source.address, job.parts
                job.columns.copy(self._driver, self._copied, at, array, False, self._reads)
                self._driver.record(slot.filled, self._reads)
            self._copied += 1

    def _copy_aside(self) -> None:
        """Copy the input on the device, where the output would overwrite it too early."""
        source = self._job.source
        assert source is not None
        try:
            self._scratch = self._driver.allocate(source.nbytes)
        except MemoryError as error:
            raise CommunicatorError(
                f"out overlaps x, and cuda:{source.device} has no memory for a copy of x of "
                f"{source.nbytes} bytes"
            ) from error
        self._driver.copy(self._scratch, source.address, source.nbytes, self._reads)

    def _run(self, slot: Slot, timeout: float | None) -> None:
        """Begin the collective of a piece on the host."""
        job, columns = self._job, self._job.columns
        piece = columns.piece(self._begun)
        dtype = job.arrays[0].dtype

        def span(start: int, count: int) -> _core.Span:
            address = slot.address + start * columns.itemsize
            return _core.Span(address, (count,), dtype, columns.itemsize, self._ring)

        x = span(piece.x, piece.x_count) if columns.inputs else None
        out = span(piece.out, piece.out_count) if columns.outputs else None
        request = self.engine.call_piece(
            job.kind,
            x,
            out,
            *job.arguments,
            timeout,
            *job.scales,
            self._blocking,
            job.whole,
            piece.counts,
            piece.receive_counts,
        )
        self._working.append((slot, self._begun, piece, request))
        self._begun += 1
        if self._blocking:
            self._end(True, timeout)

    def _end(self, waits: bool, timeout: float | None) -> bool:
        """End the first piece that has begun; return whether there was one and it has ended."""
        with self._lock:
            if not self._working:
                return False
            slot, j, piece, request = self._working[0]
            if request is not None:
                if waits:
                    request.wait(timeout)
                elif not request.test():
                    return False
            job = self._job
            with self._on():
                if job.target is not None and job.columns.outputs:
                    at = slot.address + piece.out * job.columns.itemsize
                    array = job.target.address, job.target_parts
                    for event in self._ready if self._ended == 0 else ():
                        self._driver.wait(self._writes, event)
                    job.columns.copy(self._driver, j, at, array, True, self._writes)
                self._driver.record(slot.emptied, self._writes)
                self._working.popleft()
                slot.holder = None
                self._ended += 1
                if self._ended == self._pieces:
                    self._finish()
            return True

    def _finish(self) -> None:
        """Order the caller's streams after the result."""
        job, ring = self._job, self._ring
        if job.target is not None and job.columns.outputs and not self._uses_callers_stream:
            self._arrived = ring.spare.take()
            self._driver.record(self._arrived, ring.writes)
            for stream in self._streams:
                self._driver.wait(stream, self._arrived)
        if self._scratch:
            self._driver.free(self._scratch)  # the host has waited for all reads of it
        for event in self._ready:
            ring.spare.give(event)
        self._is_finished = True
        _core.note_staged(self, False)
        _in_flight.discard(self)

    def _abandon(self) -> None:
        self._ring.is_lost = True
        _lost.extend((self, self._ring))
        _in_flight.discard(self)
        self._queue.discard(self)


def run(call: AgreedCall) -> Any:
    """Run a call by way of pinned memory. Collective."""
    devices = call.devices
    ring = devices.ring(call.device)
    try:
        request = DeviceRequest(call, ring)
    except BaseException as error:
        give_up(call.engine, call.job.title, error)
        raise
    devices.queue.add(request)
    devices.queue.begin(request, call.blocking, call.timeout)
    return request.wait(call.timeout) if call.blocking else request
