"""Calls on arrays of devices: they are checked, and handed to a transport (`transports`)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple

import numpy as np

from collectives import _core
from collectives._core import ALLREDUCE, BROADCAST
from collectives.algorithms import spec
from collectives.algorithms.bits import checked
from collectives.devices import ipc, nccl, runtime
from collectives.devices.arrays import DeviceArray, read
from collectives.devices.columns import Columns, Part, rows_of
from collectives.devices.messages import Blocks, exchange
from collectives.devices.on_device import OnDevice
from collectives.devices.peers import Peers
from collectives.devices.requests import AgreedCall, DeviceCall, StartedCall
from collectives.devices.ring import SLOTS, Ring
from collectives.devices.staging import StartQueue
from collectives.devices.transports import DeviceTransports, Transports, stages
from collectives.errors import (
    ArgumentError,
    BufferError,
    CommunicatorError,
    UnsupportedTypeError,
)
from collectives.process.agreement import refusing
from collectives.text.words import plain, shown

LEAST = 64  # bytes of a slot for each rank: two elements of the largest dtype


class Options(NamedTuple):
    """The arguments of a call other than its arrays."""

    op: Any
    root: Any
    algorithm: str | None
    bits: str | None
    prescale: float
    postscale: float


class Devices:
    """The state of a communicator for arrays of devices. The first such array allocates pinned
    memory.
    """

    room: int
    chooser: Callable[[], object]

    def __init__(self, room: int, size: int, transport: str, chooser: Callable[[], object]) -> None:
        self.room, self.chooser = max(room, LEAST * size), chooser
        self.transports: Transports = Transports(transport)
        self.queue: StartQueue = StartQueue()
        self.peers: Peers | None = None  # made by the first call that asks for ipc
        # For each device: pinned memory and streams; the stream and memory for arrays that MPI
        # sends; pinned memory for messages; the group of NCCL.
        self.rings: dict[int, Ring] = {}
        self.apart: dict[int, Peers] = {}
        self.blocks: dict[int, Blocks] = {}
        self.nccl: dict[int, nccl.Members] = {}
        self.making: threading.Lock = threading.Lock()

    def call(
        self,
        engine: _core.Engine,
        kind: int,
        x: Any,
        out: Any,
        op: Any,
        root: Any,
        algorithm: str | None,
        bits: str | None,
        timeout: float | None,
        prescale: float,
        postscale: float,
        blocking: bool,
        numbers: _core.Parts | None = None,
    ) -> Any:
        """Run a collective, or its vector form. Collective."""
        options = Options(op, root, algorithm, bits, prescale, postscale)
        name = _core.COLLECTIVES[kind] + "v" * (numbers is not None)
        before = None
        if numbers is not None and numbers.after is not None:
            before = numbers.before, numbers.after
        with refusing(engine, name, (Exception,)):
            if timeout is not None:
                _core.seconds(timeout)
            job = self.job(engine, kind, x, out, options, numbers)
            if stages(job):  # so that all ranks learn of a failure
                self.ring(job.arrays[0].device)
        return self.start(engine, name, job._replace(before=before), timeout, blocking)

    def plan(self, engine: _core.Engine, kind: int, x: Any, out: Any, *options: Any) -> DevicePlan:
        """Return a planned call with its arguments checked. Local."""
        job = self.job(engine, kind, x, out, Options(*options))
        if job.finish is not None:
            raise BufferError(
                "x is a JAX array, and so its result would be, which is immutable: no second run "
                "could write it; pass an array of CuPy as out"
            )
        return DevicePlan(self, engine, kind, x, job.result, Options(*options), job.title)

    def start(
        self,
        engine: _core.Engine,
        name: str,
        job: DeviceCall,
        timeout: float | None,
        blocking: bool,
    ) -> Any:
        """Start a call that was checked; wait for it if it is `blocking`. Collective."""
        call = AgreedCall(self, engine, runtime.driver_for("x"), job, blocking, timeout)
        with engine:
            engine.check_usable()
            if engine.agree is not None:
                engine.agree(name, job.text, True, timeout)
            return self.transports.of(call).run(call)

    def number(self, device: Any) -> int:
        """Return the number of a device that a user has named."""
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

    def empty(
        self, engine: _core.Engine, device: int, shape: tuple[int, ...], dtype: Any, nbytes: int
    ) -> Any:
        """Return a new array on a device, whose memory the other ranks map if they can.
        Collective.
        """
        driver = runtime.driver_for("the new array")
        owner = None
        if self.transports.forced == "ipc" and engine.size > 1:
            reason = self.transports.survey(engine, driver, device).reasons["ipc"]
            everywhere = ipc.EngineRanks(engine).allgather(
                reason is None and self.peers is not None and self.peers.device == device
            )
            if all(everywhere) and self.peers is not None:
                owner = ipc.lend(engine, self.peers, nbytes)
        with driver.on(device):
            address = 0 if owner is None else owner.address
            try:
                return driver.array(shape, dtype, address, owner)
            except MemoryError as error:
                raise CommunicatorError(f"no memory for an array: {plain(error)}") from error

    def survey(self, engine: _core.Engine, x: Any) -> DeviceTransports:
        """Return the transports for arrays on the device of `x`. The first call for a device is
        collective; later ones are local.
        """
        with refusing(engine, "device_transports", (Exception,)):
            driver = runtime.driver_for("x")
            found = read(x, "x", driver, self._reads)
            if found is None:
                raise BufferError("x is in host memory, and must be on a device")
        with engine:
            engine.check_usable()
            if engine.agree is not None:
                engine.agree("device_transports", "", True)
            return self.transports.survey(engine, driver, found.device)

    def message(
        self, engine: _core.Engine, x: Any, out: Any, message: Callable[..., Any], blocking: bool
    ) -> Any:
        """Send `x`, receive `out`, or do both. Local."""
        source, target = arrays = self.arrays(x, out, False)
        device = next(each.device for each in (source, target) if each is not None)
        ring = self.ring(device)
        return exchange(engine, self.pinned(device), ring, arrays, message, out, blocking)

    def pinned(self, device: int) -> Blocks:
        """Return the pinned memory for arrays that are copied to and from a device as a whole.
        Local.
        """
        ring = self.ring(device)
        with self.making:
            if device not in self.blocks:
                self.blocks[device] = Blocks(ring.driver, device)
        return self.blocks[device]

    def job(
        self,
        engine: _core.Engine,
        kind: int,
        x: Any,
        out: Any,
        options: Options,
        numbers: _core.Parts | None = None,
    ) -> DeviceCall:
        """Check a call, and allocate its result. Local."""
        contract = spec.COLLECTIVES[_core.COLLECTIVES[kind]]
        root = engine.check_root(options.root) if contract.rooted else 0
        place = engine.rank, engine.size, root
        gets = len(contract.outputs(*place)) > 0
        bits = engine.bits if options.bits is None else checked(options.bits)
        wanted = self.transports.asked(options.algorithm, contract, bits)
        source, target = self.arrays(x, out if gets else None, wanted == "nccl")
        array = target if source is None else source
        assert array is not None
        counts = None
        if numbers is not None:
            counts = numbers.counts, numbers.receive_counts
        ends = source, target
        part, result, text, is_shared = _inspected(engine, kind, ends, options, numbers, wanted)
        cut = _columns if counts is None else Columns
        columns = cut(kind, place, array.itemsize, self.room, part, counts)
        finish = None
        if gets and target is None:
            assert source is not None
            target = self.new(source, result.shape)
            finish = source.finish
        whole = part * contract.per_array(engine.size)
        if counts is not None:
            whole = 0 if columns.is_alltoall else int(counts[0].sum())
        parts = rows_of(columns, False, None if numbers is None else numbers.displs)
        places = rows_of(columns, True, None if numbers is None else numbers.receive_displs)
        job = DeviceCall(
            kind,
            f"{contract.name}{'v' * (counts is not None)} of {array.count} {array.dtype} on "
            f"cuda:{array.device}",
            columns,
            source,
            target,
            parts,
            places,
            _is_risky(columns, source, target, parts, places),
            (options.op, root, options.algorithm, options.bits),
            (options.prescale, options.postscale),
            whole,
            text,
            None if target is None else target.value,
            contract.reduces,
            is_shared,
            wanted,
            finish=finish,
        )
        if wanted == "nccl":
            nccl.check(job, runtime.driver_for("x"))
        if kind == BROADCAST and columns.inputs and _same_place(source, target):
            return job._replace(target=None)  # the root's x is the result
        return job

    def arrays(
        self, x: Any, out: Any, may_capture: bool
    ) -> tuple[DeviceArray | None, DeviceArray | None]:
        """Read the arrays of a call; raise an error unless they are on one device."""
        driver = runtime.driver_for("out" if x is None else "x")
        source = target = None
        if x is not None:
            source = read(x, "x", driver, self._reads)
        if out is x and source is not None and source.stream is not None:
            target = None if source.is_read_only else source
        if out is not None and target is None:
            target = read(out, "out", driver, self._writes, True)
        where = [
            (name, "in host memory" if found is None else f"on cuda:{found.device}")
            for name, value, found in (("x", x, source), ("out", out, target))
            if value is not None
        ]
        if len({each for _, each in where}) > 1:
            told = " and ".join(f"{name} is {each}" for name, each in where)
            raise BufferError(f"{told}; they must be on one device")
        for found in (source, target if target is not source else None):
            if found is not None and found.stream is not None and not may_capture:
                with driver.on(found.device):
                    if driver.is_capturing(found.stream):
                        raise BufferError(
                            f"{found.name} is on a stream that is being captured into a graph, "
                            f"which cannot contain the host's part of a call; call the "
                            f"collective outside of the capture, or with algorithm='nccl'"
                        )
        return source, target

    def new(self, source: DeviceArray, shape: tuple[int, ...]) -> DeviceArray:
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
        """Free all memory, streams and groups, when no call is in flight. Collective, if there is
        a group of NCCL.
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


