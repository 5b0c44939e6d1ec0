"""Calls on arrays of devices: they are checked, and go by a transport (`transports`)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from collectives import _core
from collectives.algorithms import spec
from collectives.devices import ipc, lending, nccl, runtime
from collectives.devices.arrays import DeviceArray, read
from collectives.devices.columns import Columns, Part, rows_of
from collectives.devices.direct import DirectRequest
from collectives.devices.job import Job
from collectives.devices.messages import Blocks, exchange
from collectives.devices.peers import Peers
from collectives.devices.requests import Call, StreamRequest
from collectives.devices.ring import SLOTS, Ring
from collectives.devices.staging import DeviceRequest, Line
from collectives.devices.transports import DeviceTransports, Transports
from collectives.errors import BufferError, CommunicatorError
from collectives.process.agreement import refusing
from collectives.text.words import plain

BROADCAST = _core.COLLECTIVES.index("broadcast")
LEAST = 64  # bytes of a slot for each rank: two elements of the largest dtype


class Options(NamedTuple):
    """The arguments of a call beside its arrays."""

    op: Any
    root: Any
    algorithm: str | None
    prescale: float
    postscale: float


class Numbers(NamedTuple):
    """The counts of a vector form, the shape of a new result, and where parts begin."""

    counts: Any
    receive_counts: Any
    shape: tuple[int, ...]
    displs: Any
    receive_displs: Any


class Devices:
    """What a communicator has for arrays of devices; pinned memory is made when one comes.

    Attributes
    ----------
    rings : dict
        Pinned memory and streams for each device.
    peers : Peers or None
        What the ranks share by the transport ipc, once they have asked for it.
    apart : dict
        The stream and memory of this rank for each device whose arrays MPI takes.
    blocks : dict
        Pinned memory for messages, for each device.
    nccl : dict
        The group of NCCL for each device.
    """

    def __init__(self, room: int, size: int, transport: str, chooser: Callable[[], object]) -> None:
        self.room, self.chooser = max(room, LEAST * size), chooser
        self.transports = Transports(transport)
        self.line = Line()
        self.rings: dict[int, Ring] = {}
        self.peers: Peers | None = None
        self.apart: dict[int, Peers] = {}
        self.blocks: dict[int, Blocks] = {}
        self.nccl: dict[int, nccl.Members] = {}
        self.making = threading.Lock()

    def call(
        self,
        engine: _core.Engine,
        kind: int,
        x: Any,
        out: Any,
        op: Any,
        root: Any,
        algorithm: str | None,
        timeout: float | None,
        prescale: float,
        postscale: float,
        blocking: bool,
        numbers: tuple[Any, ...] | None = None,
    ) -> Any:
        """Run a collective, or its vector form. Collective."""
        options = Options(op, root, algorithm, prescale, postscale)
        name = _core.COLLECTIVES[kind] + "v" * (numbers is not None)
        given, before = (None, None) if numbers is None else (Numbers(*numbers[:5]), numbers[5])
        with refusing(engine, name, (Exception,)):
            if timeout is not None:
                _core.seconds(timeout)
            job = self.job(engine, kind, x, out, options, given)
            if self.transports.stages(job):  # so that all ranks are told if it fails
                self.ring(job.arrays[0].device)
        return self.start(engine, name, job._replace(before=before), timeout, blocking)

    def plan(self, engine: _core.Engine, kind: int, x: Any, out: Any, *options: Any) -> DevicePlan:
        """Return a collective with its arguments checked. Local."""
        job = self.job(engine, kind, x, out, Options(*options))
        if job.finish is not None:
            raise BufferError(
                "x is a JAX array, and so its result would be, which is immutable: no second run "
                "could write it; pass an array of CuPy as out"
            )
        return DevicePlan(self, engine, kind, x, job.result, Options(*options), job.title)

    def start(
        self, engine: _core.Engine, name: str, job: Job, timeout: float | None, blocking: bool
    ) -> Any:
        """Start a call that was checked; wait for it if it is `blocking`. Collective."""
        call = Call(self, engine, runtime.driver_for("x"), job, blocking, timeout)
        with engine:
            engine.check_whole()
            if engine.agree is not None:
                engine.agree(name, job.text, True, timeout)
            return self.transports.of(call).run(call)

    def number(self, device: Any) -> int:
        """Return the number of a device that a user has named. Local."""
        return lending.device_of(device)

    def empty(
        self, engine: _core.Engine, device: int, shape: tuple[int, ...], dtype: Any, nbytes: int
    ) -> tuple[Any, bool]:
        """Return a new array on a device, and whether the other ranks have mapped its memory.
        Collective.
        """
        driver = runtime.driver_for("the new array")
        owner = None
        if self.transports.forced == "ipc" and engine.size > 1:
            reason = self.transports.survey(engine, driver, device).reasons["ipc"]
            everywhere = ipc.Ranks(engine).allgather(
                reason is None and self.peers is not None and self.peers.device == device
            )
            if all(everywhere) and self.peers is not None:
                owner = lending.lend(engine, self.peers, nbytes)
        with driver.on(device):
            address = 0 if owner is None else owner.address
            try:
                return driver.array(shape, dtype, address, owner), owner is not None
            except MemoryError as error:
                raise CommunicatorError(f"no memory for an array: {plain(error)}") from error

    def survey(self, engine: _core.Engine, x: Any) -> DeviceTransports:
        """Return how arrays on the device of `x` travel. Collective, at first for a device."""
        with refusing(engine, "device_transports", (Exception,)):
            driver = runtime.driver_for("x")
            found = read(x, "x", driver, self._reads)
            if found is None:
                raise BufferError("x is in host memory, and must be on a device")
        with engine:
            engine.check_whole()
            if engine.agree is not None:
                engine.agree("device_transports", "", True)
            return self.transports.survey(engine, driver, found.device)

    def message(
        self, engine: _core.Engine, x: Any, out: Any, message: Callable[..., Any], blocking: bool
    ) -> Any:
        """Send `x`, receive `out`, or do both. Local."""
        source, target = arrays = self._arrays(x, out, False)
        device = next(each.device for each in (source, target) if each is not None)
        ring = self.ring(device)
        with self.making:
            if device not in self.blocks:
                self.blocks[device] = Blocks(ring.driver, device)
        return exchange(engine, self.blocks[device], ring, arrays, message, out, blocking)

    def job(
        self,
        engine: _core.Engine,
        kind: int,
        x: Any,
        out: Any,
        options: Options,
        numbers: Numbers | None = None,
    ) -> Job:
        """Check a call, and make its result. Local."""
        contract = spec.COLLECTIVES[_core.COLLECTIVES[kind]]
        root = engine.check_root(options.root) if contract.rooted else 0
        place = engine.rank, engine.size, root
        gets = len(contract.outputs(*place)) > 0
        wanted = self.transports.asked(options.algorithm)
        source, target = self._arrays(x, out if gets else None, wanted == "nccl")
        array = target if source is None else source
        assert array is not None
        counts = None
        if numbers is not None:
            counts = np.asarray(numbers.counts), np.asarray(numbers.receive_counts)
        if wanted == "nccl":
            options = options._replace(algorithm=None)
        part, result, text, is_shared = _inspected(engine, kind, source, target, options, numbers)
        columns = Columns(kind, place, array.itemsize, self.room, part, counts)
        finish = None
        if gets and target is None:
            assert source is not None
            target = self._new(source, result.shape)
            finish = source.finish
        whole = part * contract.per_array(engine.size)
        if counts is not None:
            whole = 0 if columns.is_alltoall else int(counts[0].sum())
        parts = rows_of(columns, False, None if numbers is None else numbers.displs)
        places = rows_of(columns, True, None if numbers is None else numbers.receive_displs)
        job = Job(
            kind,
            f"{contract.name}{'v' * (counts is not None)} of {array.count} {array.dtype} on "
            f"cuda:{array.device}",
            columns,
            source,
            target,
            parts,
            places,
            _is_risky(columns, source, target, parts, places),
            (options.op, root, options.algorithm),
            (options.prescale, options.postscale),
            whole,
            text,
            None if target is None else target.value,
            contract.reduces,
            is_shared,
            finish=finish,
        )
        if wanted == "nccl":
            text = text.partition("algorithm=")[0] + "algorithm=nccl"
            job = job._replace(text=text, arguments=(options.op, root, "nccl"))
            nccl.check(job, runtime.driver_for("x"))
        if kind == BROADCAST and columns.inputs and _same_place(source, target):
            return job._replace(target=None)  # the root has it there
        return job

    def _arrays(
        self, x: Any, out: Any, may_capture: bool
    ) -> tuple[DeviceArray | None, DeviceArray | None]:
        """Read the arrays of a call; raise an error unless they are on one device."""
        driver = runtime.driver_for("out" if x is None else "x")
        source = target = None
        if x is not None:
            source = read(x, "x", driver, self._reads)
        if out is not None:
            target = read(out, "out", driver, self._writes, True)
        where = [
            (name, "in host memory" if found is None else f"on cuda:{found.device}")
            for name, value, found in (("x", x, source), ("out", out, target))
            if value is not None
        ]
        if len({each for _, each in where}) > 1:
            told = " and ".join(f"{name} is {each}" for name, each in where)
            raise BufferError(f"{told}; they must be on one device")
        for found in (source, target):
            if found is not None and found.stream is not None and not may_capture:
                with driver.on(found.device):
                    if driver.is_capturing(found.stream):
                        raise BufferError(
                            f"{found.name} is on a stream that is being captured into a graph, and "
                            f"what the host does in a call cannot be part of one; call the "
                            f"collective outside of the capture, or with algorithm='nccl'"
                        )
        return source, target

    def _new(self, source: DeviceArray, shape: tuple[int, ...]) -> DeviceArray:
        """Return a new array of the kind of `source`, and on its device."""
        driver = runtime.driver_for("x")
        made = read(source.like(shape, driver), "the result", driver, self._writes, True)
        if made is None or made.device != source.device:
            raise BufferError(
                f"x is on cuda:{source.device}, and its library made the result elsewhere; pass out"
            )
        return made

    def ring(self, device: int) -> Ring:
        """Return the pinned memory and the streams for a device. Local."""
        ring = self.rings.get(device)
        if ring is not None:
            return ring
        with self.making:  # threads may have their first call at the same time
            if device in self.rings:
                return self.rings[device]
            try:
                ring = self.rings[device] = Ring(runtime.driver_for("x"), device, self.room)
            except MemoryError as error:
                raise CommunicatorError(
                    f"there is no pinned memory of {SLOTS * self.room} bytes for cuda:{device}: "
                    f"{plain(error)}; COLLECTIVES_DEVICE_CHUNK sets a quarter of that"
                ) from error
        return ring

    def _reads(self, device: int) -> int:
        return self.ring(device).reads

    def _writes(self, device: int) -> int:
        return self.ring(device).writes

    def close(self) -> None:
        """Give back what was made, when no call is in flight. Collective, if there is a group of
        NCCL.
        """
        while self.nccl:
            self.nccl.popitem()[1].close()
        if self.peers is not None:
            self.peers.close()
            self.peers = None
        while self.apart:
            self.apart.popitem()[1].close()
        for blocks in self.blocks.values():
            blocks.close()
        for ring in self.rings.values():
            ring.close()
        self.blocks.clear()
        self.rings.clear()


class DevicePlan:
    """A collective on arrays of a device, made by `Communicator.plan`, to be run many times.
    Collective, as the collective that it runs.

    It is used like a `PlannedCall`. Each run is ordered after what its arrays' stream has then.
    """

    def __init__(
        self,
        devices: Devices,
        engine: _core.Engine,
        kind: int,
        x: Any,
        out: Any,
        options: Options,
        title: str,
    ) -> None:
        self._devices, self._engine = devices, engine
        self._kind, self._x, self._out, self._options = kind, x, out, options
        self._title = title
        self._request: DeviceRequest | DirectRequest | StreamRequest | None = None

    def __call__(self, timeout: float | None = None) -> Any:
        return self._run(timeout, True)

    def start(self) -> DevicePlan:
        """Start a run and return at once; see `Communicator.iallreduce`.
        Collective.

        Returns
        -------
        DevicePlan
            Itself.

        Raises
        ------
        CommunicatorError
            If the run before is still in flight, or the communicator is broken.
        """
        self._request = self._run(None, False)
        return self

    def test(self) -> bool:
        """Move the run on and say whether it is complete. Local.

        Raises
        ------
        CommunicatorError
            If nothing was started.
        """
        return self._started().test()

    def wait(self, timeout: float | None = None, host: bool = False) -> Any:
        """Wait for the run that was started, and return its result.
        Local: the ranks that it waits for have to start it too.

        Parameters
        ----------
        timeout : float, optional
        host : bool
            As for `DeviceRequest.wait`.

        Raises
        ------
        CommunicatorError
            If nothing was started.
        """
        return self._started().wait(timeout, host)

    def _look(self, waited: float, timeout: float | None = None) -> None:
        """End the run if it has `waited` too long, or for a rank that is gone. Local."""
        self._started()._look(waited, timeout)

    def _run(self, timeout: float | None, blocking: bool) -> Any:
        self._engine.check_whole()
        if self._request is not None and not self._request.test():
            raise CommunicatorError(f"{self._title} is in flight; wait for it before the next run")
        self._request = None
        if timeout is not None:
            _core.seconds(timeout)
        job = self._devices.job(self._engine, self._kind, self._x, self._out, self._options)
        name = _core.COLLECTIVES[self._kind]
        return self._devices.start(self._engine, name, job, timeout, blocking)

    def _started(self) -> DeviceRequest | DirectRequest | StreamRequest:
        if self._request is None:
            raise CommunicatorError(f"{self._title} was not started")
        return self._request

    def __repr__(self) -> str:
        return f"<DevicePlan of {self._title}>"


def _inspected(
    engine: _core.Engine,
    kind: int,
    source: DeviceArray | None,
    target: DeviceArray | None,
    options: Options,
    numbers: Numbers | None,
) -> tuple[int, Any, str, bool]:
    """Have the core check a call; return what it says (`Engine.inspect`)."""
    x = None if source is None else source.span()
    out = None if target is None else target.span()
    if numbers is None:
        return engine.inspect(kind, x, out, *options)
    # Parts that do not lie in a row are known to be inside of their array.
    if x is not None and source is not None and numbers.displs is not None:
        x = source.span(int(np.sum(numbers.counts)))
    if out is not None and target is not None and numbers.receive_displs is not None:
        received = numbers.receive_counts
        out = target.span(int(np.sum(received)))
    return engine.inspect(
        kind, x, out, *options, numbers.counts, numbers.receive_counts, numbers.shape
    )


def _same_place(a: DeviceArray | None, b: DeviceArray | None) -> bool:
    return a is not None and b is not None and a.address == b.address


def _is_risky(
    columns: Columns,
    source: DeviceArray | None,
    target: DeviceArray | None,
    parts: list[Part] | None,
    places: list[Part] | None,
) -> bool:
    """Return whether a piece would be written where a later one has yet to be read.

    The core has refused what overlaps otherwise than in place.
    """
    if source is None or target is None or not columns.inputs or not columns.outputs:
        return False
    begin, end = source.address, source.address + source.nbytes
    if end <= target.address or target.address + target.nbytes <= begin:
        return False
    if parts is None or places is None:
        # Columns are written where the same columns were read, be it in another row.
        return columns.is_alltoall and not _same_place(source, target)
    if columns.is_alltoall:
        return True
    first, last = columns.first_in, columns.first_in + columns.inputs
    for i, place in enumerate(places, columns.first_out):
        if first <= i < last:
            there = source.address + parts[i - first].start * columns.itemsize
            return there != target.address + place.start * columns.itemsize
    return True
