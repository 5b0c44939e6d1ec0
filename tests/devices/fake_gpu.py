"""A driver for GPUs that are not there, for tests that try to make the library fail.

::

    with FakeDriver(devices=2, mode="lazy", seed=0) as driver:
        ...  # leftovers at the end are an error, and so is each fault that was raised before

Device memory cannot be touched by the host, streams run later on threads of their own, and each
pair of accesses without an order is an error. `fake_memory` has the memory, `fake_order` the
streams and clocks, `fake_shared` events between processes, `fake_arrays` arrays for tests.

Not found are kernels that touch more than `accesses` says (beyond the end of memory they end
the process), races that another thread of the host prevents or not (the host counts as one), and a
host that reads less than whole pages of pinned memory too early (it gets poison). A race in memory
that was exported counts only while the earlier operation has not run: another process may have said
that it has (`fake_log`).
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import itertools
import struct
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fake_memory
import fake_shared
import numpy as np
from fake_checks import Checks
from fake_errors import (
    InvalidArgument,
    InvalidHandle,
    Stalled,
    StillInUse,
    WrongDevice,
)
from fake_handles import Accesses, Event, Graph, Kernel, Pinned, call
from fake_memory import Allocation, Span, Table
from fake_nccl import FakeNccl
from fake_order import Order, Stream

from collectives.devices.driver import Location

DEFAULT, LEGACY, PER_THREAD = 0, 1, 2  # streams that nobody makes
MOST_THREADS, MOST_BLOCKS, MOST_ARGUMENTS = 1024, 2**31 - 1, 4096


class FakeDriver(Checks):
    """An implementation of `collectives.devices.driver.Driver`.

    Parameters
    ----------
    devices : int
        How many there are.
    mode : str
        When streams run: "fast", "random" or "lazy"; see `fake_order.Order`.
    seed : int
        Of the mode "random".
    memory : int
        Bytes of each device.
    deadline : float
        Seconds for which anything is waited.
    patience : float, optional
        Seconds after which streams run in the mode "lazy", though nobody asks: for programs that
        wait by other means than the driver for work on streams, like messages and flags.
    reuses_addresses : bool
        Whether memory that is made may get the address of memory that was freed. If not, each use
        after free is found.
    compile_kernel : callable, optional
        From source and name of a kernel, a function of blocks, threads and arguments.
    accesses : callable, optional
        From name and arguments of a launch, its `Accesses`.
    identities : sequence of str, optional
        What tells each device from those of other processes; by default they are the same.
    is_open : bool
        Whether this process may touch the memory of devices, as a CUDA-aware MPI does.
    nccl : str, optional
        Why there is no NCCL; by default there is one.
    """

    def __init__(
        self,
        devices: int = 2,
        mode: str = "random",
        seed: int = 0,
        *,
        memory: int = 1 << 30,
        deadline: float = 20.0,
        patience: float | None = None,
        reuses_addresses: bool = False,
        compile_kernel: Callable[[str, str], Callable[[int, int, bytes], None]] | None = None,
        accesses: Callable[[str, bytes], Accesses] | None = None,
        processors: int = 4,
        identities: Sequence[str] | None = None,
        is_open: bool = False,
        nccl: str | None = None,
    ) -> None:
        if not faulthandler.is_enabled():  # a host access to device memory ends the process
            with contextlib.suppress(Exception):
                faulthandler.enable(sys.__stderr__)
        self.order = Order(mode, seed, deadline, patience)
        self.table = Table()
        self.calls: Counter[str] = Counter()
        self.faults: list[BaseException] = []
        self.used = [0] * devices
        self._devices, self._memory, self._processors = devices, memory, processors
        self._reuses, self._is_open = reuses_addresses, is_open
        self._identities = identities or [f"fake {number}" for number in range(devices)]
        self._nccl = nccl
        self._compile, self._accesses = compile_kernel, accesses
        self._compiled: dict[tuple[str, str, int], Kernel] = {}
        self._local = threading.local()
        self._handles = itertools.count(0x7F0010, 0x10)
        self._streams: dict[int, Stream] = {}
        self._unmade: dict[tuple[int, int], Stream] = {}  # by device and thread; default: thread 0
        self._events: dict[int, Event] = {}
        self._capturing: dict[int, Graph] = {}
        self._dropped: deque[tuple[int, Stream]] = deque()
        self._failures: dict[str, deque[tuple[BaseException, bool]]] = {}
        self._failing: BaseException | None = None

    def _begin(self, name: str) -> None:
        while self._dropped:
            self.free_on(*self._dropped.popleft())
        self.order.raise_broken()
        self._failing = None
        if self._failures.get(name):
            error, is_late = self._failures[name].popleft()
            if is_late:
                self._failing = error
                return
            try:
                raise error
            finally:
                del error  # it has this frame, and nothing that calls it is to be kept

    # -- devices -------------------------------------------------------------------------------

    def devices(self) -> int:
        return self._devices

    @property
    def current(self) -> int:
        """The current device of this thread."""
        return getattr(self._local, "device", 0)

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        if not 0 <= device < self._devices:
            error = WrongDevice(f"there is no device {device} among {self._devices}")
            self.faults.append(error)
            raise error
        before = self.current
        self._local.device = device
        try:
            yield
        finally:
            self._local.device = before

    def processors(self) -> int:
        return self._processors

    def identity(self, device: int) -> str:
        return self._identities[device]

    def nccl(self) -> FakeNccl:
        if self._nccl is not None:
            raise ImportError(self._nccl)
        return FakeNccl(self)

    @call
    def place(self, address: int) -> Location:
        found = self.table.find(address)
        if found is None:
            if self.table.story(address) is not None:
                self.table.at(address)
            return Location("host", -1)
        if found.kind == "pinned":
            return Location("host", -1)
        return Location("managed" if found.kind == "managed" else "device", found.device)

    # -- memory --------------------------------------------------------------------------------

    @call
    def allocate(self, nbytes: int) -> int:
        return self._allocate("device", nbytes).address

    def _allocate(self, kind: str, nbytes: int) -> Allocation:
        if nbytes <= 0:
            raise InvalidArgument(f"memory of {nbytes} bytes")
        if kind != "pinned":
            free = self._memory - self.used[self.current]
            if nbytes > free:
                raise MemoryError(f"{nbytes} bytes on device {self.current}, which has {free}")
            self.used[self.current] += nbytes
        options = {"reuses": self._reuses, "is_host_visible": self._is_open}
        found = Allocation(kind, self.current, nbytes, **options)
        self.table.add(found)
        if found.is_host_visible:
            self.order.visible.append(found)
        return found

    def array(self, shape: tuple[int, ...], dtype: Any, address: int, owner: Any) -> Any:
        from fake_arrays import Array, Borrowed

        memory: Any = Borrowed(address, owner) if address else None
        return Array(self, shape, np.dtype(dtype).name, device=self.current, memory=memory)

    def selected(self) -> int:
        return self.current

    @call
    def free(self, address: int) -> None:
        self._free(self.table.begin(address, "free", ("device", "managed")))

    @call
    def free_pinned(self, address: int) -> None:
        """Give pinned memory back."""
        self._free(self.table.begin(address, "free", ("pinned",)))

    def _free(self, found: Allocation) -> None:
        self._check_unused(found)
        found.check_margins()
        found.withdraw()
        self._forget(found)
        found.unmap()

    def _check_unused(self, found: Allocation) -> None:
        left = self.order.settle(found)
        if left:
            raise StillInUse(f"{found} is given back while {left[-1].op} is in flight")

    def _forget(self, found: Allocation) -> None:
        self.table.remove(found)
        if found.is_host_visible:
            self.order.visible.remove(found)
        if found.kind in ("device", "managed"):
            self.used[found.device] -= found.nbytes

    @call
    def pinned(self, nbytes: int) -> Pinned:
        return Pinned(self, self._allocate("pinned", nbytes))

    @call
    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._copy("copy", Span(target, nbytes), Span(source, nbytes), stream)

    @call
    def copy_rows(
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        stream: int,
    ) -> None:
        to, of = Span(target, width, target_pitch, rows), Span(source, width, source_pitch, rows)
        self._copy("copy_rows", to, of, stream)

    def _copy(self, what: str, target: Span, source: Span, stream: int) -> None:
        queue = self._stream(stream)
        if min(target.width, target.rows) < 0:
            raise InvalidArgument(f"{what} of {target.rows} rows of {target.width} bytes")
        if target.rows > 1 and min(target.pitch, source.pitch) < target.width:
            raise InvalidArgument(
                f"{what} with pitches {target.pitch} and {source.pitch} of {target.width} bytes"
            )
        if not target.width * target.rows:
            return
        to, of = self.table.holding(target), self.table.holding(source)
        if target.overlaps(source):
            raise InvalidArgument(f"{what} between overlapping bytes of {to}")

        def run() -> None:
            if target.rows == 1:
                ctypes.memmove(to.hidden(target.address), of.hidden(source.address), target.width)
            else:
                to.rows(target)[:] = of.rows(source)

        accesses = [(of, source.plain(), False), (to, target.plain(), True)]
        self.order.enqueue(queue, what, self._or_fail(run), accesses, watches=True)

    def _or_fail(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return the call that runs, or one that fails instead (`fail_next`)."""
        error = self._failing
        if error is None:
            return run

        def fail() -> None:
            raise error

        return fail

    # -- order ---------------------------------------------------------------------------------

    def _stream(self, handle: int) -> Stream:
        if handle in self._capturing:
            raise InvalidArgument(f"stream {handle:#x} is being captured")
        if handle in (DEFAULT, LEGACY, PER_THREAD):
            thread = threading.get_ident() if handle == PER_THREAD else 0
            if (self.current, thread) not in self._unmade:
                made = Stream(PER_THREAD if thread else DEFAULT, self.current, True)
                self._unmade[self.current, thread] = self.order.add(made)
            return self._unmade[self.current, thread]
        if handle not in self._streams:
            raise InvalidHandle(f"stream {handle:#x} was never made, or it was ended")
        return self._streams[handle]

    @call
    def stream(self) -> int:
        return self._make_stream(is_blocking=False)

    def _make_stream(self, is_blocking: bool) -> int:
        handle = next(self._handles)
        self._streams[handle] = self.order.add(Stream(handle, self.current, is_blocking))
        return handle

    @call
    def end_stream(self, stream: int) -> None:
        ended = self._stream(stream)
        if stream not in self._streams:
            raise InvalidHandle(f"stream {stream} is not one of `stream`")
        del self._streams[stream]
        ended.is_ended = True
        self.order.changed.notify_all()

    def _event(self, handle: int) -> Event:
        if handle not in self._events:
            raise InvalidHandle(f"event {handle:#x} was never made, or it was ended")
        return self._events[handle]

    def _add_event(self, event: Event) -> int:
        handle = next(self._handles)
        self._events[handle] = event
        return handle

    @call
    def event(self) -> int:
        return self._add_event(Event(self.current))

    @call
    def end_event(self, event: int) -> None:
        ended = self._event(event)
        if ended.shared is not None:
            ended.shared.end()
        del self._events[event]

    @call
    def record(self, event: int, stream: int) -> None:
        recorded, queue = self._event(event), self._stream(stream)
        if recorded.is_imported:
            raise InvalidHandle(f"event {event:#x} can be recorded only where it was made")
        if recorded.device != queue.device:
            raise WrongDevice(f"an event of device {recorded.device} is recorded on {queue}")
        shared = recorded.shared
        if shared is None:
            recorded.op = self.order.enqueue(queue, "record")
            return
        number = 0

        def run() -> None:
            shared.complete(number)

        recorded.op = self.order.enqueue(queue, "record", run)
        number = shared.record(recorded.op.clock)  # before it runs: this thread has the lock
        self.order.want(recorded.op)  # other processes may wait for it, and cannot say so

    @call
    def wait(self, stream: int, event: int) -> None:
        awaited, queue = self._event(event), self._stream(stream)
        if not awaited.is_imported:
            self.order.enqueue(queue, "wait", after=[awaited.op])
            return
        shared = awaited.shared
        number = shared.recorded()

        def run() -> None:
            self.order.poll(lambda: shared.is_complete(number), f"the wait on {queue}")

        self.order.enqueue(queue, "wait", run, clock=shared.clock(number))

    @call
    def done(self, event: int) -> bool:
        asked = self._event(event)
        if asked.is_imported:
            number = asked.shared.recorded()
            is_done, clock = asked.shared.is_complete(number), asked.shared.clock(number)
        else:
            is_done = asked.op is None or asked.op.is_done
            clock = {} if asked.op is None else asked.op.clock
        if is_done:
            self.order.saw(clock)
        else:
            self.order.want(asked.op)
        return is_done

    def synchronize(self, event: int) -> None:
        remote = self._synchronize(event)
        if remote is not None:
            shared, number = remote
            try:
                self.order.poll(lambda: shared.is_complete(number), f"synchronize({event:#x})")
            except Stalled as error:
                self.faults.append(error)
                raise
            self._saw_remote(shared, number)

    @call
    def _synchronize(self, event: int) -> tuple[fake_shared.SharedEvent, int] | None:
        awaited = self._event(event)
        if awaited.is_imported:
            return awaited.shared, awaited.shared.recorded()
        if awaited.op is not None:
            self.order.finish(awaited.op)
        return None

    @call
    def _saw_remote(self, shared: fake_shared.SharedEvent, number: int) -> None:
        self.order.saw(shared.clock(number))

    def is_capturing(self, stream: int) -> bool:
        return stream in self._capturing

    # -- kernels -------------------------------------------------------------------------------

    @call
    def kernel(self, source: str, name: str) -> Kernel:
        if self._compile is None:
            raise InvalidArgument("this driver was made without compile_kernel")
        key = (source, name, self.current)
        if key not in self._compiled:
            self._compiled[key] = Kernel(name, self.current, self._compile(source, name))
        return self._compiled[key]

    @call
    def launch(
        self, kernel: Kernel, blocks: int, threads: int, arguments: bytes, stream: int
    ) -> None:
        queue = self._stream(stream)
        if self._accesses is None:
            raise InvalidArgument("this driver was made without accesses")
        for what, device in ((f"kernel {kernel.name}", kernel.device), (str(queue), queue.device)):
            if device != self.current:
                raise WrongDevice(
                    f"{what} belongs to device {device}, and device {self.current} is current"
                )
        is_grid = 1 <= blocks <= MOST_BLOCKS and 1 <= threads <= MOST_THREADS
        if not is_grid or len(arguments) > MOST_ARGUMENTS:
            raise InvalidArgument(
                f"{blocks} blocks of {threads} threads, {len(arguments)} bytes of arguments"
            )
        said = self._accesses(kernel.name, arguments)
        accesses = []
        for spans, is_write in ((said.reads, False), (said.writes, True)):
            for span in (Span(*each).plain() for each in spans):
                if span.width * span.rows:
                    accesses.append((self._reachable(span), span, is_write))
        translated = bytearray(arguments)
        for offset in said.pointers:
            (address,) = struct.unpack_from("<Q", arguments, offset)
            if address:
                hidden = self._reachable(Span(address, 0)).hidden(address)
                struct.pack_into("<Q", translated, offset, hidden)
        run = functools.partial(kernel.run, blocks, threads, bytes(translated))
        self.order.enqueue(queue, f"kernel {kernel.name}", self._or_fail(run), accesses)

    def _reachable(self, span: Span) -> Allocation:
        """Return what holds bytes, if a kernel on the current device may touch it."""
        found = self.table.holding(span)
        if found.kind in ("device", "imported") and found.device != self.current:
            raise WrongDevice(f"a kernel on device {self.current} uses {found}, of {found.device}")
        return found

    @call
    def communicate(
        self,
        what: str,
        reads: Sequence[tuple[int, int]],
        writes: Sequence[tuple[int, int]],
        begin: Callable[[], Callable[[], None]],
        stream: int,
    ) -> None:
        """Put on a stream what `begin` returns: it speaks to other processes when it runs.

        On a stream that is being captured, it is put into the graph instead.
        """
        if stream in self._capturing:
            self._capturing[stream].calls.append((what, reads, writes, begin))
            return
        queue = self._stream(stream)
        accesses = []
        for spans, is_write in ((reads, False), (writes, True)):
            for span in (Span(*each) for each in spans):
                accesses.append((self._reachable(span), span, is_write))
        op = self.order.enqueue(queue, what, self._or_fail(begin()), accesses)
        self.order.want(op)  # other processes wait for it, and cannot say so

    # -- memory and events of other processes --------------------------------------------------

    @call
    def export_memory(self, address: int) -> bytes:
        return self.table.begin(address, "export", ("device",)).export()

    @call
    def open_memory(self, handle: bytes) -> int:
        for found in self.table.live.values():
            is_same = found.kind == "imported" and found.device == self.current
            if is_same and found.handle == handle:
                found.opened += 1
                return found.address
        found = fake_memory.open_memory(handle, self.current, self._reuses)
        self.table.add(found)
        return found.address

    @call
    def close_memory(self, address: int) -> None:
        found = self.table.begin(address, "close", ("imported",))
        if found.opened == 1:
            self._check_unused(found)
            self._forget(found)
            found.unmap()
        found.opened -= 1

    @call
    def shared_event(self) -> int:
        return self._add_event(Event(self.current, fake_shared.SharedEvent()))

    @call
    def export_event(self, event: int) -> bytes:
        exported = self._event(event)
        if exported.shared is None or exported.is_imported:
            raise InvalidHandle(f"event {event:#x} was not made by `shared_event` of this process")
        return exported.shared.export()

    @call
    def open_event(self, handle: bytes) -> int:
        return self._add_event(Event(self.current, fake_shared.open_event(handle)))
