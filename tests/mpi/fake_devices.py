"""Fixtures with a GPU that is not there, for tests on arrays of devices: a plugin of theirs.

The fixture `gpu` also gives the transport of calls: the automatic one, ipc, or messages of an MPI
that accepts device pointers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cases import FULL, names, runnable
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
TRANSPORTS = "auto", "ipc", "mpi"
# Devices hardly depend on the MPI.
MARKS = [pytest.mark.any_mpi, pytest.mark.ranks(1, 2)]


def pytest_generate_tests(metafunc):
    """Have the tests of a module run by each of its `TRANSPORTS`."""
    transports = getattr(metafunc.module, "TRANSPORTS", ())
    modes = MODES if FULL or len(transports) > 1 else MODES[:1]
    if transports and "gpu" in metafunc.fixturenames:
        ways = [(mode, transport) for transport in transports for mode in modes]
        metafunc.parametrize("gpu", ways, ids="-".join, indirect=True)
    if transports and "doomed" in metafunc.fixturenames:
        metafunc.parametrize("doomed", transports, indirect=True)


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
    """Give a driver as `in_use` does; faults and leftovers at the end fail the test."""
    for driver in in_use(mode, transport):
        with driver:
            yield driver


def on_device(gpu, values, stream, kind=Tensor):
    return kind.of(gpu, values, stream=stream)


def fetched(got):
    """Return a result in host memory."""
    return None if got is None else got.get()


def in_place(gpu, case, rank, stream):
    """Return arrays of a device that share memory as those of a case do."""
    views = case.shared(rank)
    base = max(views, key=lambda view: view.size)
    base = base if base.base is None else base.base
    memory = on_device(gpu, base, stream)
    begins = [each.__array_interface__["data"][0] for each in (*views, base)]
    return [
        memory.view(each.shape, begin - begins[2], None)
        for each, begin in zip(views, begins, strict=False)
    ]


def run_form(gpu, comm, stream, form, turn, n, **options):
    """Run a form on arrays of a device, every other time into an array; check the result."""
    kind = Exporter if gpu.order.mode == "lazy" else Tensor
    case = form(comm.size, n, dtype="int32", root=turn % comm.size, seed=turn)
    x = on_device(gpu, case.x(comm.rank), stream, kind)
    out = case.empty(comm.rank) if turn % 2 else None
    out = None if out is None else on_device(gpu, out, stream, kind)
    got = case.call(comm, x, out, **options)
    assert out is None or got is out
    case.verify(fetched(got), comm.rank)
    assert x.get().tobytes() == case.x(comm.rank).tobytes()


def bits_of_every_algorithm(gpu, comm, stream, collective, sizes):
    """Compare the results of all algorithms on the device with those on the host."""
    for name in names(collective):
        for n in sizes if runnable(collective, name, comm.size) else ():
            x = np.random.default_rng(comm.rank).standard_normal(n).astype(np.float32)
            given = on_device(gpu, x, stream)
            call = getattr(comm, collective)
            want, got = call(x, algorithm=name), call(given, algorithm=name)
            assert fetched(got).tobytes() == want.tobytes(), name
            assert given.get().tobytes() == (x if got is not given else want).tobytes()


def group(validate):
    """Make a communicator whose slots are small, so that there are many pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTIVES_DEVICE_CHUNK", str(CHUNK))
        patch.setenv("COLLECTIVES_VALIDATE", str(int(validate)))
        return cc.Communicator(MPI.COMM_WORLD)


@pytest.fixture
def shares(fresh):
    """True if the ranks compare their calls in shared memory."""
    comm = fresh(validate=False, timeout=20)
    return comm._segment is not None and comm.nodes == 1


def refuse(transport):
    """Skip a test by ipc if the ranks do not share memory, and by mpi if nothing is sent."""
    if transport == "mpi" and MPI.COMM_WORLD.Get_size() == 1:
        pytest.skip("a rank that is alone sends no messages")
    if transport == "ipc" and MPI.COMM_WORLD.Get_size() > 1:
        with cc.Communicator(MPI.COMM_WORLD) as comm:
            shares = comm._segment is not None and comm.nodes == 1
        if not shares:  # in the context, it would tell ranks that still make theirs that it gave up
            pytest.skip("the ranks do not share memory")


@pytest.fixture
def gpu(request):
    """A driver whose streams run some time later, or only when somebody waits for them."""
    refuse(request.param[1])
    yield from whole(*request.param)


@pytest.fixture
def doomed(request):
    """A driver of which a broken communicator keeps something."""
    refuse(request.param)
    for driver in in_use("random", request.param):
        yield driver
        driver.close()
        peers._leaving.clear()  # nothing of it can be given back any more


@pytest.fixture
def transport():
    """The transport of arrays."""
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
