"""Fixtures with a GPU that is not there, for tests on arrays of devices; they name it as a plugin.

Calls take the transport of the environment, which the fixture `gpu` sets.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import FULL
from mpi4py import MPI

import collectives as cc
from collectives.devices import peers, runtime

sys.path.append(str(Path(__file__).resolve().parents[1] / "devices"))

import fake_kernels
import on_cpu
from fake_arrays import Array, DLPackArray
from fake_gpu import FakeDriver

CHUNK = 64 * 16  # bytes of a slot, and of a lane


class Tensor(Array):
    """An array whose library can be asked for more of its kind."""

    def __array_namespace__(self):
        return SimpleNamespace(empty=lambda shape, dtype, device: self.empty_like(shape))


class Exporter(DLPackArray):
    """The same by DLPack: nobody hears of its stream."""

    __array_namespace__ = Tensor.__array_namespace__


def in_use(mode, transport):
    """Give a driver in place of CuPy's, and the transport that calls are to take."""
    if transport == "ipc":
        if on_cpu.COMPILER is None:
            pytest.skip("there is no C++ compiler for the kernels (g++, clang++ or c++)")
        fake_kernels.library()  # not while a stream waits for it
    driver = FakeDriver(mode=mode, seed=7, **fake_kernels.OPTIONS)
    before = runtime.use(driver)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTIVES_DEVICE_TRANSPORT", transport)
        patch.setattr(peers, "EVENTS", 8)  # so few that there are not enough at times
        yield driver
    runtime.use(before)


# All take long: one mode for each number of ranks, and both for one transport on two.
RANDOM, LAZY = "random", "lazy"
WAYS = [(RANDOM, "staging"), (LAZY, "staging"), (RANDOM, "ipc"), (LAZY, "ipc")]
if MPI.COMM_WORLD.Get_size() == 2 and not FULL:
    WAYS.remove((LAZY, "staging"))
elif not FULL:
    WAYS = [each for each in WAYS if each[0] == (RANDOM, LAZY)[MPI.COMM_WORLD.Get_size() % 2]]


def whole(way):
    """Give a driver as `in_use` does; faults, and what is left at the end, fail the test."""
    for driver in in_use(*way):
        with driver:
            yield driver


@pytest.fixture(params=WAYS, ids="-".join)
def gpu(request):
    """A driver whose streams run some time later, or only when somebody waits for them."""
    yield from whole(request.param)


@pytest.fixture(params=["staging", "ipc"])
def doomed(request):
    """A driver of which a broken communicator keeps something."""
    for driver in in_use(RANDOM, request.param):
        yield driver
        driver.close()


@pytest.fixture
def transport():
    """How arrays travel, if the ranks can."""
    return os.environ["COLLECTIVES_DEVICE_TRANSPORT"]


@pytest.fixture
def shares(fresh):
    """Whether the ranks compare their calls in shared memory."""
    comm = fresh(validate=False, timeout=20)
    return comm._segment is not None and comm.nodes == 1


def group(validate):
    """Make a communicator whose slots are small, so that there are many pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTIVES_DEVICE_CHUNK", str(CHUNK))
        patch.setenv("COLLECTIVES_VALIDATE", str(int(validate)))
        return cc.Communicator(MPI.COMM_WORLD)


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


def on_device(gpu, values, stream, kind=Tensor):
    return kind.of(gpu, values, stream=stream)


def fetched(got):
    """Return a result in host memory."""
    return None if got is None else got.get()
