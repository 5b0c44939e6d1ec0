"""Collectives of NCCL, for ``algorithm="nccl"``, which are put on the streams of the callers.

NCCL chooses its own algorithms and rounds in its own way, so that results may differ from those of
this library in the last bits. The first call on each device makes a group of the ranks.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from collectives import _core
from collectives._core import ALLREDUCE, BROADCAST
from collectives.devices.arrays import DeviceArray
from collectives.devices.driver import Driver, Events, NcclGroup
from collectives.devices.requests import NAPS, AgreedCall, DeviceCall, StreamRequest
from collectives.errors import (
    ArgumentError,
    BufferError,
    CommunicatorError,
    StallError,
    UnsupportedTypeError,
)
from collectives.process.waiting import Wait
from collectives.reductions import MIN, name_of
from collectives.text.words import error_text, grouped, plain, ranks

SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"
SHARES = 23000  # the version of NCCL that reads it first
ID = 128  # bytes, NCCL_UNIQUE_ID_BYTES

FOLDS = ("allreduce", "reduce", "reduce_scatter")
MOVES = ("broadcast", "allgather", "alltoall", "gather", "scatter")
OPERATIONS = ("SUM", "PROD", "MIN", "MAX", "AVG")


# -- whether it is possible ------------------------------------------------------------------------


def probe(engine: _core.Engine, driver: Driver, device: int) -> str | None:
    """Return the reason why this process cannot use NCCL, or None. Local."""
    try:
        driver.nccl()
    except Exception as error:  # CuPy's own, and those of libraries that it loads
        return plain(error)
    return None


def facts(driver: Driver, device: int) -> str:
    """Return the GPU of this rank, its version of NCCL, and whether it may share a GPU, as text.
    Local.
    """
    gpu = f"{driver.identity(device)} of {platform.node()}"
    return json.dumps([gpu, driver.nccl().version, os.environ.get(SHARING) == "1"])


def difference(told: list[str]) -> str | None:
    """Return the reason why the ranks cannot use NCCL together, or None. Local."""
    said = list(map(json.loads, told))
    gpus = grouped(enumerate(gpu for gpu, _, _ in said))
    versions = grouped(enumerate(version for _, version, _ in said))
    may_share = all(shares and version >= SHARES for _, version, shares in said)
    if len(versions) > 1:
        which = ", ".join(f"{version} on {ranks(mask)}" for version, mask in versions.items())
        return f"the versions of NCCL differ: {which}"
    for gpu, mask in gpus.items():
        if mask.bit_count() > 1 and not may_share:
            return (
                f"{ranks(mask)} share one GPU ({gpu}), and NCCL needs one for each rank, or "
                f"version 2.30 with {SHARING}=1 on all ranks"
            )
    return None


def check(job: DeviceCall, driver: Driver) -> None:
    """Raise an error if NCCL cannot do a call. Local."""
    name = _core.COLLECTIVES[job.kind]
    is_vector = job.columns.counts is not None
    if name not in (*FOLDS, *MOVES) or (is_vector and name in FOLDS):
        raise ArgumentError(
            f"NCCL has no {name}{'v' * is_vector} here; it has {', '.join((*FOLDS, *MOVES))}, and "
            f"the vector forms of those that move data"
        )
    if name in FOLDS:
        _check_fold(job, driver)
    source, target = _ends(job)
    if source is None or target is None or not source.overlaps(target):
        return
    given, got = _rows(job, False), _rows(job, True)
    rank = job.columns.place[0]
    # The whole of one array is this rank's part of the other, or both are the same.
    is_whole = name in ("allreduce", "reduce", "broadcast")
    same = given[0] == got[0] if is_whole else given[rank % len(given)] == got[rank % len(got)]
    if not same or (not is_whole and len(given) > 1 and len(got) > 1):
        raise BufferError(
            f"out overlaps x, and {name} by NCCL does not run in place in this way; pass an out "
            f"that shares no memory with x"
        )


def _check_fold(job: DeviceCall, driver: Driver) -> None:
    """Raise an error if NCCL cannot do a fold."""
    op = job.arguments[0]
    name = name_of(op)
    if getattr(op, "function", None) is not None or name not in OPERATIONS:
        raise ArgumentError(f"op is {name}, and NCCL has {', '.join(OPERATIONS)}")
    if job.scales != (1.0, 1.0):
        raise ArgumentError("prescale and postscale are not for NCCL; scale x or the result")
    try:
        known = driver.nccl().dtypes
    except Exception:
        return  # the ranks report that NCCL is missing
    if job.arrays[0].dtype not in known:
        raise UnsupportedTypeError(
            f"x is {job.arrays[0].dtype}, and NCCL folds {', '.join(sorted(known))}"
        )


def _ends(job: DeviceCall) -> tuple[DeviceArray | None, DeviceArray | None]:
    """Return the arrays that this rank reads and writes, if any."""
    columns = job.columns
    target = job.target
    if columns.outputs and target is None:
        target = job.source  # the root of a broadcast has the result there
    return job.source if columns.inputs else None, target if columns.outputs else None


def _rows(job: DeviceCall, incoming: bool) -> list[tuple[int, int]]:
    """Return the address and the bytes of each part of this rank's input, or of its output."""
    array, columns = _ends(job)[incoming], job.columns
    if array is None:
        return []
    parts = job.target_parts if incoming else job.parts
    size = columns.itemsize
    if parts is not None:
        return [(array.address + each.start * size, each.length * size) for each in parts]
    nbytes = columns.part * size
    many = columns.outputs if incoming else columns.inputs
    return [(array.address + i * nbytes, nbytes) for i in range(many)]