class DevicePlan(OnDevice):
    """A collective on arrays of a device, made by `Communicator.plan`, to be run many times.
    Collective, as the collective that it runs.

    It is used like a `PlannedCall`. Each run is ordered after the work that is on the stream of its
    arrays when it starts.
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
        self._request: StartedCall | None = None

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
        """Make progress, and return whether the run is complete. Local.

        Raises
        ------
        CommunicatorError
            If nothing was started.
        """
        return self._started().test()

    def wait(self, timeout: float | None = None, host: bool = False) -> Any:
        """Wait for the run that was started, and return its result.
        Local, but other ranks have to start the run, too.

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
        self._engine.check_usable()
        if self._request is not None and not self._request.test():
            raise CommunicatorError(f"{self._title} is in flight; wait for it before the next run")
        self._request = None
        if timeout is not None:
            _core.seconds(timeout)
        job = self._devices.job(self._engine, self._kind, self._x, self._out, self._options)
        name = _core.COLLECTIVES[self._kind]
        return self._devices.start(self._engine, name, job, timeout, blocking)

    def _started(self) -> StartedCall:
        if self._request is None:
            raise CommunicatorError(f"{self._title} was not started")
        return self._request

    def __repr__(self) -> str:
        return f"<DevicePlan of {self._title}>"


