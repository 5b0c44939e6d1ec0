"""Memory of devices that all ranks of a host map, and the calls that use it.

The first call of a communicator that asks for this transport tests on all ranks whether they can
map each other's memory.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives import _core, reductions
from collectives._core import ALLGATHER
from collectives.devices import folds
from collectives.devices.driver import Driver, Held
from collectives.devices.peers import WHOLE, Loan, Peers, at, sweep
from collectives.devices.requests import DeviceCall
from collectives.errors import (
    CommunicatorError,
    MismatchError,
    PeerAbortedError,
    PeerLostError,
    StallError,
)
from collectives.process import segment
from collectives.text.words import plain

WAITING = MismatchError, PeerAbortedError, PeerLostError, StallError


# -- whether all ranks can -------------------------------------------------------------------------


class EngineRanks:
    """The ranks of an engine, which exchange objects by its calls, so that calls that differ and
    lost ranks raise errors.
    """

    rank: int
    size: int
    members: list[int]

    def __init__(self, engine: _core.Engine) -> None:
        self.engine = engine
        self.rank, self.size = engine.rank, engine.size
        self.members = list(range(engine.size))

    def allgather(self, obj: Any) -> list[Any]:
        """Return the objects of all ranks. Collective."""
        data = np.frombuffer(pickle.dumps(obj), np.uint8)
        lengths = self._gather(np.array([data.size]))[:, 0]
        mine = np.zeros(int(lengths.max()), np.uint8)
        mine[: data.size] = data
        rows = self._gather(mine)
        pairs = zip(rows, lengths, strict=True)
        return [pickle.loads(row[:length].tobytes()) for row, length in pairs]

    def _gather(self, x: NDArray[Any]) -> NDArray[Any]:
        rows = np.empty((self.engine.size, x.size), x.dtype)
        given, got = (
            _core.Span(each.ctypes.data, each.shape, str(each.dtype), each.itemsize, each)
            for each in (x, rows)
        )
        options = None, 0, None, None, None, 1.0, 1.0, True
        self.engine.call_piece(ALLGATHER, given, got, *options, 0)
        return rows


def probe(engine: _core.Engine, driver: Driver, device: int) -> str | None:
    """Return the reason why this rank cannot use the transport, or None. Collective, if it is asked
    for.

    It sets `Devices.peers` when all ranks can use the transport.
    """
    devices = engine.devices()
    reason = refusal(engine)
    if reason is None and devices.transports.forced != "ipc":
        reason = "COLLECTIVES_DEVICE_TRANSPORT does not ask for it"
    if reason is None and devices.peers is None:
        try:
            devices.peers, reason = meet(EngineRanks(engine), driver, device, devices.room)
        except WAITING as error:
            raise type(error)(
                f"before the first call that goes by ipc, the ranks find out whether they can: "
                f"{error}"
            ) from error
    return reason


def refusal(engine: _core.Engine) -> str | None:
    """Return the reason why the ranks of an engine cannot use the transport with any device, or
    None. Local, and the same on all ranks.
    """
    if engine.size > 1 and (engine.segment is None or len(engine.segment.ranks) < engine.size):
        return "the ranks do not all share memory of one host"
    return None


def meet(
    ranks: EngineRanks, driver: Driver, device: int, room: int
) -> tuple[Peers | None, str | None]:
    """Return the memory and events that the ranks share, or None if a rank cannot share them, and
    the reason why this rank cannot, if any. Collective.

    It is called where `refusal` has returned None.
    """
    engine, shared, is_alone = ranks.engine, ranks.engine.segment, ranks.engine.size == 1
    lines = 1 if shared is None else shared.lines
    peers: Peers | None = None
    pages: Any = None
    sweep()

    def offer() -> Any:
        nonlocal peers
        peers = Peers(driver, device, max(-(-room // 64), lines) * 64, is_alone)
        return None if is_alone else peers.offer()

    def take(offers: list[Any]) -> str:
        nonlocal pages
        if is_alone:
            return ""
        assert peers is not None
        assert shared is not None
        pages, problems = segment.beside(ranks, shared, 64 * lines)
        peers.open(offers, engine.rank)
        return problems[engine.rank]

    def withdraw() -> None:
        if peers is not None:
            peers.withdraw()
        if pages is not None:
            pages.leave()

    def free() -> None:
        if peers is not None:
            peers.free()

    reasons = _exchanged(ranks, offer, take, withdraw, free)
    if any(reasons):
        return None, reasons[engine.rank] or None
    assert peers is not None
    if pages is not None:
        peers.share(pages)
    return peers, None


def _exchanged(
    ranks: EngineRanks,
    offer: Callable[[], Any],
    take: Callable[[list[Any]], str],
    withdraw: Callable[[], object],
    free: Callable[[], object],
) -> list[str]:
    """Offer memory to the other ranks and map theirs; return for each rank the reason why it
    cannot, or "". Collective.

    If a rank cannot, all ranks unmap the memory of others by `withdraw`, and then `free` their own.
    """
    reason, given = "", None
    try:
        given = offer()
    except Exception as error:  # a driver's own
        reason = plain(error)
    told = ranks.allgather((reason, given))
    reasons = [each for each, _ in told]
    if not any(reasons):
        try:
            reason = take([each for _, each in told])
        except WAITING:  # for another rank
            raise
        except Exception as error:  # a driver's own
            reason = plain(error)
        reasons = ranks.allgather(reason)
    if any(reasons):
        withdraw()
        ranks.allgather(None)  # memory is freed when no rank maps it
        free()
    return reasons


# -- arrays that others read where they lie --------------------------------------------------------


class Owner(Held):
    """The owner of mapped memory, which an array in it keeps."""

    driver: Driver
    device: int
    address: int

    def __init__(self, driver: Driver, device: int, address: int) -> None:
        self.driver, self.device, self.address = driver, device, address
        self.is_last = False  # no rank maps the memory any more: it is freed with the array

    def _drop(self) -> None:
        if self.is_last:
            with self.driver.on(self.device):
                self.driver.free(self.address)


def lend(engine: _core.Engine, peers: Peers, nbytes: int) -> Owner:
    """Return memory of this rank that all others have mapped. Collective.

    The memory of each rank becomes a window of the pages of `peers`, which the executor treats as
    an array in shared memory of the host (`plans/lending.py`).
    """
    driver, ranks, address = peers.driver, EngineRanks(engine), 0
    mapped: list[int] = []
    unused = [number for number, each in peers.loans.items() if each.owner() is None]
    gone = sorted(set.intersection(*map(set, ranks.allgather(unused))))
    peers.unmap(gone)

    def offer() -> bytes:
        nonlocal address
        with driver.on(peers.device):
            address = driver.allocate(-(-max(nbytes, 1) // WHOLE) * WHOLE)
            return driver.export_memory(address)

    def take(offers: list[bytes]) -> str:
        with driver.on(peers.device):
            for rank, theirs in enumerate(offers):
                mapped.append(address if rank == peers.me else driver.open_memory(theirs))
        return ""

    def withdraw() -> None:
        with driver.on(peers.device):
            for each in mapped:
                if each != address:
                    driver.close_memory(each)

    def free() -> None:
        if address:
            with driver.on(peers.device):
                driver.free(address)

    reasons = _exchanged(ranks, offer, take, withdraw, free)
    peers.forget(gone)
    if any(reasons):
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


# -- which calls -----------------------------------------------------------------------------------


def takes(job: DeviceCall) -> bool:
    """Return whether the transport runs a call; the others go through the host. Local, and the same
    on all ranks.
    """
    return job.is_shared and fold_of(job) is not None


class Fold(NamedTuple):
    """The fold of a call: the operation of its kernel, the dtype, and whether the result is divided
    by the number of ranks. The operation is empty for collectives without a fold.
    """

    op: str
    dtype: str
    is_average: bool


def fold_of(job: DeviceCall) -> Fold | None:
    """Return the fold of a call, or None if no kernel computes it. Local."""
    op, dtype = job.arguments[0], job.arrays[0].dtype
    if not job.reduces:
        return Fold("", dtype, False)
    if isinstance(op, str):
        op = getattr(reductions, op.upper())
    found = Fold("SUM" if op.average else op.name, dtype, op.average)
    return found if op.function is None and found[:2] in folds.PAIRS else None
