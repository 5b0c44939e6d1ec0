"""NCCL of the fake GPU, and the binding to that of CuPy, in one process."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fake_arrays import Array
from fake_errors import InvalidArgument, Race
from fake_gpu import FakeDriver


def group_of(driver: FakeDriver) -> Any:
    nccl = driver.nccl()
    return nccl.join(nccl.unique_id(), 1, 0)


def test_a_rank_alone(driver: FakeDriver):
    stream = driver.stream()
    x = Array.of(driver, np.arange(10), stream=stream)
    out = Array.of(driver, np.zeros(10, np.int64), stream=stream)
    group = group_of(driver)
    group.allreduce(x.address, out.address, 10, "int64", "SUM", stream)
    group.exchange([(0, out.address, 40)], [(0, out.address + 40, 40)], stream)
    assert out.get().tolist() == [0, 1, 2, 3, 4] * 2
    group.close()
    driver.end_stream(stream)


def test_calls_without_an_order_are_found(lazy: FakeDriver):
    streams = lazy.stream(), lazy.stream()
    arrays = [Array.of(lazy, np.arange(10), stream=stream) for stream in streams]
    group = group_of(lazy)
    first, second = (each.address for each in arrays)
    group.allreduce(first, first, 10, "int64", "SUM", streams[0])
    with pytest.raises(Race, match=r"NCCL's allreduce SUM int64 .* have no order, in 1 bytes"):
        group.allreduce(second, second, 10, "int64", "SUM", streams[1])


def test_ranks_that_call_different_things_are_found(lazy: FakeDriver):
    stream = lazy.stream()
    x = Array.of(lazy, np.arange(10), stream=stream)
    group = group_of(lazy)
    group.exchange([(0, x.address, 8)], [], stream)
    group.broadcast(x.address, x.address, 80, 0, stream)
    with pytest.raises(InvalidArgument, match="NCCL's broadcast 0 meets exchange"):
        x.get()


# -- CuPy's ----------------------------------------------------------------------------------------


class Communicator:
    """The communicator of a rank in CuPy: it takes down its calls."""

    kind: type  # of an id

    def __init__(self, size: int, unique_id: bytes | tuple[int, ...], rank: int) -> None:
        if type(unique_id) is not self.kind:
            raise TypeError("Argument 'commId' has incorrect type")
        self.made, self.calls = (size, unique_id, rank), []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


SIGNED = tuple(range(-64, 64))
# Ids as version 14 of CuPy has them, and those before.
IDS = bytes(each & 0xFF for each in SIGNED), SIGNED


@pytest.fixture(params=IDS, ids=["bytes", "tuple"])
def binding(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The binding, on a CuPy that is not there."""
    cupy, cuda, nccl = (ModuleType(name) for name in ("cupy", "cupy.cuda", "cupy.cuda.nccl"))
    cupy.cuda, cuda.nccl = cuda, nccl
    nccl.available, nccl.get_version = True, lambda: 22304
    nccl.get_unique_id = lambda: request.param
    monkeypatch.setattr(Communicator, "kind", type(request.param), raising=False)
    nccl.NcclCommunicator, nccl.groups = Communicator, []
    nccl.groupStart = lambda: nccl.groups.append("start")
    nccl.groupEnd = lambda: nccl.groups.append("end")
    for module in (cupy, cuda, nccl):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "collectives.devices.cupy_nccl", raising=False)
    yield importlib.import_module("collectives.devices.cupy_nccl")
    monkeypatch.delitem(sys.modules, "collectives.devices.cupy_nccl")


def test_numbers_of_cupy(binding):
    made = binding.CupyNccl()
    unique_id = made.unique_id()
    assert len(unique_id) == 128
    group = made.join(unique_id, 3, 1)
    assert group._comm.made == (3, binding.nccl.get_unique_id(), 1)
    group.allreduce(10, 20, 5, "float32", "AVG", 7)
    group.reduce(10, 20, 5, "bfloat16", "MAX", 2, 7)
    group.broadcast(10, 20, 40, 2, 7)
    group.allgather(10, 20, 40, 7)
    group.reduce_scatter(10, 20, 5, "int64", "MIN", 7)
    group.exchange([(2, 10, 40)], [(0, 20, 8)], 7)
    assert group._comm.calls == [
        ("allReduce", 10, 20, 5, 7, 4, 7),
        ("reduce", 10, 20, 5, 9, 2, 2, 7),
        ("broadcast", 10, 20, 40, 1, 2, 7),
        ("allGather", 10, 20, 40, 1, 7),
        ("reduceScatter", 10, 20, 5, 4, 3, 7),
        ("send", 10, 40, 1, 2, 7),
        ("recv", 20, 8, 1, 0, 7),
    ]
    assert binding.nccl.groups == ["start", "end"]


def test_a_cupy_without_nccl(binding, monkeypatch):
    monkeypatch.setattr(binding.nccl, "get_version", lambda: 2708)
    with pytest.raises(ImportError, match=r"NCCL is 2708, and must be 2\.10 or newer"):
        binding.CupyNccl()
    monkeypatch.setattr(binding.nccl, "available", False)
    with pytest.raises(ImportError, match="CuPy finds no NCCL"):
        binding.CupyNccl()
