"""The DLPack consumer of the core, on tensors made by hand."""

import array
import ctypes
import gc

import ml_dtypes
import numpy as np
import pytest
from exporters import (
    BFLOAT,
    BOOL,
    COMPLEX,
    CUDA,
    CUDA_HOST,
    DELETER,
    DESTRUCTOR,
    FLOAT,
    INT,
    IS_COPIED,
    OPAQUE,
    READ_ONLY,
    ROCM_HOST,
    UINT,
    Exporter,
    OldExporter,
    Table,
    capsule_of,
    name_of,
)

from collectives import _core, errors, reductions

EXPORTERS = {
    "versioned": Exporter,
    "unversioned": lambda x, **changes: Exporter(x, versioned=False, **changes),
    "before versions": OldExporter,
    "C functions": lambda x, **changes: Table().new_class()(x, **changes),
}


@pytest.fixture(params=EXPORTERS)
def exporter(request):
    return EXPORTERS[request.param]


def total(left, right):
    """Return the sum of two arrays by a kernel."""
    out = np.empty(5)
    _core.fold(reductions.SUM.code, out, left, right)
    return out


def numbers():
    return np.arange(5.0)


# -- memory and its life ------------------------------------------------------------------------


def test_memory_is_shared_and_given_back_once(exporter):
    x = numbers()
    exported = exporter(x)
    address, count, itemsize, dtype, kept = _core.examine(exported)
    assert (address, count, itemsize, dtype) == (x.ctypes.data, 5, 8, "float64")
    gc.collect()
    assert exported.deleted == 0, "it was given back while it was held"
    del kept
    assert exported.deleted == 1
    for capsule in exported.capsules:
        assert name_of(capsule).startswith("used_dltensor")


def test_two_uses_are_two_exports(exporter):
    exported = exporter(numbers())
    np.testing.assert_array_equal(total(exported, exported), 2 * numbers())
    assert exported.settled()
    assert exported.deleted == 2


def test_it_is_written_in_place(exporter):
    out = np.zeros(5)
    exported = exporter(out)
    _core.fold(reductions.SUM.code, exported, numbers(), numbers())
    np.testing.assert_array_equal(out, 2 * numbers())
    assert exported.settled()


def test_no_deleter(exporter):
    exported = exporter(numbers(), deleter=DELETER())
    np.testing.assert_array_equal(total(exported, numbers()), 2 * numbers())


def test_names_of_capsules_after_use():
    for exported, used in (
        (Exporter(numbers()), "used_dltensor_versioned"),
        (OldExporter(numbers()), "used_dltensor"),
    ):
        _core.examine(exported)
        assert [name_of(capsule) for capsule in exported.capsules] == [used]


def test_what_numpy_exports():
    class Wrapped:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **options):
            return self.x.__dlpack__(**options)

    x = numbers()
    assert _core.examine(Wrapped(x))[0] == x.ctypes.data
    x.flags.writeable = False
    assert _core.examine(Wrapped(x))[0] == x.ctypes.data
    with pytest.raises(errors.BufferError, match="out is a read-only Wrapped, and would be writ"):
        _core.examine(Wrapped(x), "out", True)


def test_an_array_goes_before_its_exports():
    """NumPy's own classes export DLPack too, and not each of their dtypes."""

    class Own(np.ndarray):
        def __dlpack__(self, **options):
            raise AssertionError

    assert _core.examine(np.zeros(3, ml_dtypes.bfloat16).view(Own))[3] == "bfloat16"
    assert _core.examine(array.array("i", [1, 2]))[3] == "int32"


# -- layout ----------------------------------------------------------------------------------------


def test_byte_offset(exporter):
    x = np.arange(8.0)
    exported = exporter(x, shape=(5,), strides=(1,), byte_offset=24)
    assert _core.examine(exported)[0] == x.ctypes.data + 24
    np.testing.assert_array_equal(total(exported, exported), 2 * x[3:])


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((5,), None),
        ((5, 1), (1, 99)),
        ((1, 5), (-3, 1)),
        ((5, 1, 1), (1, 5, 5)),
        ((2, 3), (3, 1)),
        ((), ()),
        ((0, 3), (3, 1)),
        ((3, 0), (77, 99)),
    ],
)
def test_used_in_place(exporter, shape, strides):
    x = np.arange(6.0)
    exported = exporter(x, shape=shape, strides=strides)
    address, count, *_, kept = _core.examine(exported, "out", True)
    assert count == np.prod(shape, dtype=int)
    assert count == 0 or address == x.ctypes.data
    del kept
    assert exported.settled()


