"""The fold kernels of devices, run on this CPU, bit for bit against the kernels of the host."""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import zlib

import ml_dtypes
import numpy as np
import on_cpu
import pytest
from usual import FULL

from collectives import _core, reductions
from collectives.arrays.buffers import DTYPES
from collectives.devices import folds
from collectives.errors import ArgumentError, UnsupportedTypeError

ROUNDS = 4 if FULL else 1
OPERANDS = [1, 2, 3, 4, 5, 6, 16]
GUARD = 64  # bytes around each place, which must stay as they are
SMALL = folds.Geometry(blocks=2, threads=3)  # a tile of 192 bytes, or of 12 elements
FACTORS = [1 / 3, -2.0, 0.0, 1e-30, float("inf"), float("nan"), 1.0]
PRECISION = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def part_of(name):
    """Return the dtype of the parts of complex numbers, or the dtype itself."""
    return {"complex64": "float32", "complex128": "float64"}.get(name, name)


@functools.cache
def patterns(name):
    """Return the bits that go wrong first, as unsigned integers."""
    width = dtype_of(name).itemsize * 8
    sign, every = 1 << (width - 1), (1 << width) - 1
    if name not in PRECISION:
        return np.array([0, 1, 2, sign, sign - 1, sign + 1, every, every - 1], f"u{width // 8}")
    last = 1 << PRECISION[name]  # the lowest bit of the exponent
    infinity, one = (sign - 1) & -last, ((sign >> 2) - 1) & -last
    found = [0, 1, 3, last - 1, last, last + 1, one, one + 1, one - 1, infinity - 1, infinity]
    found += [infinity + 1, infinity + last // 2, infinity + last // 2 + 5, sign - 1]
    return np.array([*found, *(sign + bits for bits in found)], f"u{width // 8}")


@functools.cache
def sample(name, count, salt):
    """Return elements as bytes: special bits, random bits, and for floats normal numbers."""
    if part_of(name) != name:
        return sample(part_of(name), 2 * count, salt)
    rng = np.random.default_rng(zlib.crc32(f"{name} {salt}".encode()))
    dtype = dtype_of(name)
    special = patterns(name)
    bits = rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(special.dtype)
    usual = rng.standard_normal(count).astype(dtype).view(bits.dtype) if dtype.kind != "b" else bits
    if name == "bool":
        usual = bits & 1
    elif name not in PRECISION:
        usual = bits
    chosen = special[rng.integers(0, special.size, count)]
    kind = rng.integers(0, 3, count)
    return np.where(kind == 0, chosen, np.where(kind == 1, bits, usual)).view(np.uint8)


class Place:
    """Memory that begins at a given address modulo 16, with guards around it."""

    def __init__(self, nbytes, alignment, content=None):
        self.memory = self.filled(nbytes + 2 * GUARD + 16)
        self.begin = GUARD + (alignment - self.pointer() - GUARD) % 16
        self.end = self.begin + nbytes
        if content is not None:
            self.memory[self.begin : self.end] = self.here(content)

    def filled(self, nbytes):
        return np.full(nbytes, 0xA5, np.uint8)

    def pointer(self):
        return self.memory.ctypes.data

    def here(self, content):
        return content

    def on_host(self):
        return self.memory

    @property
    def address(self):
        return self.pointer() + self.begin

    def get(self):
        found = self.on_host()
        assert (found[: self.begin] == 0xA5).all()
        assert (found[self.end :] == 0xA5).all()
        return found[self.begin : self.end]


def fold_on_host(op, dtype, left, right):
    out = np.empty_like(left)
    code = getattr(reductions, op).code
    _core.fold(code, out.view(dtype), left.view(dtype), right.view(dtype))
    return out


def scaled_on_host(dtype, values, factor):
    out = np.empty_like(values)
    _core.scale(out.view(dtype), values.view(dtype), factor)
    return out


def on_host(op, name, operands, one):
    """Return what the host makes of the operands of a pass: the publication, and the result."""
    dtype = dtype_of(name)
    scaled = [*one.is_prescaled, *[False] * len(operands)]
    operands = [
        scaled_on_host(dtype, each, one.prescale) if scaled[k] else each
        for k, each in enumerate(operands)
    ]
    made = operands[0]
    for each, is_left in zip(operands[1:], one.is_left[1:], strict=True):
        sides = (each, made) if is_left else (made, each)
        made = fold_on_host(op, dtype, *sides)
    if one.postscale is None:
        return made, made
    return made, scaled_on_host(dtype, made, one.postscale)


def address(place):
    return place.ctypes.data


def choose(rng, probability):
    return bool(rng.random() < probability)


def try_pass(kind, run, op, name, rng, count, operands, alignment):
    """Run one pass in places of a kind, as chance chooses, and compare it with the host's."""
    itemsize, step = dtype_of(name).itemsize, dtype_of(part_of(name)).itemsize
    nbytes = count * itemsize
    contents = [sample(name, count, int(rng.integers(8))).copy() for _ in range(operands)]
    uneven = choose(rng, 0.25)

    def place(content=None):
        other = int(rng.integers(0, 16, 1)[0]) // step * step
        return kind(nbytes, other if uneven else alignment, content)

    sources = [place(content) for content in contents]
    replaced = int(rng.integers(operands)) if choose(rng, 0.3) else None
    dst = None if choose(rng, 0.1) else place() if replaced is None else sources[replaced]
    publication = place() if dst is None or choose(rng, 0.3) else None
    targets = [place() for _ in range(int(rng.integers(1, 17)) if choose(rng, 0.3) else 0)]
    factors = [folds.scale_factor(name, each) for each in FACTORS if name in folds.SCALED]
    scales = bool(factors) and choose(rng, 0.4)
    one = folds.Pass(
        count,
        [each.address for each in sources],
        [choose(rng, 0.5) for _ in sources],
        0 if dst is None else dst.address,
        0 if publication is None else publication.address,
        [each.address for each in targets],
        [choose(rng, 0.6) for _ in sources] if scales else (),
        factors[rng.integers(len(factors))] if scales else 1.0,
        factors[rng.integers(len(factors))] if factors and choose(rng, 0.3) else None,
    )
    published, result = on_host(op, name, contents, one)
    run(op, name, one)

    told = f"{count} elements, {operands} operands, alignment {alignment}, {uneven=}, {one}"
    wanted = [(each, result) for each in (*targets, dst) if each is not None]
    wanted += [(publication, published)] * (publication is not None)
    for k, each in enumerate(sources):
        wanted += [(each, contents[k])] * (k != replaced or dst is None)
    for each, content in wanted:
        np.testing.assert_array_equal(each.get(), content, err_msg=told)


@pytest.fixture
def run(library):
    """Run passes of some blocks on the CPU, in turn forwards and backwards."""
    turns = itertools.count()

    def run(op, name, one):
        backwards = next(turns) % 2 == 1
        on_cpu.run(library, folds.kernel_name(op, name), one, SMALL, backwards=backwards)

    return run


def half_against_special_ones(kind, run, op, name):
    """Fold every half with each of the special ones, in places of a kind."""
    every = np.arange(2**16, dtype=np.uint16)
    left, out = kind(every.nbytes, 0, every.view(np.uint8)), kind(every.nbytes, 0)
    for pattern in patterns(name):
        other = np.full_like(every, pattern).view(np.uint8)
        right = kind(every.nbytes, 0, other)
        run(
            op,
            name,
            folds.Pass(every.size, [left.address, right.address], [False] * 2, out.address),
        )
        want = fold_on_host(op, dtype_of(name), every.view(np.uint8), other)
        np.testing.assert_array_equal(out.get(), want)


# Usual are every dtype with one operation, and every operation with two dtypes.
SOME = [
    (op, name)
    if op == "SUM" or name in ("float16", "int8")
    else pytest.param(op, name, marks=pytest.mark.slow)
    for op, name in folds.PAIRS
]


@pytest.mark.parametrize(("op", "name"), SOME)
def test_a_pass_has_the_bits_of_the_host(run, op, name):
    """Every number of operands at every alignment; the tails and all else by a fixed chance."""
    rng = np.random.default_rng(zlib.crc32(f"{op} {name}".encode()))
    itemsize, step = dtype_of(name).itemsize, dtype_of(part_of(name)).itemsize
    in_vector = 16 // itemsize
    tile = 4 * SMALL.threads * in_vector  # of vectors; 12 elements are a tile of the rest
    counts = [0, 1, in_vector - 1, in_vector, in_vector + 1, 11, 12, 13, 2 * tile - 1, 2 * tile]
    counts += [3 * tile + in_vector + 1, tile + 1, 37]
    for _ in range(ROUNDS):
        for operands in OPERANDS:
            for alignment in range(0, 16, step):
                count = counts[rng.integers(len(counts))]
                try_pass(Place, run, op, name, rng, count, operands, alignment)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["uint8", "float16", "float32", "complex64", "complex128"])
