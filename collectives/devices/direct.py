"""The transports ipc and mpi: calls whose data never leaves the devices.

A call runs as on the host, by the same plan and executor, but in memory of the device: folds and
copies are enqueued on a stream (`passes`). By ipc, a rank publishes into a ring that all ranks have
mapped (`peers`). By mpi, the messages of the plan are sent from device to device. On the host, a
call ends as soon as all of its work is enqueued and all messages have arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectives import _core
from collectives._core import ALLTOALL, REDUCE_SCATTER
from collectives.devices import folds
from collectives.devices.arrays import DeviceArray
from collectives.devices.columns import Part
from collectives.devices.ipc import fold_of
from collectives.devices.passes import Passes
from collectives.devices.peers import Peers, sweep
from collectives.devices.requests import AgreedCall, DeviceCall, StartedCall
from collectives.errors import CommunicatorError
from collectives.text.words import plain


class DirectRequest(StartedCall):
    """A started call on arrays of a device, whose data goes from device to device.

    The nonblocking forms return it where the ranks map each other's device memory, and where MPI
    accepts device pointers. It makes progress in ``test`` and ``wait`` of any request, as calls on
    the host do.
    """

    def __init__(self, call: AgreedCall, peers: Peers, others: list[int]) -> None:
        job = call.job
        super().__init__(
            call.engine, call.driver, peers.device, job.title, job.arrays, job.finished, job.before
        )
        self._peers, self._job, self._timeout = peers, job, call.timeout
        self._events = peers.spare
        self._out_aside = 0
        try:
            self._follow([*self._streams, *(others if self._by_host else ())])
            self._begin(call.blocking)
            if self._request is None:
                self._finish()
        except MemoryError as error:
            self._fail(self._without_memory(error))
        except BaseException as error:
            self._fail(error)
        if self._error is not None:
            raise self._error
        if self._request is not None:
            _core.note_staged(self, True)

    def _moves(self) -> bool:
        return self._has_ended(lambda request: request.test())

    def _enqueue(self, timeout: float | None) -> None:
        self._has_ended(lambda request: (request.wait(timeout), True)[1])

    def state(self) -> str:
        """Return the state of the call, for messages."""
        state = None if self._request is None else self._request.state()
        return f"{self._title}: {state or 'all of it is enqueued'}"

    # -- the run -------------------------------------------------------------------------------

    def _has_ended(self, ends: Callable[[_core.Request], bool]) -> bool:
        """Return whether all of the call is enqueued; `ends` tests or waits for its request."""
        request = self._request
        if request is not None:
            try:
                if not ends(request):
                    return False
                with self._lock:
                    if self._request is not None:
                        self._finish()
                        self._request = None
            except BaseException as error:
                if not isinstance(error, KeyboardInterrupt):
                    self._fail(error)
                raise
        if self._error is not None:
            raise self._error
        return True

    def _follow(self, streams: list[int]) -> None:
        """Order the stream of the peers after streams of the caller's device."""
        driver, peers = self._driver, self._peers
        device = self._job.arrays[0].device
        with peers.lock, driver.on(device):
            event = driver.event() if device != peers.device else peers.spare.take()
            for stream in streams:
                driver.record(event, stream)
                driver.wait(peers.stream, event)
            if device != peers.device:
                driver.end_event(event)
            else:
                peers.spare.give(event)

    def _begin(self, blocking: bool) -> None:
        """Enqueue the first work, and start the operation."""
        job, columns = self._job, self._job.columns
        fold = fold_of(job)
        assert fold is not None
        array = job.arrays[0]
        prescale, postscale = job.scales
        factor = None
        if fold.op and array.dtype in folds.SCALED:
            size = self.engine.size if fold.is_average else 1
            factor = folds.scale_factor(array.dtype, postscale, size)
        self._passes = Passes(self._peers, fold.op, array.dtype, array.itemsize, factor)
        x = out = None
        if columns.outputs:
            target = job.target or job.source
            assert target is not None
            out = self._span(target, self._place_of_output(target))
        if job.source is not None and columns.inputs:
            x = self._span(job.source, self._place_of_input(job.source, prescale))
        elif job.source is not None and not columns.outputs:
            x = self._span(job.source, job.source.address)
        counts = job.columns.counts, job.columns.receive_counts
        self._request = self.engine.call_piece(
            job.kind,
            x,
            out,
            *job.arguments,
            self._timeout,
            prescale,
            postscale,
            blocking,
            job.whole,
            *counts,
            on=self._passes,
        )

    def _span(self, array: DeviceArray, address: int) -> _core.Span:
        parts = self._job.target_parts if array is self._job.target else self._job.parts
        count = array.count if parts is None else sum(each.length for each in parts)
        return _core.Span(address, (count,), array.dtype, array.itemsize, self._passes, True)

    def _is_direct(self, array: DeviceArray, parts: list[Part] | None) -> bool:
        """Return whether kernels read or write an array in place."""
        if array.device != self._peers.device:
            return False
        return parts is None or _in_a_row(parts)

    def _place_of_input(self, source: DeviceArray, prescale: float) -> int:
        """Return the address of the input: the array's, or that of a copy, which is made here."""
        job, passes = self._job, self._passes
        is_direct = self._is_direct(source, job.parts)
        is_direct &= prescale == 1.0 and not _is_overwritten(job)
        start = job.parts[0].start if job.parts else 0
        if is_direct or not source.count:
            return source.address + start * source.itemsize
        at = passes.arena(max(source.nbytes, 1))
        elements = self._copy_parts(at, source, job.parts, False)
        if prescale != 1.0 and elements:
            passes.scale(at, elements, folds.scale_factor(source.dtype, prescale))
        return at

    def _place_of_output(self, target: DeviceArray) -> int:
        """Return the address of the output: the array's, or that of other memory."""
        parts = self._job.target_parts
        if self._is_direct(target, parts) or not target.count:
            start = parts[0].start if parts else 0
            return target.address + start * target.itemsize
        self._out_aside = self._passes.arena(max(target.nbytes, 1))
        return self._out_aside

    def _copy_parts(
        self, at: int, array: DeviceArray, parts: list[Part] | None, incoming: bool
    ) -> int:
        """Copy the parts of an array to or from memory in which they lie in a row; return their
        elements.
        """
        peers, total = self._peers, 0
        with peers.lock, self._driver.on(peers.device):
            for start, length in [Part(0, array.count)] if parts is None else parts:
                here = array.address + start * array.itemsize
                there = at + total * array.itemsize
                ends = (here, there) if incoming else (there, here)
                if length:
                    self._driver.copy(*ends, length * array.itemsize, peers.stream)
                total += length
        return total

    def _finish(self) -> None:
        """Order the caller's streams after the result."""
        job, peers, driver = self._job, self._peers, self._driver
        if self._out_aside and job.target is not None:
            self._copy_parts(self._out_aside, job.target, job.target_parts, True)
        self._passes.release()
        self._arrived = peers.spare.take()
        with peers.lock:
            with driver.on(peers.device):
                driver.record(self._arrived, peers.stream)
            with driver.on(job.arrays[0].device):
                for stream in self._streams:
                    driver.wait(stream, self._arrived)
        self._is_finished = True
        _core.note_staged(self, False)

    def _without_memory(self, error: MemoryError) -> CommunicatorError:
        made = CommunicatorError(
            f"cuda:{self._peers.device} has no memory for {self._job.title}: {plain(error)}"
        )
        made.__cause__ = error
        return made

    def _abandon(self) -> None:
        self._peers.is_lost = True
        _lost.append(self)


# Memory that the device may still touch after an error: it is kept until the process ends.
_lost: list[DirectRequest] = []


def _in_a_row(parts: list[Part]) -> bool:
    """Return whether parts lie one after the other."""
    end = parts[0].start if parts else 0
    for start, length in parts:
        if start != end:
            return False
        end += length
    return True


def _is_overwritten(job: DeviceCall) -> bool:
    """Return whether the output overlaps the input, unless both are the same part."""
    source, target = job.source, job.target
    if source is None or target is None or job.kind not in (ALLTOALL, REDUCE_SCATTER):
        return False
    if not source.overlaps(target):
        return False
    return job.kind == ALLTOALL or source.address == target.address


def run(call: AgreedCall, peers: Peers) -> Any:
    """Run a call in the memory that the ranks have mapped, or by messages from device to device.
    Collective.
    """
    devices = call.devices
    sweep()
    devices.queue.begin(None, True, None)
    call.engine.check_usable()
    ring = devices.rings.get(call.device)
    others = [] if ring is None else [ring.reads, ring.writes]
    made = DirectRequest(call, peers, others)
    return made.wait(call.timeout) if call.blocking else made
