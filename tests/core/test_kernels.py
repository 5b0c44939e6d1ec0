"""The fold and scale kernels against NumPy, on every instruction set that this CPU has."""

import functools
import zlib

import dtypes
import ml_dtypes
import numpy as np
import pytest
import specials
from dtypes import dtype_of

from collectives import _core, reductions
from collectives.choice.model import MEMCPY, PAYLOADS
from collectives.errors import ArgumentError, BufferError

BFLOAT16 = dtype_of("bfloat16")
HALVES = [np.dtype(np.float16), BFLOAT16]
FLOATS, COMPLEXES, DTYPES = (
    [dtype_of(each) for each in names] for names in (dtypes.FLOATS, dtypes.COMPLEX, dtypes.DTYPES)
)
SCALED = [*FLOATS, *COMPLEXES]
SUPPORTED = {op: [dtype_of(each) for each in dtypes.SUPPORTED[op]] for op in dtypes.UFUNCS}
PAIRS = [(op, dtype) for op in SUPPORTED for dtype in SUPPORTED[op]]
REFUSED = [(op, dtype) for op in SUPPORTED for dtype in DTYPES if dtype not in SUPPORTED[op]]

SIZES = [0, 1, 7, 8, 63, 64, 65, 1009]
OFFSETS = [(0, 0, 0), (1, 1, 1), (0, 1, 0), (1, 0, 2)]  # of out, left, right, in elements
WAYS = [0, PAYLOADS, MEMCPY]
PLACES = ["distinct", "left", "right"]  # which operand the result replaces


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


@pytest.fixture(autouse=True)
def best_isa_afterwards():
    """Leave the best instruction set selected, whatever the test selects."""
    yield
    _core.kernels_select(None)


def code_of(op):
    return getattr(reductions, op).code


def fold(op, out, left, right):
    _core.fold(code_of(op), out, left, right)