# -- the group of a device -------------------------------------------------------------------------


class Members:
    """The group of NCCL of the ranks of a communicator, each with one device."""

    group: NcclGroup
    engine: _core.Engine
    driver: Driver
    device: int

    def __init__(self, group: NcclGroup, engine: _core.Engine, driver: Driver, device: int) -> None:
        self.group, self.engine, self.driver, self.device = group, engine, driver, device
        self.spare: Events = Events(driver, device)
        self.last: int = self.spare.take()  # an event for the last work on any stream

    def close(self) -> None:
        """Leave the group, once the device has done its work. Collective."""
        wait = Wait(NAPS, timeout=self.engine.timeout)
        with self.driver.on(self.device):
            self.spare.close()
            while not self.driver.done(self.last):
                if not wait.turn():
                    self.group.abort()
                    raise StallError(
                        f"free(): rank {self.engine.rank} waited {self.engine.timeout:g} s for "
                        f"NCCL to finish on cuda:{self.device}; another rank has not made "
                        f"the same calls"
                    )
            self.group.close()
            self.spare.give(self.last)


def _joined(call: AgreedCall) -> Members:
    """Return the group for the device of a call; the first call makes it. Collective."""
    made: dict[int, Members] = call.devices.nccl
    if call.device not in made:
        engine, driver = call.engine, call.driver
        given = np.zeros(1 + ID, np.uint8)
        problem = ""
        if engine.rank == 0:
            try:
                given[1:] = np.frombuffer(driver.nccl().unique_id(), np.uint8)
                given[0] = 1
            except Exception as error:
                problem = error_text(error)
        _together(call, BROADCAST, given)
        group = None
        if given[0]:
            try:
                with driver.on(call.device):
                    group = driver.nccl().join(given[1:].tobytes(), engine.size, engine.rank)
            except Exception as error:
                problem = error_text(error)
        ready = np.array([group is not None])
        _together(call, ALLREDUCE, ready)
        if group is None or not ready[0]:
            raise CommunicatorError(
                f"NCCL does not connect the ranks: {problem or 'another rank has failed'}; "
                f"NCCL_DEBUG=WARN says more"
            )
        made[call.device] = Members(group, engine, driver, call.device)
    return made[call.device]


def _together(call: AgreedCall, kind: int, values: Any) -> None:
    """Run a collective of the host on an array, in place. Collective."""
    engine = call.engine
    engine.call(kind, values, values, MIN, 0, None, call.timeout)


# -- a call ----------------------------------------------------------------------------------------


class _Lane(NamedTuple):
    """The streams of a call: the one that it runs on, and another one that has its input."""

    main: int
    other: int | None
    is_captured: bool


