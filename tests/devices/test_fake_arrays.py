"""Arrays of the fake GPU show themselves as those of frameworks do."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from fake_arrays import Array, DLPackArray
from fake_errors import InvalidAddress
from fake_gpu import FakeDriver

from collectives import _core


def test_cuda_array_interface(driver: FakeDriver):
    stream = driver.stream()
    x = Array.of(driver, np.arange(6.0).reshape(2, 3), stream=stream, device=0)
    shown = x.__cuda_array_interface__
    assert shown == {
        "shape": (2, 3),
        "typestr": "<f8",
        "data": (x.address, False),
        "strides": None,
        "version": 3,
        "stream": stream,
    }
    assert Array(driver, (2,)).__cuda_array_interface__["stream"] == 1
    column = x.view((2,), 8, (24,))
    assert column.__cuda_array_interface__["strides"] == (24,)
    assert column.get().tolist() == [1, 4]
    assert x.empty_like().get().shape == (2, 3)
    driver.end_stream(stream)


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_dlpack(driver: FakeDriver, version: tuple[int, int] | None):
    x = DLPackArray.of(driver, np.arange(6, dtype=np.int16).reshape(2, 3), device=1)
    assert x.__dlpack_device__() == (2, 1)
    said = _core.tensor(x.__dlpack__(stream=-1, max_version=version), "x")
    assert said[:1] + said[2:8] == (x.address, 1, (2, 3), None, "int16", 2, False)
    with driver.on(1):
        stream, target = driver.stream(), Array(driver, (6,), "int16", device=1)
        x.__dlpack__(stream=stream)
        driver.copy(target.address, x.address, 12, stream)
        driver.drain(stream)
        driver.end_stream(stream)
    assert target.get().tolist() == list(range(6))
    with pytest.raises(ValueError, match="0 is no stream"):
        x.__dlpack__(stream=0)
    with pytest.raises(BufferError):
        x.__dlpack__(copy=True)
    assert _core.tensor(x.view((3,), 6, (4,)).__dlpack__(), "x")[4] == (2,)


def test_a_capsule_keeps_the_memory(driver: FakeDriver):
    x = DLPackArray.of(driver, np.ones(3))
    address, capsule = x.address, x.__dlpack__()
    del x
    gc.collect()
    assert driver.place(address).kind == "device"
    del capsule
    gc.collect()
    with pytest.raises(InvalidAddress):
        driver.place(address)
    driver.forget()


def test_read_only_and_bfloat16(driver: FakeDriver):
    x = DLPackArray.of(driver, np.ones(3), is_read_only=True)
    assert _core.tensor(x.__dlpack__(max_version=(1, 1)), "x")[7]
    with pytest.raises(BufferError, match="read-only"):
        x.__dlpack__()
    pytest.importorskip("ml_dtypes")
    y = DLPackArray(driver, (3,), "bfloat16")
    y.put([1, 2, 3])
    assert _core.tensor(y.__dlpack__(), "y")[5] == "bfloat16"
    assert y.get().astype(float).tolist() == [1, 2, 3]
