"""The ring of a device: slots of pinned memory, and the streams that fill and empty them.

Slots are used in turn. What is read from the device goes by one stream and what is written by
another, so that both overlap the collectives on the slots between.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from collectives import _core
from collectives.devices.driver import Driver

SLOTS = 4  # one is filled, one is at work, one is emptied, and one evens out their times


class Slot:
    """A part of pinned memory, for one piece at a time.

    Attributes
    ----------
    address : int
    filled, emptied : int
        Events: the piece has come from the device, and its result has gone there.
    holder : object or None
        The request whose piece it has.
    """

    def __init__(self, address: int, filled: int, emptied: int) -> None:
        self.address, self.filled, self.emptied = address, filled, emptied
        self.holder: Any = None


class Ring:
    """Pinned memory and streams for one device.

    Attributes
    ----------
    reads, writes : int
        The streams from and to the device.
    is_lost : bool
        Whether MPI or the device may still touch a slot after an error: it is never used again.
    is_closed : bool
        Whether it was given back.
    """

    def __init__(self, driver: Driver, device: int, nbytes: int) -> None:
        self.driver, self.device, self.nbytes = driver, device, nbytes
        self.is_lost = self.is_closed = False
        self.turn = 0
        self.spare: list[int] = []
        with driver.on(device), ExitStack() as undo:  # of what was made, if the next thing fails
            self.pinned = driver.pinned(SLOTS * nbytes)
            undo.callback(self.pinned.free)
            self.reads = driver.stream()
            undo.callback(driver.end_stream, self.reads)
            self.writes = driver.stream()
            undo.callback(driver.end_stream, self.writes)
            for _ in range(2 * SLOTS):
                self.spare.append(driver.event())
                undo.callback(driver.end_event, self.spare[-1])
            self.slots = [
                Slot(self.pinned.address + i * nbytes, self.spare.pop(), self.spare.pop())
                for i in range(SLOTS)
            ]
            undo.pop_all()

    @property
    def next(self) -> Slot:
        """The slot whose turn it is; it is free if it has no holder."""
        return self.slots[self.turn % SLOTS]

    def take(self, holder: object) -> Slot:
        """Give the next slot away, once its old contents have gone. Local."""
        slot = self.next
        slot.holder = holder
        self.turn += 1
        self.driver.wait(self.reads, slot.emptied)
        return slot

    def event(self) -> int:
        """Return an event that nobody uses, until `give`. Local."""
        return self.spare.pop() if self.spare else self.driver.event()

    def give(self, event: int) -> None:
        """Take an event of `event` back. Local."""
        if self.is_closed:
            self.driver.end_event(event)
        elif not self.is_lost:
            self.spare.append(event)

    def __del__(
        self,
        is_ending: Callable[[], bool] = sys.is_finalizing,  # at the end, modules are emptied
        is_forked: Callable[[], bool] = _core.is_forked,
    ) -> None:
        # Of a communicator that was dropped: no call is in flight, or it would hold the ring. The
        # end of the process, and of a forked child, gives the memory back by itself.
        if hasattr(self, "slots") and not (is_ending() or is_forked()):
            with contextlib.suppress(Exception):  # of a device that has failed
                self.close()

    def close(self) -> None:
        """Give all of it back, when nothing is in flight. Local."""
        if self.is_lost or self.is_closed:
            return
        self.is_closed = True
        with self.driver.on(self.device):
            for slot in self.slots:
                for event in (slot.filled, slot.emptied):
                    self.driver.synchronize(event)
                    self.driver.end_event(event)
            for event in self.spare:
                self.driver.end_event(event)
            self.driver.end_stream(self.reads)
            self.driver.end_stream(self.writes)
            self.pinned.free()
