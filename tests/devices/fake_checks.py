"""Methods of the fake driver for tests, beside the interface to a GPU's runtime."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from fake_errors import Leak, Race, StillInUse
from fake_handles import Event, Graph, call
from fake_memory import Allocation, Span, Table
from fake_order import Order, Stream

T = TypeVar("T")


class Checks:
    """The half of `fake_gpu.FakeDriver` that only tests call."""

    order: Order
    table: Table
    calls: Counter[str]  # of each method
    faults: list[BaseException]
    _streams: dict[int, Stream]
    _events: dict[int, Event]
    _capturing: dict[int, Graph]
    _dropped: deque[tuple[int, Stream]]
    _failures: dict[str, deque[tuple[BaseException, bool]]]

    # -- memory --------------------------------------------------------------------------------

    @call
    def allocate_managed(self, nbytes: int) -> int:
        """Return the address of memory that the host may use as well, while nothing else does."""
        return self._allocate("managed", nbytes).address

    def free_on(self, address: int, stream: Stream) -> None:
        """Give memory back in the order of a stream, as the pools of frameworks do."""
        found = self.table.begin(address, "free", ("device", "managed"))

        def run() -> None:
            found.check_margins()
            found.unmap()

        try:
            whole = [(found, Span(address, found.nbytes), True)]
            found.withdraw()
            self.order.enqueue(stream, "the end of an array", run, whole)
            self._forget(found)
        except (Race, StillInUse) as error:
            self.faults.append(error)
            raise

    def drop(self, address: int, stream: Stream) -> None:
        """Give memory back like `free_on`, at the beginning of the next call of the driver."""
        self._dropped.append((address, stream))

    def _check_host(self, found: Allocation, span: Span, is_write: bool) -> None:
        for other in self.order.settle(found):
            if (is_write or other.is_write) and span.overlaps(other.span):
                raise Race(
                    f"the host {'writes' if is_write else 'reads'} {found} while {other.op} is in "
                    "flight"
                )

    @call
    def read(self, address: int, nbytes: int) -> bytes:
        """Return bytes of any memory; the host must have seen complete what writes them."""
        span = Span(address, nbytes)
        found = self.table.holding(span)
        self._check_host(found, span, False)
        return found.rows(span).tobytes()

    @call
    def write(self, address: int, data: bytes) -> None:
        """Write bytes of any memory; the host must have seen complete what uses them."""
        span = Span(address, len(data))
        found = self.table.holding(span)
        self._check_host(found, span, True)
        found.rows(span)[0] = np.frombuffer(data, np.uint8)

    @call
    def fill(self, address: int, data: bytes, stream: int) -> None:
        """Let bytes be written on a stream, as by somebody's kernel."""
        queue, span = self._stream(stream), Span(address, len(data))
        found = self.table.holding(span)

        def run() -> None:
            found.rows(span)[0] = np.frombuffer(data, np.uint8)

        self.order.enqueue(queue, "fill", run, [(found, span, True)])

    @call
    def fetch(self, address: int, nbytes: int, stream: int) -> bytes:
        """Return bytes as a kernel on a stream reads them now; waits for it."""
        queue, span = self._stream(stream), Span(address, nbytes)
        found = self.table.holding(span)
        result: list[bytes] = []

        def run() -> None:
            result.append(found.rows(span).tobytes())

        self.order.finish(self.order.enqueue(queue, "fetch", run, [(found, span, False)]))
        return result[0]

    # -- streams -------------------------------------------------------------------------------

    @call
    def blocking_stream(self) -> int:
        """Make a stream that waits for the default stream, and the default stream for it."""
        return self._make_stream(is_blocking=True)

    @call
    def drain(self, stream: int) -> None:
        """Wait for all that is on a stream."""
        self.order.finish(self.order.enqueue(self._stream(stream), "drain"))

    @call
    def stream_object(self, stream: int) -> Stream:
        """Return the stream that a handle stands for, on the current device."""
        return self._stream(stream)

    @contextlib.contextmanager
    def capturing(self, stream: int) -> Iterator[Graph]:
        """Capture a stream into a graph; only `communicate` may enqueue something on it."""
        graph = self._capturing[stream] = Graph(self)
        try:
            yield graph
        finally:
            del self._capturing[stream]

    # -- faults --------------------------------------------------------------------------------

    def fail_next(self, name: str, error: BaseException, on_device: bool = False) -> None:
        """Let the next call of a method raise, or a copy or kernel fail when it runs."""
        self._failures.setdefault(name, deque()).append((error, on_device))

    def forget(self) -> list[BaseException]:
        """Forget all faults, because the test provoked them; return them."""
        with self.order.changed:
            found, self.faults, self.order.broken = self.faults, [], None
            return found

    def check_nothing_left(self) -> None:
        """Wait for all streams; raise the first fault, or an error with the remaining objects."""
        with self.order.changed:
            while self._dropped:
                self.free_on(*self._dropped.popleft())
            if self.faults:
                raise self.faults[0]
            self.order.idle()
            left = [str(each) for each in self.table.live.values() if not each.is_of_array]
            left += [f"{each} that was made at {each.where}" for each in self._streams.values()]
            left += [f"an event that was made at {each.where}" for each in self._events.values()]
        if left:
            raise Leak("left at the end: " + "; ".join(left))

    def close(self) -> None:
        """End the threads, and unmap all memory."""
        self.order.close()
        is_hung = any(each.thread and each.thread.is_alive() for each in self.order.streams)
        for allocation in [] if is_hung else list(self.table.live.values()):
            self._forget(allocation)
            allocation.unmap()

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, kind: type | None, *rest: Any) -> None:
        try:
            if kind is None:
                self.check_nothing_left()
        finally:
            self.close()
