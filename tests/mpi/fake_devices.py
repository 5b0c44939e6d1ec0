"""Fixtures with a GPU that is not there, for tests on arrays of devices: a plugin of theirs.

The fixture `gpu` also says how calls travel: by what is automatic, by ipc, or by messages of an MPI
that accepts device pointers.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import FULL
from mpi4py import MPI

import collectives as cc
from collectives.devices import cuda_aware_mpi, peers, runtime

sys.path.append(str(Path(__file__).resolve().parents[1] / "devices"))

import fake_kernels
import on_cpu
from fake_arrays import Array, DLPackArray
from fake_gpu import FakeDriver

CHUNK = 64 * 16  # bytes of a slot, and of a lane
# Both modes take long: one of them for each number of ranks, but on two.
MODES = ["random", "lazy"]
if MPI.COMM_WORLD.Get_size() != 2 and not FULL:
    MODES = [MODES[MPI.COMM_WORLD.Get_size() % 2]]
SHARE = 5  # one test in so many
WAYS = [(mode, transport) for transport in ("auto", "ipc", "mpi") for mode in MODES]


def pytest_collection_modifyitems(config, items):
    """Leave most of what has run by another transport out by ipc and mpi.

    The files `test_devices_*` are whole.
    """
    if FULL:
        return
    mine, others = [], []
    for item in items:
        way = getattr(item, "callspec", None) and item.callspec.params.get("gpu")
        is_direct = isinstance(way, tuple) and way[1] != "auto"
        is_left_out = is_direct and zlib.crc32(item.nodeid.rpartition("/")[2].encode()) % SHARE
        (others if is_left_out else mine).append(item)
    items[:] = mine
    config.hook.pytest_deselected(items=others)


class Tensor(Array):
    """An array whose library can be asked for more of its kind."""

    def __array_namespace__(self):
        return SimpleNamespace(empty=lambda shape, dtype, device: self.empty_like(shape))


class Exporter(DLPackArray):
    """The same by DLPack: nobody hears of its stream."""

    __array_namespace__ = Tensor.__array_namespace__


def in_use(mode, transport="auto", **options):
    """Give a driver in place of CuPy's, and have calls take a transport."""
    with pytest.MonkeyPatch.context() as patch:
        if transport != "auto":
            if on_cpu.COMPILER is None:
                pytest.skip("there is no C++ compiler for the kernels (g++, clang++ or c++)")
            fake_kernels.library()  # not while a stream waits for it
            options = {**fake_kernels.OPTIONS, **options}
            patch.setenv("COLLECTIVES_DEVICE_TRANSPORT", transport)
            patch.setattr(peers, "EVENTS", 8)  # so few that there are not enough at times
        if transport == "mpi":
            options["is_open"] = True
            patch.setattr(cuda_aware_mpi, "refusal", lambda: None)
            patch.setattr(cuda_aware_mpi, "failure", lambda device, limit: None)
        driver = FakeDriver(mode=mode, seed=7, **options)
        before = runtime.use(driver)
        try:
            yield driver
        finally:
            runtime.use(before)


def whole(mode, transport):
    """Give a driver as `in_use` does; faults, and what is left at the end, fail the test."""
    for driver in in_use(mode, transport):
        with driver:
            yield driver


def on_device(gpu, values, stream, kind=Tensor):
    return kind.of(gpu, values, stream=stream)


def fetched(got):
    """Return a result in host memory."""
    return None if got is None else got.get()


def group(validate):
    """Make a communicator whose slots are small, so that there are many pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTIVES_DEVICE_CHUNK", str(CHUNK))
        patch.setenv("COLLECTIVES_VALIDATE", str(int(validate)))
        return cc.Communicator(MPI.COMM_WORLD)


@pytest.fixture
def shares(fresh):
    """Whether the ranks compare their calls in shared memory."""
    comm = fresh(validate=False, timeout=20)
    return comm._segment is not None and comm.nodes == 1


def refuse(transport):
    """Skip a test by ipc if the ranks do not share memory, and by mpi if nothing is sent."""
    if transport == "mpi" and MPI.COMM_WORLD.Get_size() == 1:
        pytest.skip("a rank that is alone sends no messages")
    if transport == "ipc" and MPI.COMM_WORLD.Get_size() > 1:
        with cc.Communicator(MPI.COMM_WORLD) as comm:
            if comm._segment is None or comm.nodes > 1:
                pytest.skip("the ranks do not share memory")


@pytest.fixture(params=WAYS, ids="-".join)
def gpu(request):
    """A driver whose streams run some time later, or only when somebody waits for them."""
    refuse(request.param[1])
    yield from whole(*request.param)


@pytest.fixture(params=["auto", "ipc", "mpi"])
def doomed(request):
    """A driver of which a broken communicator keeps something."""
    refuse(request.param)
    for driver in in_use("random", request.param):
        yield driver
        driver.close()
        peers._leaving.clear()  # nothing of it can be given back any more


@pytest.fixture
def transport():
    """How arrays travel."""
    return os.environ.get("COLLECTIVES_DEVICE_TRANSPORT", "auto")


@pytest.fixture
def comm(gpu):
    """A communicator whose ranks agree on each call, or not."""
    with group(gpu.order.mode == "lazy") as made:
        yield made


@pytest.fixture
def plain_comm(gpu):
    """A communicator whose ranks do not agree on calls: one may refuse what others do not call."""
    with group(False) as made:
        yield made


@pytest.fixture
def stream(gpu):
    made = gpu.stream()
    yield made
    gpu.end_stream(made)
