"""The library of the kernels, compiled once for all processes of a run."""

from __future__ import annotations

import ctypes
import os

import on_cpu
import pytest


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return the kernels as a library of this CPU, or skip where nothing compiles them."""
    if on_cpu.COMPILER is None:
        pytest.skip("there is no C++ compiler (g++, clang++ or c++)")
    folder = tmp_path_factory.getbasetemp()
    return on_cpu.compiled(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
