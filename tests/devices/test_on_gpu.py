"""The fold kernels on a GPU, bit for bit against the kernels of the host."""

from __future__ import annotations

import zlib

import gpus
import numpy as np
import pytest
from test_fold_kernels import Place, dtype_of, half_against_special_ones, part_of, try_pass

from collectives.devices import folds

pytestmark = gpus.MARKS


@pytest.fixture(scope="module")
def driver():
    from collectives.devices.cupy_driver import CupyDriver

    return CupyDriver()


class DevicePlace(Place):
    """Memory of the device."""

    def filled(self, nbytes):
        import cupy

        return cupy.full(nbytes, 0xA5, cupy.uint8)

    def pointer(self):
        return self.memory.data.ptr

    def here(self, content):
        import cupy

        return cupy.asarray(content)

    def on_host(self):
        return self.memory.get()


@pytest.fixture
def run(driver):
    """Launch passes."""

    def run(op, name, one):
        geometry = folds.geometry(one.elements * dtype_of(name).itemsize, driver.processors())
        kernel = driver.kernel(folds.source(op, name), folds.kernel_name(op, name))
        driver.launch(kernel, geometry.blocks, geometry.threads, folds.packed(one), 0)

    return run


@pytest.mark.parametrize(("op", "name"), folds.PAIRS)
def test_a_pass_has_the_bits_of_the_host(run, op, name):
    rng = np.random.default_rng(zlib.crc32(f"{op} {name}".encode()))
    step = dtype_of(part_of(name)).itemsize
    for count in (0, 1, 37, 4099, 300_001):
        for operands in (1, 2, 3, 8, 16):
            alignment = int(rng.integers(0, 16)) // step * step
            try_pass(DevicePlace, run, op, name, rng, count, operands, alignment)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX"])
def test_every_half_against_the_special_ones(run, op, name):
    half_against_special_ones(DevicePlace, run, op, name)
