"""Memory and events by which the ranks of a host read each other's device memory (CUDA IPC).

Each rank has one stream, a ring of device memory that all ranks map, and events that all ranks
open. Lines and words of progress lie in shared memory of the host (`_core/shared/segment.h`). They
announce enqueued work; events order this work on the devices.

Ranks wait on the host for two kinds of words, and both have events:

- A publication. Its owner records an event after the write of the payload, and puts the number of
  the event into the line. Readers let their streams wait for the event before they read.
- The end of a page. A rank records the event ``page % ENDS`` after all work of the page, and then
  finishes it. Before a rank reuses the memory of pages, its stream waits for these events of all
  ranks, for every page that they had to finish.

A wait is for the latest record before it; later records do not change it. CUDA does not define a
wait while another process records the same event. So an event is recorded again only when all ranks
have made their waits for the record before:

- Ranks make their waits for a publication before they finish its page. So its event may be used
  again when all have finished that page. If they have not, the owner waits on the host until its
  stream has written the payload, and publishes the line without an event. No work on a stream
  depends on work that a rank enqueues later, so this wait ends.
- No rank starts page p before all have finished page p - LANES, and before its stream waits for the
  pages up to that one. When a rank ends page g + 2 * LANES, all have finished page g + LANES, and
  had waited for page g before they started that. So `ENDS` is 2 * `LANES`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from collectives import _core
from collectives.devices.driver import Driver, Events, Held

LANES = 8  # of _core/shared/ring.h
ENDS = 2 * LANES
EVENTS = 64  # for publications
WHOLE = 2 << 20  # bytes, CUDA's unit of exported memory, so that nothing else is exported with it
LONGEST = 5.0  # seconds to wait for the other ranks when a communicator is freed

_leaving: list[Peers] = []
_sweeping = threading.Lock()


def at(address: int) -> Any:
    """Return an object at an address of a device; it is never read on the host. Local."""
    return ctypes.c_char.from_address(address)


class Loan(NamedTuple):
    """Memory for one array of each rank that all others have mapped."""

    owner: Callable[[], Any]  # returns the owner of this rank's memory, or None if it is gone
    address: int  # the memory of this rank
    mapped: list[int]  # the memory of all ranks, as mapped in this process
    windows: list[int]  # the numbers of their windows


class Peers(Held):
    """The memory, stream and events of this rank for one device, and those of the others."""

    driver: Driver
    device: int
    room: int
    stream: int
    ring: int
    drained: int
    turn: int
    ordered: int

    def __init__(self, driver: Driver, device: int, room: int, is_alone: bool) -> None:
        self.driver, self.device, self.room = driver, device, room
        self.segment: _core.Segment | None = None  # the pages of the ranks, if this is not alone
        self.me: int = 0
        self.lock: threading.RLock = threading.RLock()  # held by the thread that enqueues
        self.has_left: bool = False  # no memory of other ranks is mapped any more
        self.is_lost: bool = False  # a call has failed: other ranks may use the memory at any time
        self.stream = self.ring = self.drained = 0
        self.events: list[int] = []
        self.ends: list[int] = []
        self.spare: Events = Events(driver, device)  # of this process only
        self.rings: list[int] = []  # of all ranks, as mapped in this process
        self.theirs: list[list[int]] = []  # the events of all ranks
        self.pages: list[int | None] = [None] * EVENTS  # the page of each event's latest record
        self.turn = self.ordered = 0
        self.blocks: dict[int, list[int]] = {}
        self.loans: dict[int, Loan] = {}  # by the number of their first window
        self.sizes: dict[int, int] = {}
        self.kernels: dict[tuple[str, str], Any] = {}
        try:
            with driver.on(device):
                self.stream = driver.stream()
                self.drained = driver.event()
                if not is_alone:
                    self.ring = driver.allocate(-(-LANES * room // WHOLE) * WHOLE)
                    for _ in range(EVENTS):
                        self.events.append(driver.shared_event())
                    for _ in range(ENDS):
                        self.ends.append(driver.shared_event())
        except BaseException:
            self.free()
            raise

    # -- the other ranks -----------------------------------------------------------------------

    def offer(self) -> tuple[bytes, list[bytes]]:
        """Return handles of the ring and of the events, for the other ranks. Local."""
        with self.driver.on(self.device):
            events = [self.driver.export_event(each) for each in (*self.events, *self.ends)]
            return self.driver.export_memory(self.ring), events

    def open(self, offers: list[tuple[bytes, list[bytes]]], me: int) -> None:
        """Map the rings of the other ranks, and open their events. Local."""
        self.me = me
        with self.driver.on(self.device):
            for rank, (memory, events) in enumerate(offers):
                self.rings.append(self.ring if rank == me else 0)
                self.theirs.append([*self.events, *self.ends] if rank == me else [])
                if rank == me:
                    continue
                self.rings[rank] = self.driver.open_memory(memory)
                for handle in events:
                    self.theirs[rank].append(self.driver.open_event(handle))

    def share(self, segment: _core.Segment) -> None:
        """Use the pages of a segment. Local, but all ranks have to call it."""
        segment.move_rings(self.rings, self.room)
        for ring in self.rings:  # their numbers are reserved: no array gets them
            segment.add_window(at(ring), 0, 0)
        self.segment = segment

    # -- order ---------------------------------------------------------------------------------

    def after(self, rank: int, event: int) -> None:
        """Order later work on the stream after a publication. Local."""
        if event and rank != self.me:
            self.driver.wait(self.stream, self.theirs[rank][event - 1])

    def publish(self, page: int) -> int:
        """Record an event for a publication; return its number, or 0 if none is needed. Local."""
        assert self.segment is not None
        index = self.turn % EVENTS
        before = self.pages[index]
        if before is not None and not self.segment.all_finished(before + 1):
            self.driver.record(self.drained, self.stream)
            self.driver.synchronize(self.drained)
            return 0
        self.driver.record(self.events[index], self.stream)
        self.pages[index] = page
        self.turn += 1
        return index + 1

    def begin(self, page: int) -> None:
        """Order later work after all pages before `page`, on all ranks. Local."""
        for each in range(self.ordered, page):
            for rank, events in enumerate(self.theirs):
                if rank != self.me:
                    self.driver.wait(self.stream, events[EVENTS + each % ENDS])
        self.ordered = max(self.ordered, page)

    def finish(self, page: int) -> None:
        """Record the end of the work of a page on the stream. Local."""
        self.driver.record(self.ends[page % ENDS], self.stream)

    # -- memory for calls ----------------------------------------------------------------------

    def take(self, nbytes: int) -> int:
        """Return memory for a call, new or of an earlier call. Local.

        Its earlier uses are before the call's work on the stream.
        """
        size = max(512, 1 << (nbytes - 1).bit_length())
        with self.lock, self.driver.on(self.device):
            spare = self.blocks.setdefault(size, [])
            address = spare.pop() if spare else self.driver.allocate(size)
            self.sizes[address] = size
            return address

    def give(self, address: int) -> None:
        """Give memory of `take` back. Local."""
        with self.lock:
            self.blocks[self.sizes[address]].append(address)

    # -- arrays that others read where they lie ------------------------------------------------

    def unmap(self, numbers: list[int]) -> None:
        """Unmap memory that other ranks have lent, when no work on the stream uses it. Local, and
        the same on all ranks.
        """
        if not numbers:
            return
        with self.lock, self.driver.on(self.device):
            self.driver.record(self.drained, self.stream)
            self.driver.synchronize(self.drained)
            for number in numbers:
                self._close(self.loans[number])

    def forget(self, numbers: list[int]) -> None:
        """Free memory that this rank has lent, when all have unmapped it. Local."""
        for number in numbers:
            loan = self.loans.pop(number)
            if self.segment is not None:
                self.segment.drop_windows(set(loan.windows))
            with self.driver.on(self.device):
                self.driver.free(loan.address)

    def _close(self, loan: Loan) -> None:
        for rank, each in enumerate(loan.mapped):
            if rank != self.me:
                self.driver.close_memory(each)

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Unmap the memory of other ranks, and free this rank's when they have done so, too. Local,
        but it waits up to `LONGEST` seconds for the other ranks.
        """
        end = time.monotonic() + LONGEST
        self._drop()
        while self in _leaving and time.monotonic() < end:
            sweep()
            time.sleep(0.0005)
        if not self.has_left:  # a rank that died may prevent the work on the stream
            self.is_lost = True
            if self.segment is not None:
                self.segment.leave()

    def _drop(self) -> None:
        """Have `sweep` free the memory, when the work on the stream has ended and the other ranks
        have dropped theirs, too.
        """
        if self.is_lost or self.has_left or not self.stream:
            return
        with self.driver.on(self.device):
            self.driver.record(self.drained, self.stream)
        _leaving.append(self)

    def leave(self) -> bool:
        """Unmap the memory of other ranks if no work on the stream uses it; return whether it is
        unmapped. Local.
        """
        if not self.has_left and not self.is_lost:
            with self.driver.on(self.device):
                if not self.driver.done(self.drained):
                    return False
            self.has_left = True
            self.withdraw()
            if self.segment is not None:
                self.segment.leave()
        return self.has_left

    def withdraw(self) -> None:
        """Unmap the memory of other ranks, when no work on the stream uses it. Local."""
        with self.driver.on(self.device):
            for rank, ring in enumerate(self.rings):
                if rank != self.me and ring:
                    self.driver.close_memory(ring)
            for rank, events in enumerate(self.theirs):
                for event in events if rank != self.me else ():
                    self.driver.end_event(event)
            for loan in self.loans.values():
                self._close(loan)
        self.rings, self.theirs = [], []

    def free(self) -> None:
        """Free the memory and events of this rank, when no other rank has them open."""
        driver = self.driver
        with driver.on(self.device):
            self.spare.close()
            for event in (*self.events, *self.ends, self.drained):
                if event:
                    driver.end_event(event)
            for block in (self.ring, *self.sizes):
                if block:
                    driver.free(block)
            for loan in self.loans.values():
                owner = loan.owner()
                if owner is None:
                    driver.free(loan.address)
                else:  # the array has outlived the communicator
                    owner.is_last = True
            if self.stream:
                driver.end_stream(self.stream)
        self.loans.clear()
        self.events, self.ends, self.sizes = [], [], {}
        self.stream = self.ring = self.drained = 0


def sweep() -> None:
    """Free the memory of communicators that all ranks have left. Local.

    Memory that a failed device does not free is lost. The caller may be any call, so that this
    raises no error.
    """
    if not _sweeping.acquire(blocking=False):  # another thread does it
        return
    try:
        for each in _leaving.copy():
            try:
                if each.is_lost or _freed(each):
                    _leaving.remove(each)
            except Exception:  # of the device
                each.is_lost = True
    finally:
        _sweeping.release()


def _freed(peers: Peers) -> bool:
    """Free the memory of a communicator if all ranks have left it; return whether it is freed."""
    segment = peers.segment
    if not peers.leave():
        return False
    if segment is not None and len(segment.lost()) < len(segment.ranks) - 1:
        return False
    peers.free()
    return True