def interesting(dtype):
    """Return the values that go wrong first: extremes, signed zeros, subnormals, inf, NaN, ties."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array([0, 1, 2, info.min, info.max, info.max - 1, info.max // 2 + 1], dtype)
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind == "c":
        part = interesting(np.zeros(0, dtype).real.dtype)
        grid = np.empty((part.size, part.size), dtype)
        grid.real, grid.imag = np.meshgrid(part, part)
        return grid.ravel()
    info = ml_dtypes.finfo(dtype)
    tiny, least, eps = (np.longdouble(x) for x in (info.tiny, info.smallest_subnormal, info.eps))
    positive = [0.0, 1.0, 1 + eps, eps / 2, 3 * eps / 2, least, 3 * least, tiny - least, tiny, 0.1]
    positive += [np.longdouble(info.max), np.inf, np.nan]
    payload = np.array([np.nan], dtype)
    payload.view(np.uint8)[0] |= 0x11
    return np.concatenate([np.array([*positive, *(-x for x in positive)], dtype), payload])


@functools.cache
def sample(dtype, count, salt):
    """Return `count` values: every interesting one at some place, random ones between."""
    rng = np.random.default_rng(zlib.crc32(f"{dtype.name} {salt}".encode()))
    if dtype.kind == "c":
        part = np.zeros(0, dtype).real.dtype
        values = sample(part, 2 * count, salt).view(dtype).copy()
    elif dtype.kind in "iub":
        values = rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(f"u{dtype.itemsize}")
        values = (values & 1).astype(bool) if dtype.kind == "b" else values.view(dtype)
    else:
        values = rng.standard_normal(count).astype(dtype)
    special = interesting(dtype)
    where = rng.random(count) < 0.3
    return np.where(where, special[rng.integers(0, special.size, count)], values)


def reference(op, left, right):
    """Return the fold as NumPy has it; halves through float32."""
    dtype = left.dtype
    if dtype in HALVES:
        wide = specials.fold(op, left.astype(np.float32), right.astype(np.float32))
        return specials.canonical(wide.astype(dtype))
    if dtype in (*FLOATS, *COMPLEXES):
        return specials.fold(op, left, right)
    return dtypes.UFUNCS[op](left, right).astype(dtype)


def placed(values, offset):
    """Return a copy of the array that begins `offset` elements into its memory."""
    memory = np.zeros(values.size + offset, values.dtype)
    memory[offset:] = values
    return memory[offset:]


def name(value):
    return value.name if isinstance(value, np.dtype) else str(value)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("op", "dtype"), PAIRS, ids=name)
def test_fold_agrees_with_numpy(op, dtype, isa):
    _core.kernels_select(isa)
    for size in SIZES:
        left, right = sample(dtype, size, "left"), sample(dtype, size, "right")
        want = specials.bits(reference(op, left, right))
        for offsets in OFFSETS:
            for place in PLACES:
                a, b = placed(left, offsets[1]), placed(right, offsets[2])
                out = {"left": a, "right": b}.get(place)
                if out is None:
                    out = placed(np.zeros_like(left), offsets[0])
                fold(op, out, a, b)
                np.testing.assert_array_equal(
                    specials.bits(out), want, err_msg=f"{size} {offsets} {place}"
                )
                if place != "left":
                    np.testing.assert_array_equal(a.view(np.uint8), left.view(np.uint8))
                if place != "right":
                    np.testing.assert_array_equal(b.view(np.uint8), right.view(np.uint8))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("op", "dtype"), PAIRS, ids=name)
def test_fold_writes_nothing_beyond_its_result(op, dtype, isa):
    _core.kernels_select(isa)
    for size in SIZES:
        left = sample(dtype, size + 2, "left")
        memory = left.copy()
        inner = memory[1:-1]
        fold(op, inner, inner, sample(dtype, size, "right"))
        assert memory[0].tobytes() == left[0].tobytes()
        assert memory[-1].tobytes() == left[-1].tobytes()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX"])
def test_every_half_against_the_interesting_ones(op, dtype, isa):
    _core.kernels_select(isa)
    every = np.arange(2**16, dtype=np.uint16).view(dtype)
    for value in interesting(dtype):
        right = np.full_like(every, value)
        out = np.empty_like(every)
        fold(op, out, every, right)
        want = reference(op, every, right)
        np.testing.assert_array_equal(specials.bits(out), specials.bits(want))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("op", "dtype"), PAIRS, ids=name)
def test_instruction_sets_give_the_same_bits(op, dtype):
    left, right = sample(dtype, 20011, "left"), sample(dtype, 20011, "right")
    results = []
    for isa in ISAS:
        _core.kernels_select(isa)
        out = np.empty_like(left)
        fold(op, out, left, right)
        results.append(specials.bits(out))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX"])
@pytest.mark.parametrize("isa", ISAS)
def test_a_nan_on_either_side_wins(op, dtype, isa):
    _core.kernels_select(isa)
    numbers = np.ones(101, dtype)
    nans = np.full(101, np.nan, dtype)
    # Rounding up carries out of this one.
    full = np.full(101 * dtype.itemsize, 0xFF, np.uint8).view(dtype)
    out = np.empty_like(numbers)
    for left, right in [(numbers, nans), (nans, numbers), (numbers, full), (full, numbers)]:
        fold(op, out, left, right)
        np.testing.assert_array_equal(specials.bits(out), specials.bits(nans))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("op", "dtype"), PAIRS, ids=name)
def test_operands_may_be_exchanged(op, dtype, isa):
    _core.kernels_select(isa)
    for size in SIZES:
        left, right = sample(dtype, size, "left"), sample(dtype, size, "right")
        out, exchanged = np.empty_like(left), np.zeros_like(left)
        fold(op, out, left, right)
        fold(op, exchanged, right, left)
        assert out.tobytes() == exchanged.tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_minus_zero_is_less_than_zero(dtype, isa):
    _core.kernels_select(isa)
    zero, minus = np.zeros(101, dtype), -np.zeros(101, dtype)
    out = np.empty_like(zero)
    for left, right in [(zero, minus), (minus, zero)]:
        fold("MIN", out, left, right)
        assert np.signbit(out).all()
        fold("MAX", out, left, right)
        assert not np.signbit(out).any()
    for op in ("MIN", "MAX"):
        fold(op, out, minus, minus)
        assert np.signbit(out).all()


def test_the_padding_of_a_long_double_is_zero():
    """Equal numbers have equal bytes, whatever was there before."""
    memory = np.full(64, 0xFF, np.uint8)
    out, one = memory.view(np.longdouble), np.ones(4, np.longdouble)
    for run in (lambda: fold("SUM", out, one, one), lambda: _core.scale(out, one, 2.0)):
        memory[:] = 0xFF
        run()
        clean = np.zeros(4, np.longdouble)
        clean += 2
        assert (out == 2).all()
        assert memory.tobytes() == clean.tobytes()


@pytest.mark.parametrize("op", [op for op in SUPPORTED if np.dtype(bool) in SUPPORTED[op]])
@pytest.mark.parametrize("isa", ISAS)
def test_any_byte_but_zero_is_true(op, isa):
    _core.kernels_select(isa)
    left, right = (x.ravel().astype(np.uint8) for x in np.meshgrid(range(256), range(256)))
    out = np.full(left.size, 7, np.uint8)
    fold(op, out.view(bool), left.view(bool), right.view(bool))
    want = reference(op, left != 0, right != 0).view(np.uint8)
    np.testing.assert_array_equal(out, want)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", SCALED, ids=name)
def test_scale_agrees_with_numpy(dtype, isa):
    _core.kernels_select(isa)
    for factor in (1 / 3, -2.0, 0.0, 1e-30, np.inf, np.nan):
        for size in SIZES:
            source = sample(dtype, size, "scale")
            parts = source.view(source.real.dtype) if dtype.kind == "c" else source
            wide = np.float32 if dtype in HALVES else np.promote_types(np.float64, parts.dtype)
            want = (parts.astype(wide) * np.dtype(wide).type(factor)).astype(parts.dtype)
            want = specials.canonical(want).view(dtype)
            for offset in (0, 1):
                out = placed(np.zeros_like(source), offset)
                _core.scale(out, source, factor)
                np.testing.assert_array_equal(specials.bits(out), specials.bits(want))
                out = placed(source, offset)
                _core.scale(out, out, factor)
                np.testing.assert_array_equal(specials.bits(out), specials.bits(want))


def test_scale_by_a_nan_with_a_full_payload_gives_nan():
    factor = np.array([0x7FFFFFFFFFFFFFFF], np.uint64).view(np.float64)[0]
    for isa in ISAS:
        _core.kernels_select(isa)
        for dtype in FLOATS:
            out = np.ones(101, dtype)
            _core.scale(out, out, factor)
            assert np.isnan(out).all()


@pytest.mark.parametrize(("op", "dtype"), REFUSED, ids=name)
def test_fold_refuses(op, dtype):
    array = np.zeros(3, dtype)
    with pytest.raises((TypeError, ValueError)):
        fold(op, array, array, array)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in SCALED], ids=name)
def test_scale_refuses(dtype):
    array = np.zeros(3, dtype)
    with pytest.raises((TypeError, ValueError)):
        _core.scale(array, array, 2.0)


def test_the_selected_isa_is_reported_and_an_unknown_one_changes_nothing():
    for isa in ISAS:
        _core.kernels_select(isa)
        assert _core.kernels_isa() == isa
    with pytest.raises((TypeError, ValueError)):
        _core.kernels_select("mmx")
    assert _core.kernels_isa() == ISAS[-1]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("ways", WAYS)
def test_a_copy_is_a_copy(ways, isa):
    """With all places in a line, and all lengths about the steps of the loops."""
    _core.kernels_select(isa)
    source = np.random.default_rng(7).integers(8, 256, 2200, np.uint8)
    lengths = {*range(131), *(64 * k + more for k in range(3, 9) for more in (-1, 0, 1, 33)), 2100}
    for place in range(65):
        for n in lengths:
            for start in (0, 1, 63):
                src, memory = source[start : start + n], np.full(n + 192, 7, np.uint8)
                out = memory[-memory.ctypes.data % 64 + place :][:n]
                assert _core.copy_array(out, src, ways) is out
                assert out.tobytes() == src.tobytes()
                out[:] = 7
                assert (memory == 7).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("ways", WAYS)
def test_a_long_copy_is_a_copy_wherever_pages_begin(ways, isa):
    _core.kernels_select(isa)
    n = 100_003
    source = np.random.default_rng(7).integers(8, 256, n + 2 * 4096, np.uint8)
    src = source[-source.ctypes.data % 4096 + 64 :][:n]
    for place in (0, 1, 63, 64, 65, 80, 127, 128, 2048):
        memory = np.full(n + 3 * 4096, 7, np.uint8)
        out = memory[-memory.ctypes.data % 4096 + place :][:n]
        _core.copy_array(out, src, ways)
        assert out.tobytes() == src.tobytes()
        out[:] = 7
        assert (memory == 7).all()


def test_a_copy_has_conditions():
    x = np.zeros(100)
    with pytest.raises(ArgumentError, match="same dtype and number"):
        _core.copy_array(x, np.zeros(99))
    with pytest.raises(ArgumentError, match="same dtype and number"):
        _core.copy_array(x, np.zeros(100, np.float32))
    with pytest.raises(BufferError, match="dst overlaps src"):
        _core.copy_array(x[:60], x[40:])
