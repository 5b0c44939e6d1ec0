"""The fold kernels of devices, as data: source text, names, parameters and launch geometry.

`kernels/fold.cu` has the kernels. There is one for each kind of fold, and `source` returns the text
that compiles to it. A kernel makes one pass over memory: it folds up to `MOST_PLACES` sources into
a result, a publication and targets, with the bits of the host's kernels. A caller with more sources
makes several passes.

The text is CUDA C++17 without includes, for NVRTC as well as for nvcc. It gives the same bits
whether or not the compiler may contract multiplications and additions, or flush subnormal numbers
to zero (``--ftz=true``, which CuPy adds to the options of every kernel).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from collectives.arrays.buffers import DTYPES, INTEGERS
from collectives.errors import ArgumentError, UnsupportedTypeError

SOURCES = Path(__file__).with_name("kernels")

MOST_PLACES = 16  # FOLD_PLACES: most sources, most targets
THREADS = 256  # FOLD_THREADS

# A thread loads this much of each source at once: FOLD_VECTORS of FOLD_VECTOR bytes.
_THREAD_BYTES = 4 * 16
# Blocks for each multiprocessor. FOLD_RESIDENT of them run at a time; each of the others starts
# where one has ended, so that all multiprocessors end at about the same time.
_BLOCKS = 16

_HALVES = ("float16", "bfloat16")
_COMPLEX = ("complex64", "complex128")
_FLOATS = (*_HALVES, "float32", "float64")
_ORDERED = ("MIN", "MAX")
_LOGICAL = ("LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR")

SCALED = (*_FLOATS, *_COMPLEX)

# The operations on bool, where any byte but 0 is true.
_OF_BOOL = {"SUM": "LOR", "PROD": "LAND", "MIN": "LAND", "MAX": "LOR"}
_OF_BOOL |= {"BAND": "LAND", "BOR": "LOR", "BXOR": "LXOR"}


def _dtypes(op: str) -> tuple[str, ...]:
    """Return the dtypes of an operation, in the order of the host's table."""
    of_floats = () if op in _LOGICAL else _FLOATS if op in _ORDERED else SCALED
    return tuple(name for name in DTYPES if name in ("bool", *INTEGERS, *of_floats))


PAIRS = tuple((op, dtype) for op in ("SUM", "PROD", *_ORDERED, *_LOGICAL) for dtype in _dtypes(op))


def kernel_name(op: str, dtype: str) -> str:
    """Return the name of the kernel that folds a dtype. Local.

    Several pairs share a kernel, as on the host: signed and unsigned integers where the bits are
    the same, and bool with uint8.
    """
    return f"fold_{'_'.join(_kind(op, dtype))}"


def _kind(op: str, dtype: str) -> tuple[str, str]:
    """Return the names of the operation and the element in the sources."""
    if (op, dtype) not in PAIRS:
        raise UnsupportedTypeError(f"no device kernel folds {dtype} by {op}")
    if dtype == "bool":
        return _OF_BOOL.get(op, op).lower(), "uint8"
    if dtype in INTEGERS and op not in _ORDERED:
        dtype = f"u{dtype.removeprefix('u')}"
    return op.lower(), dtype


def source(op: str, dtype: str) -> str:
    """Return the complete text of a kernel, without includes. Local."""
    operation, element = _kind(op, dtype)
    return f"{_text('fold.cu', set())}\nFOLD_KERNEL({operation}, {element})\n"


def _text(name: str, seen: set[str]) -> str:
    """Return a file with the files that it includes, each once."""
    seen.add(name)
    lines = []
    for number, line in enumerate((SOURCES / name).read_text(encoding="utf-8").splitlines(), 1):
        included = re.match(r'#include "(.*)"', line)
        if included is None:
            lines.append(line)
        elif included[1] not in seen:
            lines += [_text(included[1], seen), f'#line {number + 1} "{name}"']
    return "\n".join([f'#line 1 "{name}"', *lines])


class Geometry(NamedTuple):
    """The number of blocks to launch, and of the threads of each."""

    blocks: int
    threads: int


def geometry(nbytes: int, multiprocessors: int) -> Geometry:
    """Return the geometry of a launch. Local.

    Any other number of blocks gives the same result, and so does any number of threads up to
    `THREADS`.
    """
    tiles = -(-nbytes // (THREADS * _THREAD_BYTES))
    return Geometry(max(1, min(tiles, multiprocessors * _BLOCKS)), THREADS)


# The bytes of `struct fold_pass`, in its order: the sources, dst, publication, the targets, count,
# prescale, postscale, is_left, is_prescaled, nsources, ntargets, is_postscaled, and four bytes that
# are not used.
PARAMETERS = struct.Struct(f"={MOST_PLACES}Q2Q{MOST_PLACES}QQ2d2I3i4x")


class Pass(NamedTuple):
    """One launch: addresses on the device, and factors of `scale_factor`."""

    elements: int  # of each place
    sources: Sequence[int]  # 1 to `MOST_PLACES` operands; a single one is copied
    is_left: Sequence[bool]  # whether each is left of the earlier folds
    dst: int = 0  # the address of the result, or 0
    publication: int = 0  # the address of the result before it is scaled, or 0
    targets: Sequence[int] = ()  # up to `MOST_PLACES` other places for the result in `dst`
    is_prescaled: Sequence[bool] = ()  # whether each source is scaled before; none if it is empty
    prescale: float = 1.0
    # The factor of `dst` and of the targets; None does not scale them. A factor of 1.0 differs from
    # None: it makes every NaN `numpy.nan`, as on the host.
    postscale: float | None = None


def packed(one: Pass) -> bytes:
    """Return the one parameter of a kernel, which is passed by value. Local."""
    if not 1 <= len(one.sources) <= MOST_PLACES or len(one.targets) > MOST_PLACES:
        raise ArgumentError(
            f"a pass has {len(one.sources)} sources and {len(one.targets)} targets; it takes 1 to "
            f"{MOST_PLACES} sources and up to {MOST_PLACES} targets"
        )
    if len(one.is_left) != len(one.sources) or len(one.is_prescaled) > len(one.sources):
        raise ArgumentError(
            f"a pass has {len(one.sources)} sources, {len(one.is_left)} sides and "
            f"{len(one.is_prescaled)} that are scaled; give a side for each source"
        )
    return PARAMETERS.pack(
        *_filled(one.sources),
        one.dst,
        one.publication,
        *_filled(one.targets),
        one.elements,
        one.prescale,
        1.0 if one.postscale is None else one.postscale,
        _mask(one.is_left),
        _mask(one.is_prescaled),
        len(one.sources),
        len(one.targets),
        one.postscale is not None,
    )


def _filled(places: Sequence[int]) -> list[int]:
    return [*places, *[0] * (MOST_PLACES - len(places))]


def _mask(flags: Sequence[bool]) -> int:
    return sum(bool(flag) << k for k, flag in enumerate(flags))


def scale_factor(dtype: str, factor: float, size: int = 1) -> float:
    """Return the factor that a kernel multiplies with, rounded as on the host. Local."""
    if dtype not in SCALED:
        raise UnsupportedTypeError(f"prescale and postscale need a floating dtype, not {dtype}")
    exact = np.longdouble(factor) / size
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(exact) if dtype in _HALVES else np.float64(exact))
