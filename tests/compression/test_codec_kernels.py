"""The kernels of compression: bounds that hold for every element, not on average over luck."""

import ml_dtypes
import numpy as np
import pytest

from collectives import _core
from collectives.errors import ArgumentError, UnsupportedTypeError

LEVELS = {8: 127, 4: 7}
COUNTS = (0, 1, 2, 7, 8, 15, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1009)
BLOCKS = (1, 3, 8, 64, 256, 2000)
SMALLEST = np.float32(2.0**-112)  # a step


def instruction_sets():
    names = []
    best = _core.kernels_isa()
    for name in ("portable", "avx2", "avx512"):
        try:
            _core.kernels_select(name)
        except ArgumentError:
            continue
        names.append(name)
    _core.kernels_select(best)
    return names


SETS = instruction_sets()
pytestmark = pytest.mark.usual(*SETS)


@pytest.fixture(params=SETS)
def isa(request):
    best = _core.kernels_isa()
    _core.kernels_select(request.param)
    yield request.param
    _core.kernels_select(best)


def sample(count, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=count) * np.exp(rng.normal(size=count))).astype(np.float32)


def coded(bits, x, block, residual=None, seed=0, first=0):
    """Return the codes of `x`, and the array that they are decoded to."""
    codes = np.empty(_core.encoded_bytes(bits, x.size, block), np.uint8)
    _core.encode(bits, codes, x, residual, block, seed, first)
    got = np.full(x.size, 777, np.float32)
    _core.decode(bits, got, codes, block)
    return codes, got


def blocks_of(x, block):
    return [x[at : at + block] for at in range(0, x.size, block)]


