"""Contributions whose sums depend on the order of folds, and their folds in pairs.

With ``bits="size"``, a part of these arrays has the same bits in any pack.
"""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np

N = 150_000  # elements of the whole array
LENGTHS = [1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 255, 257, 511, 1000]
LENGTHS += [1023, 1025, 2047, 3000, 4096, 4097, 5001, 8191, 9000, 12_289, 16_385, 20_000]
LENGTHS += [30_011, 32_768, 40_001, 65_537, 80_000, 100_003, 131_073, 149_999]
PLACES = [(n, (7919 * n) % (N - n + 1)) for n in LENGTHS]  # of a part of the whole array
FEW = [slice(at, at + n) for n, at in PLACES[::4]]
OPS = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum}


@functools.cache
def contribution(rank, dtype="float32"):
    """Return values of very different sizes."""
    rng = np.random.default_rng(rank)
    x = rng.normal(size=N) * np.exp2(rng.integers(-6, 6, N))
    if dtype.startswith("complex"):
        x = x + 1j * rng.normal(size=N)
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@functools.cache
def folded(ranks, dtype="float32", op="SUM"):
    """Return the fold of the contributions of the first ranks in the order of a butterfly: the
    first ones in pairs until a power of two is left, then all in pairs, until one is left.
    """
    values = [contribution(r, dtype) for r in range(ranks)]
    power = 1
    while 2 * power <= ranks:
        power *= 2
    with np.errstate(over="ignore"):
        for k in range(ranks - power):
            values[k : k + 2] = [OPS[op](values[k], values[k + 1])]
        while len(values) > 1:
            values = [OPS[op](*values[k : k + 2]) for k in range(0, len(values), 2)]
    (result,) = values
    return np.where(result == result, result, np.array(np.nan, result.dtype))


@functools.cache
def scanned(ranks):
    """Return the sum of the contributions of the first ranks, from rank 0 up."""
    return functools.reduce(np.add, [contribution(r) for r in range(ranks)])


def same(got, want):
    """Hold two arrays against each other, bit by bit."""
    got, want = np.ascontiguousarray(got), np.ascontiguousarray(want)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.reshape(-1).view(np.uint8), want.reshape(-1).view(np.uint8))
