"""Messages from and to arrays of devices, each as a whole through pinned memory of the host.

The other rank may have its array on a device or in host memory; the message is the same.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from collectives import _core
from collectives.devices.arrays import DeviceArray
from collectives.devices.driver import Driver, Held, Pinned
from collectives.devices.requests import StartedCall
from collectives.devices.ring import Ring
from collectives.errors import ArgumentError, BufferError, CommunicatorError
from collectives.text.words import plain

LEAST = 1 << 16  # bytes of the smallest block


class Block:
    """Pinned memory for one message, or one array of a submission."""

    address: int
    nbytes: int

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self.pinned: Pinned = driver.pinned(nbytes)
        self.address, self.nbytes = self.pinned.address, nbytes
        self.emptied: int = driver.event()  # the copy to the device has ended


class Blocks(Held):
    """The pinned memory of a communicator for arrays that are copied from and to a device as a
    whole.
    """

    driver: Driver
    device: int

    def __init__(self, driver: Driver, device: int) -> None:
        self.driver, self.device = driver, device
        self.spare: list[Block] = []
        self.all: list[Block] = []
        self.is_lost = False  # MPI may still touch a block after an error
        self.is_closed: bool = False
        self.lock: threading.Lock = threading.Lock()

    def take(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes` bytes."""
        with self.lock, self.driver.on(self.device):
            for block in self.spare:
                if nbytes <= block.nbytes <= max(LEAST, 2 * nbytes):
                    self.spare.remove(block)
                    break
            else:
                try:
                    block = Block(self.driver, max(LEAST, nbytes))
                except MemoryError as error:
                    raise CommunicatorError(
                        f"there is no pinned memory of {nbytes} bytes for data from "
                        f"or to cuda:{self.device}: {plain(error)}"
                    ) from error
                self.all.append(block)
            self.driver.synchronize(block.emptied)
        return block

    def give(self, block: Block) -> None:
        """Take a block back."""
        with self.lock:
            self.spare.append(block)

    def close(self) -> None:
        """Free all blocks, when no message is in flight."""
        self.is_closed = True
        with self.driver.on(self.device):
            for block in [] if self.is_lost else self.all:
                self.driver.synchronize(block.emptied)
                self.driver.end_event(block.emptied)
                block.pinned.free()
        self.all, self.spare = [], []

    def _drop(self) -> None:
        self.close()


class MessageRequest(StartedCall):
    """A message from or to a device that was started. It is used like a `DeviceRequest`.

    A message is on the device only when ``wait`` has returned or ``test`` has returned True.
    """

    def __init__(
        self,
        engine: _core.Engine,
        blocks: Blocks,
        ring: Ring,
        source: DeviceArray | None,
        target: DeviceArray | None,
        result: Any,
    ) -> None:
        arrays = [] if target is None else [target]
        super().__init__(engine, blocks.driver, ring.device, "a message", arrays, lambda: result)
        self._blocks, self._ring, self._target = blocks, ring, target
        self._ready: int | None = None  # an event after the caller's work on the target
        self._sent = None if source is None else self._filled(source)
        self._got = None if target is None else blocks.take(target.nbytes)
        for stream in self._streams:
            with self._on():
                self._ready = ring.spare.take()
                self._driver.record(self._ready, stream)

    def start(self, message: Callable[..., Any], source: DeviceArray | None, blocking: bool) -> Any:
        """Have `message` send and receive spans of host memory; wait for it if it is `blocking`."""
        spans = _span(source, self._sent), _span(self._target, self._got)
        with self._watched():
            try:
                started = message(*spans, blocking)
            except ArgumentError:  # nothing was sent
                self._give_back()
                raise
        if blocking:
            return self.wait()
        self._request = started
        return self

    def _moves(self) -> bool:
        with self._watched():
            if self._request is not None and not self._request.test():
                return False
        self._deliver()
        return True

    def _enqueue(self, timeout: float | None) -> None:
        with self._watched():
            if self._request is not None:
                self._request.wait(timeout)
        self._deliver()

    def state(self) -> str:
        """Return the state of the call, for messages."""
        state = None if self._request is None else self._request.state()
        return state or "the message has arrived"

    def __repr__(self) -> str:
        return f"<MessageRequest: {self.state()}>"

    @contextlib.contextmanager
    def _watched(self) -> Any:
        try:
            yield
        finally:
            if self.engine.broken is not None:
                self._blocks.is_lost = True

    def _give_back(self) -> None:
        """Give the blocks back, when no message was started."""
        for block in (self._sent, self._got):
            if block is not None:
                self._blocks.give(block)
        if self._ready is not None:
            self._ring.spare.give(self._ready)

    def _filled(self, source: DeviceArray) -> Block:
        """Copy an array to the host, and wait for it."""
        driver, ring = self._driver, self._ring
        block = self._blocks.take(source.nbytes)
        with self._on():
            event = ring.spare.take()
            if source.stream is not None:
                driver.record(event, source.stream)
            ring.fetch(block.address, source, [] if source.stream is None else [event])
            driver.record(event, ring.reads)
            driver.synchronize(event)
            ring.spare.give(event)
        return block

    def _deliver(self) -> None:
        """Copy the received message to the device, once."""
        with self._lock:
            if self._is_finished:
                return
            self._is_finished = True
            if self._sent is not None:
                self._blocks.give(self._sent)
            target, block = self._target, self._got
            if target is None or block is None:
                return
            ring, after = self._ring, [] if self._ready is None else [self._ready]
            with self._on():
                ring.store(target, block.address, after, block.emptied)
                if target.stream is not None:
                    self._driver.wait(target.stream, block.emptied)
            for event in after:
                ring.spare.give(event)
            self._arrived = block.emptied
            self._blocks.give(block)

    def _has_arrived(self) -> bool:
        return self._blocks.is_closed or super()._has_arrived()

    def _arrive(self, timeout: float | None) -> None:
        if not self._blocks.is_closed:
            super()._arrive(timeout)


def exchange(
    engine: _core.Engine,
    blocks: Blocks,
    ring: Ring,
    arrays: tuple[DeviceArray | None, DeviceArray | None],
    message: Callable[..., Any],
    result: Any,
    blocking: bool,
) -> Any:
    """Send an array of a device, receive one, or both."""
    source, target = arrays
    if source is not None and target is not None and source.overlaps(target):
        raise BufferError("out overlaps x; pass arrays that share no memory")
    request = MessageRequest(engine, blocks, ring, source, target, result)
    return request.start(message, source, blocking)


def _span(array: DeviceArray | None, block: Block | None) -> _core.Span | None:
    """Return the span of a block that an array uses."""
    if array is None or block is None:
        return None
    return _core.Span(block.address, (array.count,), array.dtype, array.itemsize, block)