class DeviceGroup:
    """The counterpart of `_core.Group` for arrays of devices, without packing."""

    count: int
    arrays: list[Any]
    places: list[Any]

    def __init__(
        self, engine: _core.Engine, arrays: list[Any], outs: list[Any], arguments: tuple[Any, ...]
    ) -> None:
        op, algorithm, bits, prescale, postscale = arguments
        devices: Devices = engine.devices()
        self.count, self.arrays, self.places = len(arrays), arrays, list(outs)
        self._refuse_host(devices)
        self._jobs = []
        for i, (x, out) in enumerate(zip(arrays, outs, strict=True)):
            options = Options(op, 0, algorithm, bits, prescale, postscale)
            try:
                self._jobs.append(devices.job(engine, ALLREDUCE, x, out, options))
            except (ArgumentError, UnsupportedTypeError) as error:
                raise type(error)(f"arrays[{i}]: {error}") from error
            if self._jobs[-1].finish is None:  # nothing is left that can fail
                self.places[i] = self._jobs[-1].result

    def _refuse_host(self, devices: Devices) -> None:
        """Raise an error if some arrays are in host memory."""
        places: dict[str, str] = {}
        driver = runtime.driver_for("an array")
        for i, x in enumerate(self.arrays):
            found = read(x, f"arrays[{i}]", driver, devices._reads)
            where = "in host memory" if found is None else f"on cuda:{found.device}"
            places.setdefault("host" if found is None else "device", f"arrays[{i}] is {where}")
        if len(places) > 1:
            raise BufferError(
                f"{' and '.join(places.values())}; pass those in host memory in another call"
            )

    def overlap(self) -> tuple[str, str] | None:
        """Return the names of two arrays of which one is written where the other is read or
        written, or None. Local.
        """
        spans = []
        for i, job in enumerate(self._jobs):
            source, target = job.source, job.target
            assert source is not None
            assert target is not None
            spans.append((target.address, target.nbytes, True, i))
            if source.address != target.address:
                spans.append((source.address, source.nbytes, False, i))
        return _core.overlapping([each for each in spans if each[1]])

    def sizes(self, most: int) -> list[tuple[str, int]]:
        """Return the (dtype, number of elements) of the first `most` arrays. Local."""
        arrays = [job.arrays[0] for job in self._jobs[:most]]
        return [(each.dtype, each.count) for each in arrays]

    def parts(self, apart: int, most: int) -> list[list[int]]:
        """Return the numbers of the arrays of each collective: each array has its own. Local."""
        return [[i] for i in range(self.count)]

    def array(self, i: int) -> tuple[Any, Any]:
        """Return array `i` and its `out`. Local."""
        return self.arrays[i], self.places[i]

    def store(self, i: int, result: Any) -> None:
        """Store the result of array `i`. Local."""
        self.places[i] = result

    def results(self) -> list[Any]:
        """Return the results of all arrays, when all are complete. Local."""
        return self.places


