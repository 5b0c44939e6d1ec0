"""Arrays in device memory that all ranks have mapped: others read them where they lie.

They are windows of the pages of `Peers`, one for each rank. What the executor does with arrays in
shared memory of the host (`plans/lending.py`), it does with these.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from operator import index
from typing import Any

from collectives import _core
from collectives.devices import runtime
from collectives.devices.driver import Driver
from collectives.devices.ipc import Ranks
from collectives.devices.peers import WHOLE, Loan, Peers, at
from collectives.errors import ArgumentError, CommunicatorError
from collectives.text.words import plain, shown


class Owner:
    """What an array keeps that lies in mapped memory.

    Attributes
    ----------
    is_last : bool
        Whether nobody else has the memory any more, so that it is given back with the array.
    """

    def __init__(self, driver: Driver, device: int, address: int) -> None:
        self.driver, self.device, self.address = driver, device, address
        self.is_last = False

    def __del__(
        self,
        is_ending: Callable[[], bool] = sys.is_finalizing,
        is_forked: Callable[[], bool] = _core.is_forked,
    ) -> None:
        if self.is_last and not (is_ending() or is_forked()):
            with contextlib.suppress(Exception), self.driver.on(self.device):
                self.driver.free(self.address)


def device_of(device: Any) -> int:
    """Return the number of a device. Local."""
    driver = runtime.driver_for("the new array")
    if isinstance(device, str):
        kind, _, text = device.partition(":")
        number = int(text) if kind == "cuda" and text.isdecimal() else -1
        number = driver.selected() if device == "cuda" else number
    else:
        try:
            number = index(device)
        except TypeError:
            number = -1
    if number < 0:
        raise ArgumentError(
            f"device is {shown(device)}, and must be 'cuda', 'cuda:' with a number, or a number"
        )
    if number >= driver.devices():
        raise ArgumentError(
            f"device is {shown(device)}, and this process has {driver.devices()} of them"
        )
    return number


def lend(engine: _core.Engine, peers: Peers, nbytes: int) -> Owner:
    """Return memory of this rank that all others have mapped. Collective."""
    driver, ranks = peers.driver, Ranks(engine)
    reason, handle, address = "", b"", 0
    with driver.on(peers.device):
        try:
            address = driver.allocate(-(-max(nbytes, 1) // WHOLE) * WHOLE)
            handle = driver.export_memory(address)
        except Exception as error:  # a driver's own
            reason = plain(error)
    unused = [number for number, each in peers.loans.items() if each.owner() is None]
    told = ranks.allgather((reason, handle, unused))
    gone = sorted(set.intersection(*(set(each) for _, _, each in told)))
    peers.unmap(gone)
    mapped: list[int] = []
    if not any(each for each, _, _ in told):
        with driver.on(peers.device):
            try:
                for rank, (_, theirs, _) in enumerate(told):
                    mapped.append(address if rank == peers.me else driver.open_memory(theirs))
            except Exception as error:  # a driver's own
                reason = plain(error)
    reasons = ranks.allgather(reason)
    peers.forget(gone)
    if any(reasons):
        with driver.on(peers.device):
            for each in mapped:
                if each != address:
                    driver.close_memory(each)
        ranks.allgather(None)  # nobody frees what another still has open
        if address:
            with driver.on(peers.device):
                driver.free(address)
        rank, text = next((k, each) for k, each in enumerate(reasons) if each)
        raise CommunicatorError(f"no memory for an array that all ranks map: {text} (rank {rank})")
    assert peers.segment is not None
    windows = [
        peers.segment.add_window(at(each), 0, nbytes if rank == peers.me else 0)
        for rank, each in enumerate(mapped)
    ]
    owner = Owner(driver, peers.device, address)
    peers.loans[windows[0]] = Loan(weakref.ref(owner), address, mapped, windows)
    return owner
