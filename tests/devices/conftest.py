"""Drivers without a GPU, and the kernels compiled for the CPU, for the tests of this folder."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import on_cpu
import pytest
from fake_gpu import FakeDriver
from fake_order import MODES


@pytest.fixture(params=MODES)
def driver(request: pytest.FixtureRequest) -> Iterator[FakeDriver]:
    """A driver in each mode; faults and leftovers at the end fail the test."""
    with FakeDriver(mode=request.param, seed=7) as driver:
        yield driver


@pytest.fixture
def lazy() -> Iterator[FakeDriver]:
    """A driver for programs with faults, which ends without a check."""
    driver = FakeDriver(mode="lazy", deadline=5)
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return the kernels as a library of this CPU, compiled once for all processes of a run, or
    skip where nothing compiles them.
    """
    if on_cpu.COMPILER is None:
        pytest.skip("there is no C++ compiler (g++, clang++ or c++)")
    folder = tmp_path_factory.getbasetemp()
    return on_cpu.compiled(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