_columns = lru_cache(Columns)  # they are constant


def _inspected(
    engine: _core.Engine,
    kind: int,
    ends: tuple[DeviceArray | None, DeviceArray | None],
    options: Options,
    numbers: _core.Parts | None,
    asked: str | None,
) -> tuple[int, Any, str, bool]:
    """Have the core check a call; return the answer of `Engine.inspect`."""
    source, target = ends
    if asked == "nccl":
        options = options._replace(algorithm=None, bits=None)
    x = None if source is None else source.span()
    out = None if target is None else target.span()
    if numbers is not None:
        # The parts are known to be inside of their array. Where they do not lie in a row, the core
        # gets a span of their total length.
        if source is not None and numbers.displs is not None:
            x = source.span(int(np.sum(numbers.counts)))
        if target is not None and numbers.receive_displs is not None:
            out = target.span(int(np.sum(numbers.receive_counts)))
    part, result, text, is_shared = engine.inspect(kind, x, out, *options, numbers)
    if asked == "nccl":
        text = text.partition("algorithm=")[0] + "algorithm=nccl"
    return part, result, text, is_shared


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

    The core has refused arrays that overlap in another way than in place.
    """
    if source is None or target is None or not columns.inputs or not columns.outputs:
        return False
    if not source.overlaps(target):
        return False
    if parts is None or places is None:
        # Columns are written where the same columns were read, or the same columns of another row.
        return columns.is_alltoall and not _same_place(source, target)
    if columns.is_alltoall:
        return True
    first, last = columns.first_in, columns.first_in + columns.inputs
    for i, place in enumerate(places, columns.first_out):
        if first <= i < last:
            there = source.address + parts[i - first].start * columns.itemsize
            return there != target.address + place.start * columns.itemsize
    return True
