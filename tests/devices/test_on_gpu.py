"""The fold kernels on a GPU, bit for bit against the kernels of the host."""

from __future__ import annotations

import zlib

import gpus
import numpy as np
import pytest
from test_fold_kernels import FACTORS, dtype_of, fold_on_host, on_host, patterns, sample

from collectives.devices import folds

pytestmark = gpus.MARKS
GUARD = 64  # bytes before and after each place


@pytest.fixture(scope="module")
def driver():
    from collectives.devices.cupy_driver import CupyDriver

    return CupyDriver()


class Place:
    """Memory of the device that begins at a given address modulo 16, with guards around it."""

    def __init__(self, nbytes, alignment, content=None):
        import cupy

        self.memory = cupy.full(nbytes + 2 * GUARD + 16, 0xA5, cupy.uint8)
        self.begin = GUARD + (alignment - self.memory.data.ptr - GUARD) % 16
        self.end = self.begin + nbytes
        if content is not None:
            self.memory[self.begin : self.end] = cupy.asarray(content)

    @property
    def address(self):
        return self.memory.data.ptr + self.begin

    def get(self):
        found = self.memory.get()
        assert (found[: self.begin] == 0xA5).all()
        assert (found[self.end :] == 0xA5).all()
        return found[self.begin : self.end]


def launch(driver, op, name, one):
    geometry = folds.geometry(one.elements * dtype_of(name).itemsize, driver.processors())
    kernel = driver.kernel(folds.source(op, name), folds.kernel_name(op, name))
    driver.launch(kernel, geometry.blocks, geometry.threads, folds.packed(one), 0)


@pytest.mark.parametrize(("op", "name"), folds.PAIRS)
def test_a_pass_has_the_bits_of_the_host(driver, op, name):
    rng = np.random.default_rng(zlib.crc32(f"{op} {name}".encode()))
    itemsize = dtype_of(name).itemsize
    step = itemsize // 2 if name.startswith("complex") else itemsize
    factors = [folds.scale_factor(name, each) for each in FACTORS if name in folds.SCALED]
    for count in (0, 1, 37, 4099, 300_001):
        for operands in (1, 2, 3, 8, 16):
            even, odd = rng.integers(0, 16, 2) // step * step
            contents = [sample(name, count, int(rng.integers(8))) for _ in range(operands)]
            alignments = [even if rng.random() < 0.8 else odd for _ in range(operands + 3)]
            sources = [
                Place(count * itemsize, each, content)
                for each, content in zip(alignments, contents, strict=False)
            ]
            dst, publication, target = (
                Place(count * itemsize, each) for each in alignments[operands:]
            )
            scales = bool(factors) and rng.random() < 0.5
            one = folds.Pass(
                count,
                [each.address for each in sources],
                [bool(rng.random() < 0.5) for _ in sources],
                dst.address,
                publication.address,
                [target.address],
                [bool(rng.random() < 0.5) for _ in sources] if scales else (),
                factors[rng.integers(len(factors))] if scales else 1.0,
                factors[rng.integers(len(factors))] if scales else None,
            )
            launch(driver, op, name, one)
            published, result = on_host(op, name, contents, one)
            told = f"{count} elements, {operands} operands, {one}"
            np.testing.assert_array_equal(publication.get(), published, err_msg=told)
            np.testing.assert_array_equal(dst.get(), result, err_msg=told)
            np.testing.assert_array_equal(target.get(), result, err_msg=told)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX"])
def test_every_half_against_the_special_ones(driver, op, name):
    every = np.arange(2**16, dtype=np.uint16)
    left, out = Place(every.nbytes, 0, every.view(np.uint8)), Place(every.nbytes, 0)
    for pattern in patterns(name):
        other = np.full_like(every, pattern)
        right = Place(every.nbytes, 0, other.view(np.uint8))
        one = folds.Pass(every.size, [left.address, right.address], [False] * 2, out.address)
        launch(driver, op, name, one)
        want = fold_on_host(op, dtype_of(name), every.view(np.uint8), other.view(np.uint8))
        np.testing.assert_array_equal(out.get(), want)
