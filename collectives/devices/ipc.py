"""Whether ranks can read each other's device memory, and which calls go that way.

All ranks find out together, on the first call of a communicator that asks for this transport.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives import _core, reductions
from collectives.devices import folds
from collectives.devices.driver import Driver
from collectives.devices.job import Job
from collectives.devices.peers import Peers, sweep
from collectives.errors import MismatchError, PeerAbortedError, PeerLostError, StallError
from collectives.process import segment
from collectives.text.words import plain

ALLGATHER = _core.COLLECTIVES.index("allgather")
WAITING = MismatchError, PeerAbortedError, PeerLostError, StallError


# -- whether all ranks can -------------------------------------------------------------------------


class Ranks:
    """The ranks of an engine, which exchange objects by its own calls: so they hear of ranks that
    call something else, or are gone.
    """

    def __init__(self, engine: _core.Engine) -> None:
        self.engine = engine
        self.rank, self.members = engine.rank, list(range(engine.size))

    def allgather(self, obj: Any) -> list[Any]:
        """Return what each rank has given. Collective."""
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
        options = None, 0, None, None, 1.0, 1.0, True
        self.engine.call_piece(ALLGATHER, given, got, *options, 0)
        return rows


def probe(engine: _core.Engine, driver: Driver, device: int) -> str | None:
    """Return why this rank cannot use the transport, or None. Collective, if it is asked for.

    The first time that all ranks can, `Devices.peers` becomes what they share.
    """
    devices = engine.devices()
    reason = refusal(engine)
    if reason is None and devices.transports.forced != "ipc":
        reason = "COLLECTIVES_DEVICE_TRANSPORT does not ask for it"
    if reason is None and devices.peers is None:
        try:
            devices.peers, reason = meet(Ranks(engine), driver, device, devices.room)
        except WAITING as error:
            raise type(error)(
                f"before the first call that goes by ipc, the ranks find out whether they can: "
                f"{error}"
            ) from error
    return reason


def refusal(engine: _core.Engine) -> str | None:
    """Return why the ranks of an engine cannot use the transport, whatever their devices; or None.
    Local, and the same on all ranks.
    """
    if engine.size > 1 and (engine.segment is None or len(engine.segment.ranks) < engine.size):
        return "the ranks do not all share memory of one host"
    return None


def meet(ranks: Ranks, driver: Driver, device: int, room: int) -> tuple[Peers | None, str | None]:
    """Return what the ranks share of their devices, or None if one of them cannot; and why this
    rank cannot, if so. Collective.

    It is called where `refusal` has returned None.
    """
    engine = ranks.engine
    sweep()
    peers: Peers | None = None
    offer = None
    reason = ""
    alone = engine.size == 1
    lines = 1 if engine.segment is None else engine.segment.lines
    try:
        peers = Peers(driver, device, max(-(-room // 64), lines) * 64, alone)
        offer = None if alone else peers.offer()
    except Exception as error:  # a driver's own
        reason = plain(error)
    if alone:
        return peers, reason or None
    told = ranks.allgather((reason, offer))
    pages = None
    if not any(each for each, _ in told) and peers is not None and engine.segment is not None:
        pages, problems = segment.beside(ranks, engine.segment, 64 * lines)
        try:
            peers.open([each for _, each in told], engine.rank)
        except Exception as error:  # a driver's own
            reason = plain(error)
        told = [(each, None) for each in ranks.allgather(problems[engine.rank] or reason)]
    if any(each for each, _ in told):
        if peers is not None:
            peers.withdraw()
        if pages is not None:
            pages.leave()
        ranks.allgather(None)  # nobody frees what another still has open
        if peers is not None:
            peers.free()
        return None, told[engine.rank][0] or None
    assert peers is not None
    assert pages is not None
    peers.share(pages)
    return peers, None


# -- which calls -----------------------------------------------------------------------------------


def takes(job: Job) -> bool:
    """Return whether the transport runs a call; the others go through the host. Local, and the same
    on all ranks.
    """
    return job.is_shared and fold_of(job) is not None


class Fold(NamedTuple):
    """What a call does to elements: the operation of its kernel, the dtype, and whether the result
    is divided by the number of ranks. The operation is empty where nothing is folded.
    """

    op: str
    dtype: str
    is_average: bool


def fold_of(job: Job) -> Fold | None:
    """Return what a call does to elements, or None if no kernel does that. Local."""
    op, dtype = job.arguments[0], job.arrays[0].dtype
    if not job.reduces:
        return Fold("", dtype, False)
    if isinstance(op, str):
        op = getattr(reductions, op.upper())
    found = Fold("SUM" if op.average else op.name, dtype, op.average)
    return found if op.function is None and found[:2] in folds.PAIRS else None
