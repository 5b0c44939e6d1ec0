"""Fixtures with a GPU that is not there, for tests on arrays of devices: a plugin of theirs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import FULL
from mpi4py import MPI

import collectives as cc
from collectives.devices import runtime

sys.path.append(str(Path(__file__).resolve().parents[1] / "devices"))

from fake_arrays import Array, DLPackArray
from fake_gpu import FakeDriver

CHUNK = 64 * 16  # bytes of a slot
# Both modes take long: one of them for each number of ranks, but on two.
MODES = ["random", "lazy"]
if MPI.COMM_WORLD.Get_size() != 2 and not FULL:
    MODES = [MODES[MPI.COMM_WORLD.Get_size() % 2]]


class Tensor(Array):
    """An array whose library can be asked for more of its kind."""

    def __array_namespace__(self):
        return SimpleNamespace(empty=lambda shape, dtype, device: self.empty_like(shape))


class Exporter(DLPackArray):
    """The same by DLPack: nobody hears of its stream."""

    __array_namespace__ = Tensor.__array_namespace__


def in_use(mode, **options):
    """Give a driver in place of CuPy's."""
    driver = FakeDriver(mode=mode, seed=7, **options)
    before = runtime.use(driver)
    yield driver
    runtime.use(before)


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


@pytest.fixture(params=MODES)
def gpu(request):
    """A driver whose streams run some time later, or only when somebody waits for them."""
    for driver in in_use(request.param):
        with driver:
            yield driver


@pytest.fixture
def doomed():
    """A driver of which a broken communicator keeps something."""
    for driver in in_use("random"):
        yield driver
        driver.close()


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