def scales_of(codes, count, block):
    return codes[: 4 * -(-count // block)].view(np.float32)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("bits", [8, 4])
def test_an_element_moves_by_less_than_a_step(isa, bits, block):
    for count in COUNTS:
        x = sample(count, count)
        codes, got = coded(bits, x, block, seed=count)
        for scale, mine, theirs in zip(
            scales_of(codes, count, block), blocks_of(x, block), blocks_of(got, block), strict=True
        ):
            assert scale == np.abs(mine).max() / np.float32(LEVELS[bits])
            # One step, and three roundings of a value up to the largest magnitude.
            assert (np.abs(theirs - mine) <= scale * (1 + 1e-6) + np.abs(mine) * 1e-6).all()
            assert np.abs(theirs).max() <= np.abs(mine).max() * np.float32(1 + 1e-6)


def rounded(bits, x, seeds):
    """Return the mean of a block that is encoded with each seed."""
    total = np.zeros(x.size)
    for seed in seeds:
        total += coded(bits, x, x.size, seed=seed)[1]
    return total / len(seeds)


@pytest.mark.parametrize("bits", [8, 4])
def test_the_error_is_zero_on_average(isa, bits):
    """By Hoeffding's inequality: N errors, each within one step, have a mean above t steps with a
    probability of at most 2 exp(-2 N t^2), for each of 67 elements. That is 1e-12 here, and the
    seeds are fixed.
    """
    x = sample(67, 5)
    step = np.abs(x).max() / LEVELS[bits]
    seeds = range(4000)
    bound = np.sqrt(np.log(2 * 67 / 1e-12) / (2 * len(seeds)))
    assert np.abs(rounded(bits, x, seeds) - x).max() <= bound * step
    nearest = np.abs(np.round(x / step) * step - x).max()
    assert nearest > 3 * bound * step  # so the test would notice rounding to nearest


def test_every_random_number_rounds_as_it_says():
    """Over all random numbers of 15 bits the mean is exact: the fraction is what rounds up."""
    x = np.array([1.0, 0.25, -0.6, 0.999, 0.0, -1.0], np.float32)
    up = np.zeros(x.size)
    seeds = range(3000)
    for seed in seeds:
        codes, _ = coded(8, x, x.size, seed=seed)
        up += codes[4:].view(np.int8)
    steps = up / len(seeds)
    np.testing.assert_allclose(steps, x * 127, atol=0.07)
    assert steps[4] == 0  # never moved
    assert abs(steps[0] - 127) < 2**-8
    assert abs(steps[5] + 127) < 2**-8


@pytest.mark.parametrize("bits", [8, 4, 1])
def test_all_instruction_sets_have_the_same_bits(bits):
    best = _core.kernels_isa()
    try:
        for count in COUNTS:
            for block in BLOCKS:
                seen = set()
                for name in SETS:
                    _core.kernels_select(name)
                    residual = sample(count, 9) if bits == 1 else None
                    x = sample(count, count)
                    codes, got = coded(bits, x, block, residual, seed=3, first=7)
                    _core.decode(bits, got, codes, block, True)
                    lost = b"" if residual is None else residual.tobytes()
                    seen.add((codes.tobytes(), got.tobytes(), lost))
                assert len(seen) == 1
    finally:
        _core.kernels_select(best)


@pytest.mark.parametrize("bits", [8, 4])
def test_random_numbers_go_by_the_number_of_the_block(isa, bits):
    """Parts of an array are encoded as the array is: bytes of codes do not depend on the cuts."""
    block = 32
    x = sample(10 * block, 1)
    whole = coded(bits, x, block, seed=11)[1]
    for cut in (1, 4, 9):
        first = coded(bits, x[: cut * block], block, seed=11)[1]
        second = coded(bits, x[cut * block :], block, seed=11, first=cut)[1]
        np.testing.assert_array_equal(np.concatenate([first, second]), whole)
    assert (coded(bits, x, block, seed=12)[1] != whole).any()


@pytest.mark.parametrize("block", BLOCKS)
def test_signs(isa, block):
    for count in COUNTS:
        x = sample(count, count)
        for mine, theirs in zip(
            blocks_of(x, block), blocks_of(coded(1, x, block)[1], block), strict=True
        ):
            mean = np.abs(mine.astype(np.float64)).mean()
            np.testing.assert_allclose(np.abs(theirs), mean, rtol=1e-6)
            np.testing.assert_array_equal(np.signbit(theirs), np.signbit(mine))
            square = float(mine.astype(np.float64) @ mine)
            left = float(((theirs - mine).astype(np.float64) ** 2).sum())
            # The contraction, which holds with equality.
            delta = (mean * mine.size) ** 2 / (mine.size * square)
            np.testing.assert_allclose(left, (1 - delta) * square, atol=2e-6 * square)


def test_a_residual_is_what_is_lost(isa):
    for count in COUNTS:
        x, before = sample(count, 1), sample(count, 2)
        residual = before.copy()
        got = coded(1, x, 64, residual)[1]
        np.testing.assert_array_equal(residual, (before + x) - got)


@pytest.mark.parametrize("bits", [8, 4, 1])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -np.nan])
def test_what_is_not_finite_ends_in_its_block(isa, bits, value):
    block = 32
    for place in (0, 31, 32, 63, 64, 70):
        x = sample(75, 3)
        other = coded(bits, x, block, seed=1)[1]
        x[place] = value
        residual = np.ones(75, np.float32) if bits == 1 else None
        if bits == 1:
            other = coded(1, sample(75, 3), block, np.ones(75, np.float32))[1]
        got = coded(bits, x, block, residual, seed=1)[1]
        inside = np.arange(75) // block == place // block
        assert np.isnan(got[inside]).all()
        assert not np.signbit(got[inside]).any()  # it is numpy.nan
        np.testing.assert_array_equal(got[~inside], other[~inside])
        if bits == 1:
            assert (residual[inside] == 0).all()
            assert np.isfinite(residual).all()


@pytest.mark.parametrize("bits", [8, 4, 1])
def test_zeros_stay_zeros(isa, bits):
    got = coded(bits, np.zeros(70, np.float32), 32)[1]
    assert (got == 0).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_tiny_and_huge_magnitudes(isa, bits):
    tiny = np.array([1e-45, -1e-40, 1e-38, 0.0] * 10, np.float32)
    got = coded(bits, tiny, 64)[1]
    assert np.isin(got, [0, SMALLEST, -SMALLEST]).all()
    assert (got[3::4] == 0).all()
    most = np.finfo(np.float32).max
    huge = np.array([most, -most, most / 2, 1.0] * 10, np.float32)
    got = coded(bits, huge, 64)[1]
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got[::4], most, rtol=1.01 / LEVELS[bits])


