"""Floats whose folds lose their bits first: several NaNs, both zeros, infinities, small integers.

All sums and products of them are exact, so a result has one right value, in whatever order it is
folded; `folded` returns its bits. Only for products of complex numbers the order matters.
"""

from __future__ import annotations

import functools

import numpy as np
from dtypes import ARITHMETIC, COMPLEX, FLOATS, dtype_of

CASES = [
    *((op, name) for op in ARITHMETIC for name in FLOATS),
    *(("SUM", name) for name in COMPLEX),
]
PERIOD = 499


def bits(array):
    """Return the bytes of each element, without the padding of a long double."""
    array = np.ascontiguousarray(array)
    rows = array.view(np.uint8).reshape(-1, array.itemsize)
    padded = array.dtype == np.longdouble and np.finfo(np.longdouble).nmant == 63
    return rows[:, :10] if padded else rows


@functools.cache
def values(name):
    """Return the numbers: every second one is a number that is no NaN."""
    dtype = dtype_of(name)
    nan = np.array([np.nan], dtype)
    payload = nan.copy()
    payload.view(np.uint8)[0] |= 5 if name != "bfloat16" else 0x11
    nans = np.concatenate([nan, -nan, payload, -payload])
    rest = np.array([0.0, -0.0, 1.0, -1.0, 0.0, -0.0, 2.0, -2.0, np.inf, -np.inf, -0.0, 0.0], dtype)
    return np.concatenate([nans, rest, rest, rest])


@functools.cache
def period(name, rank):
    rng = np.random.default_rng([rank, len(name)])
    if name in COMPLEX:
        part = {"complex64": "float32", "complex128": "float64"}[name]
        return values(part)[rng.integers(0, len(values(part)), 2 * PERIOD)].view(name)
    return values(name)[rng.integers(0, len(values(name)), PERIOD)]


def contribution(name, n, rank):
    """Return what a rank contributes: `n` elements of a dtype. Ranks differ."""
    return np.resize(period(name, rank), n)


def fold(op, left, right):
    """Fold two arrays; each NaN becomes `numpy.nan`."""
    with np.errstate(invalid="ignore"):
        if op in ("MIN", "MAX"):
            less = (left < right) | ((left == right) & np.signbit(left))
            chosen = np.where(less == (op == "MIN"), left, right)
            return canonical(np.where(np.isnan(left) | np.isnan(right), left + right, chosen))
        if left.dtype.kind == "c" and op == "PROD":
            out = np.empty_like(left)
            out.real = left.real * right.real - left.imag * right.imag
            out.imag = left.real * right.imag + left.imag * right.real
            return canonical(out)
        return canonical(ARITHMETIC[op](left, right))


def canonical(array):
    """Return an array with `numpy.nan` for every NaN, in the parts of complex numbers as well."""
    parts = array.view(array.real.dtype) if array.dtype.kind == "c" else array
    parts = np.where(np.isnan(parts), np.array(np.nan, parts.dtype), parts)
    return parts.view(array.dtype)


def folded(op, arrays):
    """Return the fold of arrays; a single one keeps its bits."""
    return functools.reduce(functools.partial(fold, op), arrays)
