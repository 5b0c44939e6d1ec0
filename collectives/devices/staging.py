"""The staging transport: calls on arrays of devices, by way of pinned memory of the host.

A call is cut into pieces (`columns`). Each of them is copied to a slot of the ring, goes through
the ordinary collective of the host there, and is copied to the device::

    copied   on its way from the device, in order of the caller's stream
    begun    its collective on the host has begun
    ended    its result is on its way to the device

All ranks begin the pieces of all calls in the same order: that of the calls. So a call begins when
those before it have, and the engine has them begin before it starts anything else (`Line`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from collectives import _core
from collectives.devices.columns import Piece
from collectives.devices.driver import Driver
from collectives.devices.job import Job, give_up
from collectives.devices.ring import Ring, Slot
from collectives.errors import CommunicatorError
from collectives.process.waiting import REQUESTS, Wait
from collectives.reductions import MAX
from collectives.text.origin import place

ALLREDUCE = _core.COLLECTIVES.index("allreduce")

# What MPI or a device may still touch after an error: it is kept until the process ends.
_lost: list[object] = []
_in_flight: set[DeviceRequest] = set()


class Line:
    """The calls on devices of one communicator that wait to begin, in their order.

    As long as there are some, the engine's `ahead` begins them.
    """

    def __init__(self) -> None:
        self.waiting: deque[DeviceRequest] = deque()
        self.is_moving = False

    def add(self, request: DeviceRequest) -> None:
        """Put a request at the end. Local."""
        self.waiting.append(request)
        request.engine.ahead = self.begin_all

    def begin_all(self) -> None:
        """Begin all calls that wait. Local, unless they have more pieces than there are slots."""
        self.begin(None, True, None)

    def begin(self, last: DeviceRequest | None, waits: bool, timeout: float | None) -> bool:
        """Begin the calls that wait, and say whether all of them have begun. Local.

        The caller is inside of the engine. Errors are kept by the requests that they belong to.
        """
        if self.is_moving:  # by a call inside of one of theirs
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
        """Take a request out that has failed. Local."""
        if request in self.waiting:
            self.waiting.remove(request)
        if not self.waiting:
            request.engine.ahead = None


class DeviceRequest:
    """A call on arrays of a device that was started, and holds its arrays until it is complete.

    The nonblocking forms return it for arrays of devices. It moves on in ``test`` and ``wait``, and
    before other calls on its communicator start. Pinned memory has room for some pieces of a call
    only: before one with more pieces, other calls wait until the other ranks have come to it.
    """

    def __init__(
        self,
        engine: _core.Engine,
        line: Line,
        ring: Ring,
        job: Job,
        blocking: bool,
        chooser: object,
    ) -> None:
        self._arrived: int | None = None  # an event: the result is on the device
        self._chooser = chooser  # of its pieces, which may begin when the communicator is gone
        self.engine, self._line, self._ring, self._job = engine, line, ring, job
        self._driver: Driver = ring.driver
        self._blocking = blocking
        self._pieces: int | None = None
        if job.columns.counts is None or not job.columns.is_alltoall:
            self._pieces = self._pieces_of(job.columns.longest)
        self._copied = self._begun = self._ended = 0
        self._filling: deque[Slot] = deque()
        self._working: deque[tuple[Slot, int, Piece, _core.Request | None]] = deque()
        self._agreement: tuple[Any, _core.Request | None] | None = None
        self._scratch = 0
        self._is_finished = False
        self._error: BaseException | None = None
        self._placed, self._got = False, None
        self._lock = threading.RLock()
        self.origin = None
        self._place = place()
        streams = {each.stream for each in job.arrays}
        self._by_host = None in streams
        self._streams = [each for each in streams if each is not None]
        self._ready = self._follow()
        self._thread = threading.get_ident()
        _core.note_staged(self, True)
        _in_flight.add(self)

    # -- what the caller sees ------------------------------------------------------------------

    def test(self) -> bool:
        """Move the call on, and return whether its result is in order of the caller's stream.
        Local.

        Returns
        -------
        bool

        Raises
        ------
        CollectivesError
            As for `Request.test`.
        """
        self._move_line(False, None)
        with self._guarded():
            while self._end(False, None):
                pass
            if not self._is_finished or (self._job.before and not self._job.before[0].test()):
                return False
            if self._by_host and self._arrived is not None:
                with self._on():
                    if not self._driver.done(self._arrived):
                        return False
        self._result()
        return True

    def wait(self, timeout: float | None = None, host: bool = False) -> Any:
        """Wait until the result is in order of the caller's stream, and return it.
        Local, but it waits for what the other ranks do.

        Work that is put on the stream later sees the result. The stream is the one that was the
        current one of the array's library when the call was made. Where the library does not say
        which one that is (DLPack, or an interface without a stream), the result is complete.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which it raises `StallError`, by default the communicator's. It limits
            each wait for other ranks by itself; there may be as many as pieces.
        host : bool
            Whether to wait until the result is complete, so that the host may read it.

        Returns
        -------
        array or None
            What the blocking form returns.

        Raises
        ------
        CollectivesError
            As for `Request.wait`.
        """
        if timeout is not None:
            _core.seconds(timeout)
        others = [] if self._blocking else self._others()
        if others:
            self._take_turns(others, timeout)
        self._move_line(True, timeout)
        with self._guarded():
            while not self._is_finished:
                self._move_line(True, timeout)  # another thread may have met an error
                self._end(True, timeout)
            if (host or self._by_host) and self._arrived is not None:
                with self._on():
                    self._driver.synchronize(self._arrived)
        return self._result()

    def state(self) -> str:
        """Return what has become of it, for messages. Local."""
        pieces = "?" if self._pieces is None else self._pieces
        return f"{self._job.title}: {self._ended} of {pieces} pieces have ended"

    def where(self) -> str:
        """Return the place in the program that started it. Local."""
        return self._place

    def __repr__(self) -> str:
        state = f"{self._job.title}: complete" if self._is_finished else self.state()
        return f"<DeviceRequest of {state}>"

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._arrived is not None and not is_ending():
            self._ring.give(self._arrived)

    def _look(self, waited: float, timeout: float | None = None) -> None:
        """End what it waits for if that has `waited` too long. Local."""
        awaited = self._awaited()
        if awaited is not None:
            awaited._look(waited, timeout)

    def _awaited(self) -> _core.Request | None:
        """Return what other ranks have to do next: a piece of this call, or of one before it."""
        first = next(iter([*self._line.waiting]), self)  # other threads may change it
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
        """Return what this thread has in flight on other communicators."""
        return [
            each
            for each in _in_flight.copy()
            if each.engine is not self.engine and each._thread == self._thread
        ]

    def _take_turns(self, others: list[DeviceRequest], timeout: float | None) -> None:
        """Wait until the pieces have ended, and move calls on other communicators on: the other
        ranks may wait for these first.
        """
        wait = Wait(REQUESTS, lambda waited: self._look(waited, timeout))
        ended = 0
        while not self._is_finished:
            self._move_line(False, timeout)
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

    def _move_line(self, waits: bool, timeout: float | None) -> None:
        """Begin what can be begun, and raise what went wrong."""
        if self._error is None and not self._has_begun:
            with self.engine:
                self._line.begin(self, waits, timeout)
        if self._error is not None:
            raise self._error

    def _pieces_of(self, longest: int) -> int:
        return max(1, -(-longest // self._job.columns.width))

    def begin(self, waits: bool, timeout: float | None) -> bool:
        """Begin as many pieces as can be, and say whether all have begun. Local.

        The caller is inside of the engine, and has begun all calls before. An error is kept.

        Parameters
        ----------
        waits : bool
            Whether to wait until all have begun.
        timeout : float or None
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
                # Another thread may end that piece meanwhile.
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
        """Find out the longest part on any rank, and by that the number of pieces."""
        if self._agreement is None:
            told = np.array([self._job.columns.longest], np.int64)
            span = _core.Span(told.ctypes.data, (1,), "int64", 8, told)
            options = MAX, 0, None, timeout, 1.0, 1.0, self._blocking
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
        """Have events stand for the work of the caller's streams up to now."""
        with self._on():
            events = [self._ring.event() for _ in self._streams]
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
                    self._driver.wait(ring.reads, event)
                if job.is_risky:
                    self._copy_aside()
            slot = ring.take(self)
            self._filling.append(slot)
            if job.source is not None and job.columns.inputs:
                at = slot.address + job.columns.piece(self._copied).x * job.columns.itemsize
                array = self._scratch or job.source.address, job.parts
                job.columns.copy(self._driver, self._copied, at, array, False, ring.reads)
                self._driver.record(slot.filled, ring.reads)
            self._copied += 1

    def _copy_aside(self) -> None:
        """Read from a copy on the device what would be overwritten too early."""
        source = self._job.source
        assert source is not None
        try:
            self._scratch = self._driver.allocate(source.nbytes)
        except MemoryError as error:
            raise CommunicatorError(
                f"out overlaps x, and cuda:{source.device} has no memory for a copy of x of "
                f"{source.nbytes} bytes"
            ) from error
        self._driver.copy(self._scratch, source.address, source.nbytes, self._ring.reads)

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
        """End the piece that was begun first; say whether there was one, and it has."""
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
                        self._driver.wait(self._ring.writes, event)
                    job.columns.copy(self._driver, j, at, array, True, self._ring.writes)
                self._driver.record(slot.emptied, self._ring.writes)
                self._working.popleft()
                slot.holder = None
                self._ended += 1
                if self._ended == self._pieces:
                    self._finish()
            return True

    def _finish(self) -> None:
        """Order the caller's streams after the result."""
        job, ring = self._job, self._ring
        if job.target is not None and job.columns.outputs:
            self._arrived = ring.event()
            self._driver.record(self._arrived, ring.writes)
            for stream in self._streams:
                self._driver.wait(stream, self._arrived)
        if self._scratch:
            self._driver.free(self._scratch)  # it was read: the host has waited for that
        for event in self._ready:
            ring.give(event)
        self._is_finished = True
        _core.note_staged(self, False)
        _in_flight.discard(self)

    def _result(self) -> Any:
        """Return what the caller gets, once it is there."""
        with self._lock:
            if not self._placed:
                self._got, self._placed = self._job.finished(), True
            return self._got

    # -- errors --------------------------------------------------------------------------------

    def _on(self) -> Any:
        return self._driver.on(self._ring.device)

    def _guarded(self) -> _Guard:
        return _Guard(self)

    def _fail(self, error: BaseException) -> None:
        """Keep an error; nobody may touch again what MPI or the device still might."""
        if self._error is not None:
            return
        self._error = error
        if self._is_finished:
            return
        self._ring.is_lost = True
        _lost.extend((self, self._ring))
        _core.note_staged(self, False)
        _in_flight.discard(self)
        self._line.discard(self)
        give_up(self.engine, self._job.title, error)


class _Guard:
    """A context that keeps the error of a request."""

    def __init__(self, request: DeviceRequest) -> None:
        self.request = request

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.request._fail(error)