def test_every_tail_at_every_alignment(run, name):
    rng = np.random.default_rng(3)
    itemsize, step = dtype_of(name).itemsize, dtype_of(part_of(name)).itemsize
    for alignment in range(0, 16, step):
        for count in range(3 * 16 // itemsize + 2):
            try_pass(Place, run, "SUM", name, rng, count, 2, alignment)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "uint8", "bool"])
def test_a_single_source_is_copied_bit_by_bit(library, name):
    """Signalling NaNs, payloads, and bytes that are not 0 or 1 stay what they are."""
    dtype = dtype_of(name)
    every = np.arange(2**16, dtype=np.uint16).view(np.uint8)
    content = np.concatenate([every, patterns(name).view(np.uint8)])
    content = content[: content.size // dtype.itemsize * dtype.itemsize]
    out = Place(content.size, 0)
    one = folds.Pass(content.size // dtype.itemsize, [address(content)], [False], out.address)
    on_cpu.run(library, folds.kernel_name("SUM", name), one, folds.geometry(content.size, 1))
    np.testing.assert_array_equal(out.get(), content)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX"])
def test_every_half_against_the_special_ones(library, op, name):
    def run(op, name, one):
        geometry = folds.geometry(2 * one.elements, 1)
        on_cpu.run(library, folds.kernel_name(op, name), one, geometry)

    half_against_special_ones(Place, run, op, name)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("factor", [1 / 3, -2.0])
def test_every_half_is_scaled(library, name, factor):
    """Before the fold, after it, and alone."""
    every = np.arange(2**16, dtype=np.uint16)
    factor = folds.scale_factor(name, factor)
    out, published = np.empty_like(every), np.empty_like(every)
    for scaled in ([], [True]):
        one = folds.Pass(
            every.size,
            [address(every)],
            [False],
            address(out),
            address(published),
            (),
            scaled,
            factor,
            factor,
        )
        on_cpu.run(library, folds.kernel_name("SUM", name), one, folds.geometry(out.nbytes, 1))
        before, after = on_host("SUM", name, [every.view(np.uint8)], one)
        np.testing.assert_array_equal(published, before.view(np.uint16))
        np.testing.assert_array_equal(out, after.view(np.uint16))


@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND"])
@pytest.mark.parametrize("name", ["bool", "uint8", "int8"])
def test_all_pairs_of_bytes(library, op, name):
    pairs = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    left, right = (each.ravel().copy() for each in pairs)
    out = np.empty_like(left)
    one = folds.Pass(left.size, [address(left), address(right)], [False, False], address(out))
    on_cpu.run(library, folds.kernel_name(op, name), one, folds.geometry(out.nbytes, 1))
    np.testing.assert_array_equal(out, fold_on_host(op, dtype_of(name), left, right))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_conversions_of_halves(library, name):
    dtype = dtype_of(name)
    every = np.arange(2**16, dtype=np.uint16)
    wide = np.empty(every.size, np.float32)
    convert = ctypes.c_ulonglong(every.size)
    getattr(library, f"widen_{name}")(ctypes.c_void_p(address(every)), wide.ctypes, convert)
    want = every.view(dtype).astype(np.float32)
    is_number = ~np.isnan(want)
    np.testing.assert_array_equal(wide.view(np.uint32)[is_number], want.view(np.uint32)[is_number])
    assert np.isnan(wide[~is_number]).all()

    # Each number, the middle to the next one, and the float32 numbers around both.
    bits = want.view(np.uint32)[is_number].astype(np.int64)
    middle = np.append((bits[:-1] + bits[1:]) // 2, bits[-1])
    near = np.concatenate([base + step for base in (bits, middle) for step in (-1, 0, 1)])
    rng = np.random.default_rng(1)
    random = rng.integers(0, 2**32, 100_000)
    values = (np.concatenate([near, random]) % 2**32).astype(np.uint32).view(np.float32)
    halves = np.empty(values.size, np.uint16)
    convert = ctypes.c_ulonglong(values.size)
    getattr(library, f"narrow_{name}")(values.ctypes, halves.ctypes, convert)
    want = values.astype(dtype)
    want[np.isnan(values)] = np.nan
    np.testing.assert_array_equal(halves, want.view(np.uint16))


@pytest.mark.parametrize("operands", [2, 5, 16])
def test_operands_stand_on_their_sides(library, operands):
    """An operation that returns its right operand tells the order."""
    rng = np.random.default_rng(operands)
    sources = [np.full(100, k, np.uint32) for k in range(operands)]
    for _ in range(20):
        sides = [choose(rng, 0.5) for _ in sources]
        out = np.empty(100, np.uint32)
        one = folds.Pass(100, [address(each) for each in sources], sides, address(out))
        on_cpu.run(library, "fold_second_uint32", one, SMALL)
        last = max((k for k in range(1, operands) if not sides[k]), default=0)
        assert (out == last).all()


def test_indices_have_64_bits(library):
    """The last block of a grid over 64 GiB, of which only some pages are ever touched."""
    count, blocks = 2**36 + 40, 2**23 + 1
    try:
        memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_NORESERVE)
    except (OSError, AttributeError) as error:  # MAP_NORESERVE came with Python 3.13
        if isinstance(error, OSError):
            pytest.skip(f"64 GiB of addresses are not to be had: {error}")
        memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | 0x4000)
    whole = np.frombuffer(memory, np.uint8)
    geometry = folds.Geometry(blocks, 128)
    assert (blocks - 1) * geometry.threads * 64 == 2**36
    whole[-8192:] = 3
    one = folds.Pass(count, [address(whole)] * 2, [False] * 2, address(whole))
    on_cpu.run(library, "fold_sum_uint8", one, geometry, only=range(blocks - 1, blocks))
    assert (whole[-32:-8] == 6).all()
    assert (whole[-8:] == 3).all(), "the first block folds what is left behind the last vector"
    assert (whole[-8192:-40] == 3).all()
    on_cpu.run(library, "fold_sum_uint8", one, geometry, only=range(1))
    assert (whole[-8:] == 6).all()
    del whole


# -- what describes them ---------------------------------------------------------------------------


def test_constants_are_those_of_the_sources(library):
    constants = list((ctypes.c_int * 4).in_dll(library, "constants"))
    per_thread = folds._THREAD_BYTES
    want = [folds.MOST_PLACES, folds.THREADS, per_thread, folds.PARAMETERS.size]
    assert constants == want


def test_there_is_a_kernel_for_whatever_the_host_folds_and_scales():
    for dtype in DTYPES:
        if dtype == "float128":
            continue
        array = np.zeros(1, dtype_of(dtype))
        for op in (each for each in reductions.ALL if not (each.average or each.exact)):
            try:
                _core.fold(op.code, array, array, array)
            except UnsupportedTypeError:
                assert (op.name, dtype) not in folds.PAIRS
            else:
                assert (op.name, dtype) in folds.PAIRS
        try:
            _core.scale(array, array, 1.0)
        except UnsupportedTypeError:
            assert dtype not in folds.SCALED
        else:
            assert dtype in folds.SCALED


def test_factors_are_rounded_once():
    """A mean is divided in long double; halves have a factor of float32."""
    for dtype in folds.SCALED:
        for size in (1, 3, 7, 11):
            exact = np.longdouble(2.5) / size
            want = np.float32(exact) if "float16" in dtype else np.float64(exact)
            assert folds.scale_factor(dtype, 2.5, size) == want
    with pytest.raises(UnsupportedTypeError, match="need a floating dtype, not int8"):
        folds.scale_factor("int8", 2.0)


def test_the_geometry_covers_the_tiles_and_fills_the_device():
    assert folds.geometry(0, 132) == (1, 256)
    assert folds.geometry(16 * 1024, 132) == (1, 256)
    assert folds.geometry(16 * 1024 + 1, 132) == (2, 256)
    assert folds.geometry(1 << 40, 132) == (132 * 16, 256)


def test_a_text_is_complete_and_has_one_kernel():
    for op, dtype in folds.PAIRS:
        text = folds.source(op, dtype)
        assert "#include" not in text
        made = [line for line in text.splitlines() if line.startswith("FOLD_KERNEL(")]
        assert [f"fold_{each[12:-1].replace(', ', '_')}" for each in made] == [
            folds.kernel_name(op, dtype)
        ]
    assert folds.kernel_name("MAX", "bool") == "fold_lor_uint8"
    assert folds.kernel_name("SUM", "int32") == "fold_sum_uint32"
    assert folds.kernel_name("MIN", "int32") == "fold_min_int32"
    with pytest.raises(UnsupportedTypeError, match="no device kernel folds float32 by BAND"):
        folds.source("BAND", "float32")


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (folds.Pass(1, [], []), "0 sources"),
        (folds.Pass(1, [16] * 17, [False] * 17), "17 sources"),
        (folds.Pass(1, [16], [False], targets=[16] * 17), "17 targets"),
        (folds.Pass(1, [16, 32], [False]), "2 sources, 1 sides"),
    ],
)
def test_a_pass_that_is_too_large_is_refused(one, said):
    with pytest.raises(ArgumentError, match=said):
        folds.packed(one)
