"""The ring of a device: slots of pinned memory, and the streams that fill and empty them.

Slots are used in turn. One stream reads from the device and another one writes, so that copies
overlap the collectives on other slots.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from collectives.devices.arrays import DeviceArray
from collectives.devices.driver import Driver, Events, Held, Pinned

SLOTS = 4  # one is filled, one is at work, one is emptied, and one evens out their times


class Slot:
    """A part of pinned memory, for one piece at a time."""

    filled: int
    emptied: int

    def __init__(self, address: int, filled: int, emptied: int) -> None:
        self.address = address
        # Events after the copy of a piece from the device, and after the copy of its result back.
        self.filled, self.emptied = filled, emptied
        self.holder: Any = None  # the request whose piece it has


class Ring(Held):
    """Pinned memory and streams for one device."""

    driver: Driver
    device: int
    nbytes: int
    turn: int

    def __init__(self, driver: Driver, device: int, nbytes: int) -> None:
        self.driver, self.device, self.nbytes = driver, device, nbytes
        self.is_lost = False  # MPI or the device may still touch a slot after an error
        self.turn = 0
        self.spare: Events = Events(driver, device)
        with driver.on(device), ExitStack() as undo:  # of earlier steps, if the next one fails
            self.pinned: Pinned = driver.pinned(SLOTS * nbytes)
            undo.callback(self.pinned.free)
            self.reads: int = driver.stream()
            undo.callback(driver.end_stream, self.reads)
            self.writes: int = driver.stream()
            undo.callback(driver.end_stream, self.writes)
            events = []
            for _ in range(2 * SLOTS):
                events.append(driver.event())
                undo.callback(driver.end_event, events[-1])
            self.slots: list[Slot] = [
                Slot(self.pinned.address + i * nbytes, events.pop(), events.pop())
                for i in range(SLOTS)
            ]
            undo.pop_all()

    @property
    def next(self) -> Slot:
        """The next slot; it is free if it has no holder."""
        return self.slots[self.turn % SLOTS]

    def take(self, holder: object, stream: int) -> Slot:
        """Give the next slot to a holder; a stream waits until its old contents are copied."""
        slot = self.next
        slot.holder = holder
        self.turn += 1
        self.driver.wait(stream, slot.emptied)
        return slot

    def fetch(self, address: int, source: DeviceArray, after: Iterable[int]) -> None:
        """Begin to copy an array to the host, after events."""
        for event in after:
            self.driver.wait(self.reads, event)
        if source.nbytes:
            self.driver.copy(address, source.address, source.nbytes, self.reads)

    def store(self, target: DeviceArray, address: int, after: Iterable[int], ended: int) -> None:
        """Begin to copy to an array from the host, after events; record an event of the end."""
        for event in after:
            self.driver.wait(self.writes, event)
        if target.nbytes:
            self.driver.copy(target.address, address, target.nbytes, self.writes)
        self.driver.record(ended, self.writes)

    def _drop(self) -> None:
        # The last reference was dropped, so that no call is in flight: it would hold the ring.
        self.close()

    def close(self) -> None:
        """Free the memory, streams and events, when no call is in flight."""
        if self.is_lost or self.spare.is_closed:
            return
        with self.driver.on(self.device):
            self.spare.close()
            for slot in self.slots:
                for event in (slot.filled, slot.emptied):
                    self.driver.synchronize(event)
                    self.driver.end_event(event)
            self.driver.end_stream(self.reads)
            self.driver.end_stream(self.writes)
            self.pinned.free()
