"""Programs without CuPy, and CuPy without a GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from collectives import _core
from collectives.devices import runtime
from collectives.devices.arrays import read
from collectives.errors import BufferError


@pytest.fixture(autouse=True)
def no_driver():
    before = runtime.use(None)
    yield
    runtime.use(before)


class Claims:
    """It says that it is on a device."""

    shape, dtype = (3,), np.dtype("f4")
    interface = {"shape": (3,), "typestr": "<f4", "data": (4096, False), "version": 3}  # noqa: RUF012

    @property
    def __cuda_array_interface__(self):
        return self.interface


def test_without_cupy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BufferError, match=r"x is on a CUDA device.*pip install cupy-cuda12x"):
        runtime.driver_for("x")


def test_cupy_that_finds_no_gpu(monkeypatch: pytest.MonkeyPatch):
    class Runtime(ModuleType):
        def __getattr__(self, name):
            return 1

        def getDeviceCount(self):
            raise RuntimeError("cudaErrorInsufficientDriver: too old")

    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    cupy.cuda, cuda.runtime = cuda, Runtime("cupy.cuda.runtime")
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.delitem(sys.modules, "collectives.devices.cupy_driver", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "there")
    with pytest.raises(BufferError, match="CuPy cannot use one: cudaErrorInsufficientDriver"):
        runtime.driver_for("x")
    monkeypatch.delitem(sys.modules, "collectives.devices.cupy_driver", raising=False)


def test_the_library_does_not_import_cupy():
    program = "import sys, collectives; assert 'cupy' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_core_says_where_an_array_is():
    with pytest.raises(BufferError, match="x is on a CUDA device, and must be in host memory"):
        _core.examine(Claims())
    assert _core.shape(Claims()) == (3,)


def test_the_core_does_not_export_what_is_on_a_device():
    """CuPy's class has the buffer protocol and DLPack, whose export puts work on a stream."""

    class WithBuffer(bytearray):
        __cuda_array_interface__ = Claims.interface

        def __dlpack__(self, **options):
            raise AssertionError("exported")

    assert _core.shape(WithBuffer(12)) == (3,)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"version": 1}, "x has version 1 of __cuda_array_interface__"),
        ({"mask": object()}, "x is a masked array"),
        ({"strides": (8,)}, r"x is not C-contiguous \(shape \(3,\)\); pass a contiguous copy"),
    ],
)
def test_interfaces_that_are_refused(change, match):
    array = Claims()
    array.interface = Claims.interface | change
    with pytest.raises(BufferError, match=match):
        read(array, "x", None, None)
