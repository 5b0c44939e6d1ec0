"""Exact sums: the kernels, and `sum_local`, against rational numbers."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from dtypes import dtype_of

import collectives as cc
from collectives import _core
from collectives.errors import ArgumentError, UnsupportedTypeError

FLOATS = ("float16", "bfloat16", "float32", "float64")
KINDS = ("normal", "wide", "cancelling", "ties", "special", "zeros")


def available(isa):
    """Return whether this CPU has the instruction set, leaving the best one selected."""
    try:
        _core.kernels_select(isa)
    except Exception:  # whichever error says no
        return False
    finally:
        _core.kernels_select(None)
    return True


ISAS = [isa for isa in ("portable", "avx2", "avx512") if available(isa)]
pytestmark = pytest.mark.usual(*ISAS)


@pytest.fixture(params=ISAS)
def isa(request):
    """Select each instruction set, and the best one afterwards."""
    _core.kernels_select(request.param)
    yield request.param
    _core.kernels_select(None)


def numbers(kind, shape, dtype, rng):
    """Return numbers whose sums are hard to round in one way or another."""
    info = ml_dtypes.finfo(dtype)
    least, most = info.minexp - info.nmant, info.maxexp
    signs = rng.choice([-1.0, 1.0], shape)
    with np.errstate(over="ignore"):
        if kind == "normal":
            return rng.normal(size=shape).astype(dtype)
        if kind == "wide":
            exponents = rng.integers(least, most - 1, shape)
            return (signs * np.ldexp(rng.uniform(1, 2, shape), exponents)).astype(dtype)
        if kind == "cancelling":
            x = (signs * np.ldexp(rng.uniform(1, 2, shape), rng.integers(-9, 9, shape))).astype(
                dtype
            )
            half = len(x) // 2
            x[half : 2 * half] = -x[:half]
            return x
        if kind == "ties":
            return (signs * np.ldexp(1.0, rng.integers(-info.nmant - 2, 2, shape))).astype(dtype)
        large, tiny = float(info.max), float(info.smallest_subnormal)
        values = [0.0, -0.0] if kind == "zeros" else [0.0, -0.0, 1.0, -1.0, large, -large, tiny]
        values += [np.inf, -np.inf, np.nan] if kind == "special" and rng.random() < 0.5 else []
        return rng.choice(values, shape).astype(dtype)


def rounded(column, dtype):
    """Return the sum of some numbers, rounded once to a dtype."""
    info = ml_dtypes.finfo(dtype)
    values = [float(each) for each in column]
    if any(math.isnan(each) for each in values) or {math.inf, -math.inf} <= set(values):
        return np.array(np.nan, dtype)
    for each in values:
        if math.isinf(each):
            return np.array(each, dtype)
    total = sum(map(Fraction, values))
    if not total:
        is_minus = values and all(math.copysign(1, each) < 0 for each in values if not each)
        return np.array(-0.0 if is_minus and not any(values) else 0.0, dtype)
    size = abs(total)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    unit = Fraction(2) ** max(exponent - info.nmant, info.minexp - info.nmant)
    near = round(size / unit) * unit  # of two the even one
    value = math.inf if near >= Fraction(2) ** info.maxexp else float(near)
    return np.array(value if total > 0 else -value, dtype)


def same(got, want, text=""):
    got, want = np.ascontiguousarray(got), np.ascontiguousarray(want)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(
        got.view(np.uint8).reshape(-1, got.itemsize),
        want.view(np.uint8).reshape(-1, got.itemsize),
        text,
    )


def total(sums):
    """Return exact sums, rounded."""
    (name,) = sums.dtype.names
    out = np.empty(sums.shape, dtype_of(name))
    words = np.ascontiguousarray(sums).reshape(-1).view(np.int64)
    return _core.exact_rounded(words, name, out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FLOATS)
def test_sums_are_rounded_once(isa, name, kind):
    dtype, rng = dtype_of(name), np.random.default_rng([len(isa), KINDS.index(kind)])
    for rows in (1, 2, 3, 5, 8, 33):
        x = numbers(kind, (rows, 75), dtype, rng)
        want = np.array([rounded(x[:, k], dtype) for k in range(75)])
        same(_core.exact_rows(np.empty(75, dtype), x), want, f"{rows} rows")
        same(total(cc.sum_local(x, 0)), want, f"{rows} rows, by words")
        same(total(cc.sum_local(x)), rounded(x.ravel(), dtype), f"all of {rows} rows")


@pytest.mark.parametrize("name", FLOATS)
def test_ten_thousand_vectors_in_any_order(name):
    """Permuted, split and associated at random, a sum has the same bits: the right ones."""
    dtype, rng = dtype_of(name), np.random.default_rng(7)
    for turn in range(10_000 // len(FLOATS)):
        x = numbers(KINDS[turn % len(KINDS)], int(rng.integers(1, 60)), dtype, rng)
        want = rounded(x, dtype)
        same(total(cc.sum_local(x)), want)
        shuffled = rng.permutation(x)
        cuts = np.sort(rng.integers(0, len(x) + 1, rng.integers(0, 8)))
        sums = [cc.sum_local(part) for part in np.split(shuffled, cuts)]
        while len(sums) > 1:  # any tree over the parts
            a = sums.pop(rng.integers(len(sums)))
            k = rng.integers(len(sums))
            sums[k] = cc.sum_local(np.stack([a, sums[k]]))
        same(total(sums[0]), want)


def test_fsum_of_many():
    rng = np.random.default_rng(3)
    x = rng.normal(size=100_003) * np.exp2(rng.integers(-60, 60, 100_003))
    assert float(total(cc.sum_local(x))) == math.fsum(x)
    assert total(cc.sum_local(x.reshape(-1, 1), 0)) == math.fsum(x)


def test_carries_of_many_large_numbers():
    """Each limb gets as much as one addition can put into it, a hundred thousand times."""
    for name in ("float32", "float64"):
        dtype = dtype_of(name)
        x = np.full(100_000, -np.finfo(dtype).max)
        x[::2] *= -1
        x[0] = np.finfo(dtype).smallest_subnormal
        want = rounded(x.astype(dtype), dtype)
        assert np.isfinite(want)
        same(total(cc.sum_local(x.astype(dtype))), want)
        assert total(cc.sum_local(np.abs(x).astype(dtype))) == np.inf


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_complex_numbers_are_two_floats(isa, name):
    part = np.dtype(f"float{np.dtype(name).itemsize * 4}")
    x = numbers("wide", (5, 74), part, np.random.default_rng(1)).view(name)
    want = np.array([rounded(x.view(part)[:, k], part) for k in range(74)]).view(name)
    same(_core.exact_rows(np.empty(37, name), x), want)
    same(total(cc.sum_local(x, 0)), want)
    parts = [rounded(each.ravel(), part) for each in (x.real, x.imag)]
    same(total(cc.sum_local(x)).reshape(1).view(part), np.array(parts))


def test_what_lies_apart_and_what_is_empty():
    x = np.arange(60.0).reshape(6, 10)
    assert total(cc.sum_local(x[::2, 1::3])) == x[::2, 1::3].sum()
    same(total(cc.sum_local(x.T, 0)), x.T.sum(0))
    same(total(cc.sum_local(np.zeros((0, 3)), 0)), np.zeros(3))
    assert cc.sum_local(np.zeros((3, 0)), 0).shape == (0,)
    same(total(cc.sum_local(np.zeros(0))), np.zeros(()))
    same(
        total(cc.sum_local(np.stack([cc.sum_local(np.zeros(0)), cc.sum_local(-np.zeros(1))]))),
        -np.zeros(()),
    )
    assert cc.sum_local(cc.sum_local(np.ones((4, 3)), 0)[:0]).shape == ()


def test_what_is_refused():
    with pytest.raises(
        UnsupportedTypeError, match="adds floating numbers, and x is int64; integers"
    ):
        cc.sum_local(np.arange(3))
    with pytest.raises(UnsupportedTypeError, match=r"pass its fields one by one, x\['int64'\]"):
        cc.sum_local(np.zeros(2, [("int64", np.int64)]))
    with pytest.raises(ArgumentError, match="axis is 1, and must be 0, or None"):
        cc.sum_local(np.ones((2, 2)), 1)
    with pytest.raises(ArgumentError, match="axis is 0, and x has no axes"):
        cc.sum_local(np.ones(()), 0)
    with pytest.raises(ArgumentError, match="op is SUM, and sum_local has only SUM_REPRODUCIBLE"):
        cc.sum_local(np.ones(2), op=cc.SUM)