def test_signs_of_huge_magnitudes(isa):
    most = np.finfo(np.float32).max
    got = coded(1, np.array([most, -most] * 50, np.float32), 64)[1]
    np.testing.assert_array_equal(np.abs(got), most)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(isa, dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    special = [0.0, -0.0, 1e-8, 6e-8, 6e-5, 65519, 65520, 1e38, 3.4e38, np.inf, -np.inf]
    for count in COUNTS:
        x = np.resize(np.concatenate([special, sample(40)]), count).astype(np.float32)
        got = np.empty(count, kind)
        _core.convert(got, x)
        with np.errstate(over="ignore"):
            wanted = x.astype(kind)
        np.testing.assert_array_equal(got.view(np.uint16), wanted.view(np.uint16))
        back = np.empty(count, np.float32)
        _core.convert(back, got)
        np.testing.assert_array_equal(back, wanted.astype(np.float32))
    # Any NaN, also those that rounding would carry to infinity, becomes numpy.nan.
    x = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001] * 5, np.uint32).view(np.float32)
    got = np.empty(x.size, kind)
    _core.convert(got, x)
    assert set(got.view(np.uint16)) == {0x7E00 if dtype == "float16" else 0x7FC0}


def test_orthonormal_rows(isa):
    for rank, count in ((1, 5), (2, 17), (4, 100), (5, 5)):
        rows = np.random.default_rng(rank).normal(size=(rank, count)).astype(np.float32)
        before = rows.astype(np.float64)
        assert _core.orthonormalise(rows) == rank
        np.testing.assert_allclose(rows @ rows.T, np.eye(rank), atol=1e-6)
        # They span the same space.
        onto = before @ rows.T @ rows
        np.testing.assert_allclose(onto, before, atol=1e-5 * np.abs(before).max())


def test_rows_that_depend_on_others_become_zero(isa):
    rows = np.array([[1, 2, 3, 4], [2, 4, 6, 8], [0, 0, 0, 0], [1, 0, 0, 0]], np.float32)
    assert _core.orthonormalise(rows) == 2
    assert (rows[1:3] == 0).all()
    np.testing.assert_allclose(rows[[0, 3]] @ rows[[0, 3]].T, np.eye(2), atol=1e-6)
    rows = np.full((2, 3), np.nan, np.float32)
    _core.orthonormalise(rows)
    assert np.isnan(rows).all()


def test_low_rank(isa):
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(3, 7)), rng.normal(size=(3, 50))
    left, right = left.astype(np.float32), right.astype(np.float32)
    out = np.empty((7, 50), np.float32)
    _core.low_rank(out, left, right)
    np.testing.assert_allclose(out, left.T @ right, rtol=1e-5, atol=1e-6)
    start = np.ones((7, 50), np.float32)
    _core.low_rank(start, left, right, True)
    np.testing.assert_allclose(start, 1 - left.T @ right, rtol=1e-5, atol=1e-5)


def test_dense_algebra_has_the_same_bits_on_all_instruction_sets():
    best = _core.kernels_isa()
    seen = set()
    try:
        for name in SETS:
            _core.kernels_select(name)
            rows = np.random.default_rng(3).normal(size=(3, 1009)).astype(np.float32)
            _core.orthonormalise(rows)
            out = np.empty((77, 1009), np.float32)
            _core.low_rank(out, rows[:, :77].copy(), rows)
            seen.add((rows.tobytes(), out.tobytes()))
    finally:
        _core.kernels_select(best)
    assert len(seen) == 1


def test_random_words():
    words = _core.random_words(7, 1000)
    assert words.dtype == np.uint64
    assert [int(word) for word in words[:5]] == [_core.random_word(7, i) for i in range(5)]
    assert len(set(words.tolist())) == 1000
    # splitmix64 from 0, as published with it.
    assert _core.random_word(0, 0) == 0xE220A8397B1DCDAF


def test_arguments():
    x, codes = np.ones(4, np.float32), np.empty(8, np.uint8)
    for call, error, text in (
        (lambda: _core.encode(2, codes, x, None, 4), ArgumentError, "bits is 2"),
        (lambda: _core.encode(8, codes, x, None, 0), ArgumentError, "block is 0"),
        (lambda: _core.encode(8, codes[1:], x, None, 4), ArgumentError, "must have 8"),
        (lambda: _core.encode(8, codes, x, x, 4), ArgumentError, "residual must be"),
        (lambda: _core.encode(8, codes, np.ones(4), None, 4), UnsupportedTypeError, "float64"),
        (lambda: _core.decode(8, x, codes[:-1], 4), ArgumentError, "must have 8"),
        (lambda: _core.convert(x, x), UnsupportedTypeError, "not converted"),
        (lambda: _core.convert(np.ones(3, np.float16), x), ArgumentError, "same number"),
    ):
        with pytest.raises(error, match=text):
            call()
