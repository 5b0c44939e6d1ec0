"""Streams of the fake GPU: the order of operations, and the threads that run them later.

Each operation has a clock: for each stream, up to which number its operations come before this one.
An operation gets the clocks of the one before it on its stream, of those that it waits for, and of
all that the host had seen complete when it was enqueued. Races are found when the later of two
operations is enqueued, by these clocks alone; when the threads run them does not matter.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from fake_errors import Race, Stalled, caller
from fake_memory import PAGE, POISON, Access, Allocation, Span, up

MODES = ("fast", "random", "lazy")
LONGEST_SLEEP = 0.002  # seconds before an operation in the mode "random"
POLL = 0.0003  # seconds between two looks at an event of another process
MOST_EDGES = 256  # pieces of an access whose ends are watched

Clock = dict[int, int]
# Numbers of streams are of one process: clocks travel between processes with shared events.
numbers = itertools.count(1)


def join(clock: Clock, other: Clock) -> None:
    """Let a clock come after another one, too."""
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number


class Op:
    """An operation on a stream."""

    def __init__(self, stream: Stream, what: str, clock: Clock, run: Callable[[], None]) -> None:
        self.stream, self.what, self.clock, self.run = stream, what, clock, run
        self.where = caller()
        self.number = clock[stream.number]
        self.after: list[Op] = []
        self.is_wanted = self.is_done = False

    def __str__(self) -> str:
        return f"{self.what} on {self.stream} at {self.where}"

    def comes_before(self, clock: Clock) -> bool:
        """Return whether something with this clock comes after the operation."""
        return clock.get(self.stream.number, 0) >= self.number


class Stream:
    """A queue of operations, which a thread runs in order."""

    def __init__(self, handle: int, device: int, is_blocking: bool) -> None:
        self.handle, self.device, self.is_blocking = handle, device, is_blocking
        self.number = os.getpid() << 32 | next(numbers)
        self.where = caller()
        self.queue: deque[Op] = deque()
        self.last: Op | None = None
        self.clock: Clock = {}
        self.thread: threading.Thread | None = None
        self.is_ended = False

    def __str__(self) -> str:
        return f"stream {self.handle:#x} of device {self.device}"


class Order:
    """All streams of a driver, and the operations that the host has seen complete.

    Parameters
    ----------
    mode : str
        "fast": as soon as possible. "random": after sleeps of 0 to 2 ms. "lazy": nothing runs
        until somebody asks for it or for a later operation.
    seed : int
        Of the sleeps.
    deadline : float
        Seconds that something may be waited for.
    patience : float, optional
        Seconds after which an operation runs in the mode "lazy", though nobody asks for it.
    """

    def __init__(
        self, mode: str, seed: int, deadline: float, patience: float | None = None
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}, not one of {', '.join(MODES)}")
        self.mode, self.seed, self.deadline, self.patience = mode, seed, deadline, patience
        self.changed = threading.Condition(threading.RLock())
        self.host: Clock = {}
        self.streams: list[Stream] = []
        self.visible: list[Allocation] = []  # pinned and managed memory
        self.broken: BaseException | None = None
        self.is_closed = False

    # -- enqueue -------------------------------------------------------------------------------

    def add(self, stream: Stream) -> Stream:
        """Note a stream."""
        self.streams.append(stream)
        return stream

    def enqueue(
        self,
        stream: Stream,
        what: str,
        run: Callable[[], None] = lambda: None,
        accesses: Sequence[tuple[Allocation, Span, bool]] = (),
        after: Iterable[Op | None] = (),
        clock: Clock | None = None,
        watches: bool = False,
    ) -> Op:
        """Put an operation on a stream; raise Race if its accesses have no order with others'.

        Parameters
        ----------
        accesses : sequence
            Allocation, bytes, and whether they are written.
        after : iterable
            Operations of other streams that come before it.
        clock : dict, optional
            The operations before it in other processes.
        watches : bool
            Whether all that it says to write is written, so that the host's accesses are found.
        """
        before = [each for each in (*after, *self._legacy(stream)) if each is not None]
        merged = dict(self.host)
        for each in (stream.clock, clock or {}, *(each.clock for each in before)):
            join(merged, each)
        merged[stream.number] = stream.clock.get(stream.number, 0) + 1
        op = Op(stream, what, merged, run)
        for each in accesses:
            self.settle(each[0])
            self._check(op, *each)
        if watches:
            op.run = watched(run, op, accesses)
        over = [m.log.note(op, m, span, writes) for m, span, writes in accesses if m.log]
        if over:
            op.run = followed(op.run, over)
        for allocation, span, is_write in accesses:
            note(allocation, Access(op, span, is_write))
        for allocation in {id(each): each for each, _, _ in accesses}.values():
            allocation.protect()
        op.after = [each for each in before if not each.is_done]
        if stream.last is not None and not stream.last.is_done:
            op.after.append(stream.last)
        stream.last, stream.clock = op, merged
        stream.queue.append(op)
        op.is_wanted = self.mode != "lazy"
        if stream.thread is None:
            stream.thread = threading.Thread(target=self._serve, args=(stream,), daemon=True)
            stream.thread.start()
        self.changed.notify_all()
        return op

    def _legacy(self, stream: Stream) -> list[Op | None]:
        """Return what the default stream waits for, or what waits for the default stream."""
        if not stream.is_blocking:
            return []
        is_default = stream.handle == 0
        others = (each for each in self.streams if each.device == stream.device)
        return [
            each.last
            for each in others
            if each is not stream and each.is_blocking and (is_default or each.handle == 0)
        ]

    def _check(self, op: Op, allocation: Allocation, span: Span, is_write: bool) -> None:
        if allocation.kind == "imported":
            return  # its log has what all processes do
        for other in allocation.accesses:
            if not (is_write or other.is_write) or other.op.comes_before(op.clock):
                continue
            if allocation.is_exported and other.op.is_done:
                continue  # as above: another process may know, and have said so
            if span.overlaps(other.span):
                raise Race(
                    f"{describe(op, span, is_write, allocation)} and the earlier "
                    f"{describe(other.op, other.span, other.is_write, allocation)} have no order, "
                    f"in {allocation}"
                )

    # -- the host ------------------------------------------------------------------------------

    def saw(self, clock: Clock) -> None:
        """Let all that the host does next come after the operation with this clock."""
        join(self.host, clock)
        for allocation in self.visible:
            self.settle(allocation)
            allocation.protect()

    def settle(self, allocation: Allocation) -> list[Access]:
        """Forget accesses that the host has seen complete; return the others."""
        allocation.accesses = [
            each for each in allocation.accesses if not each.op.comes_before(self.host)
        ]
        return allocation.accesses

    def want(self, op: Op | None) -> None:
        """Let an operation run, and all that it waits for."""
        found = [op]
        while found:
            each = found.pop()
            if each is not None and not (each.is_done or each.is_wanted):
                each.is_wanted = True
                found.extend(each.after)
        self.changed.notify_all()

    def finish(self, op: Op) -> None:
        """Wait until an operation has happened; the host has then seen it."""
        self.wait_for(lambda: op.is_done, op)
        self.saw(op.clock)

    def wait_for(self, condition: Callable[[], bool], op: Op) -> None:
        """Wait for a condition that an operation brings about."""
        self.want(op)
        end = time.monotonic() + self.deadline
        while not condition():
            self.raise_broken()
            left = end - time.monotonic()
            if left <= 0:
                raise Stalled(f"the host waited {self.deadline:g} s for {op}")
            self.changed.wait(left)
        self.raise_broken()

    def idle(self) -> None:
        """Wait until all that is enqueued has happened. The host has not seen it."""
        for stream in self.streams:
            if stream.last is not None:
                self.wait_for(lambda op=stream.last: op.is_done, stream.last)

    def raise_broken(self) -> None:
        """Raise what failed on a stream."""
        if self.broken is not None:
            raise self.broken

    def close(self) -> None:
        """End the threads; operations that have not run never do."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
        for stream in self.streams:
            if stream.thread is not None:
                stream.thread.join(self.deadline)

    # -- the threads ---------------------------------------------------------------------------

    def _serve(self, stream: Stream) -> None:
        chance = random.Random(f"{self.seed} {self.streams.index(stream)}")
        while (op := self._next(stream)) is not None:
            if self.mode == "random" and chance.random() < 0.7:
                time.sleep(chance.uniform(0, LONGEST_SLEEP))
            try:
                if self.broken is None:
                    op.run()
            except BaseException as error:
                self._fail(error)
            with self.changed:
                stream.queue.popleft()
                op.is_done, op.after, op.run = True, [], lambda: None
                self.changed.notify_all()

    def _next(self, stream: Stream) -> Op | None:
        """Wait for the next operation of a stream and those that it waits for; None at the end."""
        since = shown = None
        with self.changed:
            while not self.is_closed:
                op = stream.queue[0] if stream.queue else None
                if op is None and stream.is_ended:
                    stream.thread = None  # an array that outlives its stream starts another one
                    return None
                late = [each for each in op.after if not each.is_done] if op is not None else []
                if op is not None and (self.broken or (op.is_wanted and not late)):
                    return op
                left = None
                if op is not None and not op.is_wanted and self.patience is not None:
                    shown = shown or time.monotonic()
                    left = shown + self.patience - time.monotonic()
                    if left <= 0:
                        self.want(op)
                        continue
                if op is not None and op.is_wanted:
                    since = since or time.monotonic()
                    left = since + self.deadline - time.monotonic()
                    if left <= 0:
                        self._fail(Stalled(f"{op} waited {self.deadline:g} s for {late[0]}"))
                self.changed.wait(left)
        return None

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            self.broken = self.broken or error
            self.changed.notify_all()

    def poll(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that happens in another process."""
        end = time.monotonic() + self.deadline
        while not (condition() or self.is_closed or self.broken):
            if time.monotonic() > end:
                raise Stalled(f"{what} waited {self.deadline:g} s for another process")
            time.sleep(POLL)


def describe(op: Op, span: Span, is_write: bool, allocation: Allocation) -> str:
    """Return an access in words."""
    begin, end = span.address - allocation.address, span.end - allocation.address
    return f"{'write' if is_write else 'read'} of bytes {begin} to {end} by {op}"


def note(allocation: Allocation, access: Access) -> None:
    """Add an access to those of an allocation, instead of those that it makes needless."""
    allocation.accesses = [
        other
        for other in allocation.accesses
        if not (
            other.op is not access.op
            and (access.is_write or not other.is_write)
            and other.op.comes_before(access.op.clock)
            and access.span.covers(other.span)
        )
    ]
    allocation.accesses.append(access)


# -- what the host does to pinned memory in flight -------------------------------------------------


def followed(run: Callable[[], None], over: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """Return a function that runs it, and then tells other processes so."""

    def both() -> None:
        run()
        for each in over:
            each()

    return both


def edges(allocation: Allocation, span: Span) -> list[Span]:
    """Return the bytes of an access that are on pages with others, and so are not protected."""
    found = []
    for start, end in span.pieces() if span.rows <= MOST_EDGES else ():
        first = up(start - allocation.base, PAGE) + allocation.base
        last = (end - allocation.base) // PAGE * PAGE + allocation.base
        ends = [(start, end)] if first >= last else [(start, first), (last, end)]
        found += [Span(a, b - a) for a, b in ends if a < b]
    return found


def watched(
    run: Callable[[], None], op: Op, accesses: Sequence[tuple[Allocation, Span, bool]]
) -> Callable[[], None]:
    """Let an operation find whether the host changed bytes between its enqueueing and its run.

    Bytes that it will write are poisoned at once: nobody may read them any more.
    """
    expected: list[tuple[Allocation, Span, np.ndarray]] = []
    for allocation, span, is_write in accesses:
        if not allocation.is_host_visible:
            continue
        for edge in edges(allocation, span):
            if any(
                (is_write or other.is_write) and edge.overlaps(other.span)
                for other in allocation.accesses
                if not other.op.is_done
            ):
                continue
            if is_write:
                allocation.rows(edge)[:] = POISON
            expected.append((allocation, edge, allocation.rows(edge).copy()))
    if not expected:
        return run

    def checked_run() -> None:
        for allocation, edge, before in expected:
            if not np.array_equal(allocation.rows(edge), before):
                begin = edge.address - allocation.address
                raise Race(
                    f"the host wrote into bytes {begin} to {begin + edge.width} of {allocation}, "
                    f"while {op} was in flight"
                )
        run()

    return checked_run
