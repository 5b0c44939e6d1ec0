"""The contribution of every rank, and NumPy's result; each rank computes both alone.

Rank `r` contributes the elements from ``SHIFT * r`` on of one pool of numbers, so that nothing has
to be sent to know what the others have. Beyond PERIOD elements the contribution repeats itself,
and with it the reference.
"""

from __future__ import annotations

import functools
import hashlib
import operator

import ml_dtypes
import numpy as np
from dtypes import COMPLEX, INTEGERS, LOGICAL, UFUNCS, dtype_of
from usual import FULL

import collectives as cc

LARGE = 2**20
PERIOD, SHIFT, MOST_RANKS = 4099, 101, 64

# A type with twice the digits, where there is one, to compute the reference in.
WIDER = {
    "float16": np.float64,
    "bfloat16": np.float64,
    "float32": np.float64,
    "float64": np.longdouble,
    "float128": np.longdouble,
    "complex64": np.complex128,
    "complex128": np.clongdouble,
}


def eps(name):
    return float(ml_dtypes.finfo(dtype_of(name)).eps)


def sizes(p):
    """Return the numbers of elements that every collective is tried with."""
    small = sorted({0, 1, p - 1, p, p + 1, 1009})
    return [*small, LARGE] if FULL else small


def longer(nbytes):
    """Return a number of elements that makes many segments of so many bytes."""
    return 2**14 if FULL or nbytes > 500 else 2**11


@functools.cache
def pool(dtype, kind):
    """Return numbers enough for all ranks: any "values", "factors" near 1, or "flags"."""
    n = PERIOD + SHIFT * MOST_RANKS
    rng = np.random.default_rng(sum(dtype.encode()))
    flags = rng.integers(0, 4, n) > 0  # mostly true: a conjunction of eight is not always false
    if dtype == "bool":
        return flags
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        values = rng.integers(limits.min, limits.max, n, dtype, endpoint=True)
        return values * flags if kind == "flags" else values
    low, high = (0.5, 1.5) if kind == "factors" else (-1, 1)
    values = rng.uniform(low, high, n)
    if dtype in COMPLEX:
        values = values + 1j * rng.uniform(-0.5, 0.5, n)
    numbers = np.zeros(n, dtype_of(dtype))
    numbers[:] = values  # astype() leaves the padding of a long double as it finds it
    return numbers


def contribution(op, dtype, n, rank):
    """Return the contribution of a rank: read-only, so that a test that writes copies it."""
    kind = "flags" if op in LOGICAL else "factors" if op == "PROD" else "values"
    values = pool(dtype, kind)[SHIFT * rank :][: min(n, PERIOD)]
    values = np.resize(values, n) if n > PERIOD else values.view()
    values.flags.writeable = False
    return values


@functools.lru_cache(maxsize=512)
def reference(op, dtype, n, p):
    """Return the result, and how far from it a float may lie (None: not at all)."""
    inputs = [contribution(op, dtype, n, r) for r in range(p)]
    if op in UFUNCS and (op not in ("SUM", "PROD") or dtype in ("bool", *INTEGERS)):
        return functools.reduce(UFUNCS[op], inputs).astype(dtype_of(dtype)), None
    inputs = [values.astype(WIDER[dtype]) for values in inputs]
    if op == "PROD":
        want = functools.reduce(operator.mul, inputs)
        return want, (4 if dtype in COMPLEX else 2) * p * eps(dtype) * np.abs(want)
    want = functools.reduce(operator.add, inputs)
    bound = p * eps(dtype) * functools.reduce(operator.add, map(np.abs, inputs))
    if op == "AVG":
        return want / p, (bound + eps(dtype) * np.abs(want)) / p
    return want, bound


def hold(got, want, bound, dtype, scale=1.0):
    """Hold numbers against `scale` times those wanted; floats may be off by a bound."""
    if bound is None:
        np.testing.assert_array_equal(got, want)
        return
    allowed = abs(scale) * bound
    if scale != 1.0:
        allowed = allowed + 2 * eps(dtype) * np.abs(scale * want)
    error = np.abs(got.astype(WIDER[dtype]) - scale * want)
    worst = np.argmax(error - allowed) if error.size else 0
    assert (error <= allowed).all(), f"element {worst} is off by {error[worst]}"


def verify(got, op, dtype, n, p, scale=1.0):
    """Hold a result against the reference, scaled by `scale`."""
    assert isinstance(got, np.ndarray)
    assert got.dtype == dtype_of(dtype)
    assert got.shape == (n,)
    want, bound = reference(op, dtype, min(n, PERIOD), p)
    for first in range(0, n, PERIOD):
        part = got[first : first + PERIOD]
        due = slice(0, len(part))
        hold(part, want[due], None if bound is None else bound[due], dtype, scale)


def digest(*arrays):
    """Return a hash of the bits of all arrays."""
    state = hashlib.blake2b(digest_size=16)
    for array in arrays:
        state.update(np.ascontiguousarray(array).view(np.uint8).tobytes())
    return state.hexdigest()


def names(collective):
    return cc.algorithms.names(collective)


def runnable(collective, name, p):
    return cc.algorithms.get(collective, name).refusal(p) is None


def op_of(name):
    return getattr(cc, name)