@pytest.mark.parametrize("kind", ["every other", "transposed", "repeated", "backwards"])
def test_gaps_are_packed_for_reading(exporter, kind):
    base = np.arange(40.0).reshape(4, 10)
    x = {
        "every other": base[:, ::2],
        "transposed": base.T,
        "repeated": np.broadcast_to(base[0], (3, 10)),
        "backwards": base[::-1],
    }[kind]
    exported = exporter(x)
    out = np.empty(x.shape)
    _core.fold(reductions.MAX.code, out, exported, exported)
    np.testing.assert_array_equal(out, x)
    assert exported.settled()
    with pytest.raises(errors.BufferError, match=r"out is not C-contiguous \(shape .*, strides"):
        _core.examine(exported, "out", True)
    assert exported.settled()


def test_the_refusal_of_gaps_has_bytes():
    with pytest.raises(errors.BufferError) as caught:
        _core.examine(Exporter(np.zeros(10)[::2]), "out", True)
    assert str(caught.value) == (
        "out is not C-contiguous (shape (5,), strides (16,) bytes); "
        "pass a contiguous array and copy the result"
    )


def test_misaligned(exporter):
    raw = np.frombuffer(b"!" + numbers().tobytes(), np.uint8)
    x = raw[1:].view(np.float64)
    exported = exporter(x)
    np.testing.assert_array_equal(total(exported, exported), 2 * numbers())
    with pytest.raises(errors.BufferError, match="out is not aligned to its dtype float64"):
        _core.examine(exported, "out", True)
    assert exported.settled()


def test_packed_bits_of_any_size():
    for dtype in (np.uint8, np.uint16, np.float32, np.float64, np.complex128, np.longdouble):
        x = np.arange(12).astype(dtype).reshape(3, 4).T
        exported = Exporter(x)
        address, count, itemsize, _, kept = _core.examine(exported, moves=True)
        got = np.ctypeslib.as_array(
            (np.ctypeslib.ctypes.c_uint8 * (count * itemsize)).from_address(address)
        )
        assert got.tobytes() == x.tobytes(), dtype
        del kept
        assert exported.settled()


# -- dtypes ----------------------------------------------------------------------------------------