def run(call: AgreedCall) -> Any:
    """Put a call on the stream of its arrays. Collective."""
    lane = _lane(call)
    members = _joined(call)
    driver, group = call.driver, members.group
    event = None
    with driver.on(call.device):
        if not lane.is_captured:
            driver.wait(lane.main, members.last)  # calls on a group run one after the other
        if lane.other is not None:
            passing = members.spare.take()
            driver.record(passing, lane.other)
            driver.wait(lane.main, passing)
            members.spare.give(passing)
        try:
            _put(call.job, group, call.engine, lane.main)
        except Exception as error:
            raise CommunicatorError(f"{call.job.title} by NCCL: {error_text(error)}") from error
        if not lane.is_captured:
            driver.record(members.last, lane.main)
            if lane.other is not None:
                driver.wait(lane.other, members.last)
            event = members.spare.take()
            driver.record(event, lane.main)
    if event is None:
        return call.job.result
    request = StreamRequest(call, event, members.spare, group)
    return request.wait(call.timeout) if call.blocking else request


def _lane(call: AgreedCall) -> _Lane:
    """Find the streams of a call."""
    source, target = _ends(call.job)
    reads = None if source is None else _stream(call, source, False)
    writes = None if target is None else _stream(call, target, True)
    main = writes if writes is not None else reads
    assert main is not None
    other = None if reads in (None, main) else reads
    with call.driver.on(call.device):
        captured = [
            call.driver.is_capturing(stream) for stream in (main, other) if stream is not None
        ]
    if any(captured):
        why = ""
        if call.device not in call.devices.nccl:
            why = "the first call by NCCL connects the ranks: make one before the capture"
        elif not all(captured):
            why = "x and out are on different streams: use one"
        elif not call.blocking or call.job.before is not None:
            why = "a request cannot be waited for in a graph: use the blocking form"
        if why:
            raise BufferError(f"{call.job.title} cannot be captured into a graph: {why}")
    return _Lane(main, other, any(captured))


def _stream(call: AgreedCall, array: DeviceArray, is_written: bool) -> int:
    """Return the stream of an array. If it is not known, return the stream of the ring, with which
    the array was exported.
    """
    if array.stream is not None:
        return array.stream
    ring = call.devices.ring(call.device)
    stream: int = ring.writes if is_written else ring.reads
    return stream


def _put(job: DeviceCall, group: NcclGroup, engine: _core.Engine, stream: int) -> None:
    """Put a call on a stream."""
    name, columns = _core.COLLECTIVES[job.kind], job.columns
    op, root, *_ = job.arguments
    source, target = _ends(job)
    given = 0 if source is None else source.address
    got = 0 if target is None else target.address
    count, nbytes = columns.part, columns.part * columns.itemsize
    dtype = job.arrays[0].dtype
    if columns.counts is None and count == 0:
        return
    if name == "allreduce":
        group.allreduce(given, got, count, dtype, name_of(op), stream)
    elif name == "reduce":
        group.reduce(given, got or given, count, dtype, name_of(op), root, stream)
    elif name == "reduce_scatter":
        group.reduce_scatter(given, got, count, dtype, name_of(op), stream)
    elif name == "broadcast" and columns.counts is None:
        group.broadcast(given or got, got, nbytes, root, stream)
    elif name == "allgather" and columns.counts is None:
        group.allgather(given, got, nbytes, stream)
    else:
        group.exchange(*_messages(name, job, engine.size, root), stream)


def _messages(
    name: str, job: DeviceCall, size: int, root: int
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Return the rank, address and bytes of each sent and each received part that is not empty."""
    given, got = _rows(job, False), _rows(job, True)
    everybody = range(size)
    sends = _to([root] if name == "gather" else everybody, given)
    receives = _to([root] if name == "scatter" else everybody, got)
    if name == "allgather":
        sends = _to(everybody, given * size)
    rank = job.columns.place[0]
    mine = [each for each in sends if each[0] == rank]
    if mine == [each for each in receives if each[0] == rank]:  # this rank's part is in place
        sends = [each for each in sends if each[0] != rank]
        receives = [each for each in receives if each[0] != rank]
    return [each for each in sends if each[2]], [each for each in receives if each[2]]


def _to(peers: Iterable[int], rows: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    return [(peer, *row) for peer, row in zip(peers, rows, strict=False)]