KNOWN = {
    "bool": (BOOL, 8),
    **{f"int{bits}": (INT, bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (UINT, bits) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (FLOAT, bits) for bits in (16, 32, 64)},
    "bfloat16": (BFLOAT, 16),
    "complex64": (COMPLEX, 64),
    "complex128": (COMPLEX, 128),
}
FLOAT8 = (
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
MOVED = {
    **{name: (7 + k, 8) for k, name in enumerate(FLOAT8)},
    "float8": (FLOAT, 8),
    "binary128": (FLOAT, 128),
    "complex32": (COMPLEX, 32),
    "int128": (INT, 128),
    "DLPack code 99, 16 bits": (99, 16),
}
NEVER = {
    "int4": (INT, 4, 1),
    "float4_e2m1fn in 2 lanes": (17, 4, 2),
    "float6_e2m3fn": (15, 6, 1),
    "float32 in 4 lanes": (FLOAT, 32, 4),
    "opaque64": (OPAQUE, 64, 1),
    "float24": (FLOAT, 24, 1),
}
SUPPORTED = "supported are bool, int8, .*complex128"


def described(code, bits, lanes=1):
    return Exporter(
        np.zeros(16, np.uint8), code=code, bits=bits, lanes=lanes, shape=(1,), strides=(1,)
    )


def test_every_dtype_of_the_kernels():
    assert set(KNOWN) == set(_core.DTYPES) - {"float128"}  # that is C's long double
    for name, (code, bits) in KNOWN.items():
        assert _core.examine(described(code, bits))[1:4] == (1, bits // 8, name)


@pytest.mark.parametrize("name", MOVED)
def test_dtypes_that_are_only_moved(name):
    exported = described(*MOVED[name])
    assert _core.examine(exported, moves=True)[2:4] == (MOVED[name][1] // 8, name)
    assert exported.settled()
    text = f"x has dtype {name}, which can be moved from rank to rank but not folded; {SUPPORTED}$"
    with pytest.raises(errors.UnsupportedTypeError, match=text):
        _core.examine(exported)
    assert exported.settled()


@pytest.mark.parametrize("name", NEVER)
def test_dtypes_that_are_refused(name):
    exported = described(*NEVER[name])
    for moves, end in (
        (False, "$"),
        (True, ", and any other number of 1, 2, 4, 8, 16 or 32 bytes$"),
    ):
        with pytest.raises(
            errors.UnsupportedTypeError, match=f"x has dtype {name}; {SUPPORTED}{end}"
        ):
            _core.examine(exported, moves=moves)
        assert exported.settled()


def test_a_dtype_has_one_name_in_all_libraries():
    for name, (code, bits) in MOVED.items():
        kind = getattr(ml_dtypes, name, None)
        if kind is None:
            continue
        assert _core.examine(np.zeros(1, kind), moves=True)[3] == name
        assert _core.examine(described(code, bits), moves=True)[3] == name
    for kind in (np.longdouble, np.clongdouble):
        assert _core.examine(np.zeros(1, kind), moves=True)[3] == np.dtype(kind).name


def test_a_long_complex_is_moved_only():
    text = f"complex256, which can be moved from rank to rank but not folded; {SUPPORTED}$"
    with pytest.raises(errors.UnsupportedTypeError, match=text):
        _core.examine(np.zeros(2, np.clongdouble))


NUMPY_REFUSED = {
    "structured": (np.zeros(2, "i4,f4"), r"pass its fields one by one, x\['f0'\] first; supp"),
    "object": (np.array([None]), "x has dtype object; supported are"),
    "datetime": (np.array(["2020"], "M8[s]"), r"datetime64\[s\]; pass x.view\('int64'\); supp"),
    "timedelta": (np.array([3], "m8[s]"), r"timedelta64\[s\]; pass x.view\('int64'\); supp"),
    "text": (np.array(["abcd"]), "<U4; .*supported are"),
    "bytes": (np.array([b"abcd"]), r"\|S4; .*supported are"),
    "void": (np.zeros(2, "V8"), r"\|V8; supported are"),
}


@pytest.mark.parametrize("kind", NUMPY_REFUSED)
def test_numpy_dtypes_that_are_refused(kind):
    x, text = NUMPY_REFUSED[kind]
    for moves in (False, True):
        with pytest.raises(errors.UnsupportedTypeError, match=text):
            _core.examine(x, moves=moves)


def test_text_is_moved_as_bytes():
    with pytest.raises(errors.UnsupportedTypeError, match=r"pass x.view\('uint8'\)"):
        _core.examine(np.array([b"abcd"]), moves=True)


# -- refusals --------------------------------------------------------------------------------------

REFUSED = {
    "cuda": ({"device_type": CUDA, "device_id": 3}, "x is on cuda:3, and must be in host memory"),
    "rocm": ({"device_type": 10}, "x is on rocm:0, and must be in host"),
    "unknown device": ({"device_type": 77, "device_id": 1}, "x is on DLPack device 77:1, and must"),
    "no memory": ({"data": None}, r"memory cannot be shared \(it has no memory\)"),
    "dimensions": ({"ndim": 65}, "x has 65 dimensions, and must have at most 64"),
    "less than none": ({"ndim": -1}, "x has -1 dimensions"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(exporter, kind):
    changes, text = REFUSED[kind]
    exported = exporter(numbers(), **changes)
    with pytest.raises(errors.BufferError, match=text):
        _core.examine(exported)
    assert exported.settled()
    assert exported.deleted == 1


@pytest.mark.parametrize("device", [CUDA_HOST, ROCM_HOST])
def test_pinned_memory_is_host_memory(exporter, device):
    assert _core.examine(exporter(numbers(), device_type=device))[1] == 5


@pytest.mark.parametrize("kind", ["versioned", "C functions"])
def test_flags_of_an_output(kind):
    for flags, text in (
        (READ_ONLY, "out is a read-only .*, and would be written"),
        (IS_COPIED, "out is an? .* that exports a copy of its memory"),
    ):
        exported = EXPORTERS[kind](numbers(), flags=flags)
        assert _core.examine(exported)[1] == 5
        with pytest.raises(errors.BufferError, match=text):
            _core.examine(exported, "out", True)
        assert exported.settled()


def test_a_later_major_version():
    exported = Exporter(numbers(), major=2)
    with pytest.raises(errors.BufferError, match=r"x comes by DLPack 2.3, and must by version 1"):
        _core.examine(exported)
    assert exported.settled()


def test_no_capsule():
    class Wrong:
        def __init__(self, result):
            self.result = result

        def __dlpack__(self, **options):
            return self.result

    used = Exporter(numbers())
    capsule = used.__dlpack__(max_version=(1, 0))
    _core.examine(Wrong(capsule))
    for result in (None, capsule, capsule_of(1, b"something")):
        with pytest.raises(errors.BufferError, match="must return a DLPack capsule"):
            _core.examine(Wrong(result))
    assert used.deleted == 1


@pytest.mark.parametrize("case", ["name", "version", "device", "layout"])
def test_a_capsule_whose_end_runs_python(case):
    """The refusal comes through, and the capsule has ended once."""
    ended = []

    def end(address):
        ended.append(len([address]))  # whatever Python does

    changes = {
        "version": {"major": 2},
        "device": {"device_type": 2},
        "layout": {"strides": (2,), "shape": (2,)},
    }
    exported = Exporter(numbers(), **changes.get(case, {}))
    destructor = DESTRUCTOR(end)

    class Short:
        def __dlpack__(self, **options):
            name = b"something" if case == "name" else b"dltensor_versioned"
            address = ctypes.addressof(exported.managed()) if case != "name" else 1
            return capsule_of(address, name, destructor)

    with pytest.raises(errors.BufferError, match=r"^x( |\.__dlpack__)"):
        _core.examine(Short(), "x", case == "layout")
    assert ended == [1]
    assert exported.settled()


def test_what_an_exporter_raises():
    class Failing:
        def __init__(self, error):
            self.error = error

        def __dlpack__(self, **options):
            raise self.error

    text = r"x is a Failing whose memory cannot be shared \(not today\)"
    for error in (
        RuntimeError("not today\nat all"),
        TypeError("not today"),
        BufferError("not today"),
    ):
        with pytest.raises(errors.BufferError, match=text) as caught:
            _core.examine(Failing(error))
        assert caught.value.__cause__ is error
    with pytest.raises(MemoryError):
        _core.examine(Failing(MemoryError()))


# -- the C functions -------------------------------------------------------------------------------


def test_a_class_is_asked_for_its_functions_once():
    table = Table()
    kind = table.new_class()
    for _ in range(3):
        _core.examine(kind(numbers()))
    assert table.exported == 3


def test_a_subclass_has_to_offer_the_functions_itself():
    table = Table()

    class Sub(table.new_class()):
        def __dlpack__(self, **options):
            return Exporter.__dlpack__(self, **options)

    exported = Sub(numbers())
    _core.examine(exported)
    assert table.exported == 0
    assert len(exported.capsules) == 1


def test_an_older_table_behind_a_newer_one():
    old = Table()
    kind = old.new_class()
    new = Table(major=2, previous=old)
    exported = new.new_class()(numbers())
    assert isinstance(exported, kind.__mro__[1])
    _core.examine(exported)
    assert (old.exported, new.exported) == (1, 0)


def test_a_table_that_is_too_new():
    table = Table(major=2)

    class Fallback(table.new_class()):
        __dlpack_c_exchange_api__ = table.kind.__dlpack_c_exchange_api__

        def __dlpack__(self, **options):
            return Exporter.__dlpack__(self, **options)

    exported = Fallback(numbers())
    _core.examine(exported)
    assert (table.exported, len(exported.capsules)) == (0, 1)


def test_functions_that_fail_without_an_error():
    table = Table()
    table.error = True
    text = r"x is a Tabled whose memory cannot be shared \(its library exported nothing\)"
    with pytest.raises(errors.BufferError, match=text):
        _core.examine(table.new_class()(numbers()))
