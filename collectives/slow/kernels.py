"""Folds and scalings of NumPy arrays, with the bits of the kernels of the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.arrays import buffers
from collectives.arrays.buffers import DTYPES, FLOATS, INDICES, INTEGERS, SUMMED
from collectives.errors import ArgumentError, UnsupportedTypeError
from collectives.text.words import shown, spelled_here

Array = NDArray[Any]
Fold = Callable[[Array, Array], Array]

SUM, PROD, MIN, MAX, LAND, LOR, LXOR, BAND, BOR, BXOR, MINLOC, MAXLOC = range(12)
NOPS = 10  # operations on numbers
SCALED = (*SUMMED, "float128")
VALUES = {*INTEGERS, "float32", "float64", "float128"}  # of a pair
PADDING = 16 - 6  # the first byte of a float128 of x86-64 that is not part of the number

_OF_BOOL = {
    SUM: np.logical_or,
    PROD: np.logical_and,
    MIN: np.logical_and,
    MAX: np.logical_or,
    LAND: np.logical_and,
    LOR: np.logical_or,
    LXOR: np.logical_xor,
    BAND: np.logical_and,
    BOR: np.logical_or,
    BXOR: np.logical_xor,
}
_OF_INTEGERS = {
    SUM: np.add,
    PROD: np.multiply,
    MIN: np.minimum,
    MAX: np.maximum,
    LAND: np.logical_and,
    LOR: np.logical_or,
    LXOR: np.logical_xor,
    BAND: np.bitwise_and,
    BOR: np.bitwise_or,
    BXOR: np.bitwise_xor,
}

# The reductions of the library, by name; `collectives.reductions` makes them.
built_in: dict[str, Reduction] = {}


class Reduction:
    """A reduction operation, such as `collectives.SUM`; `collectives.reduction` makes others."""

    name: str
    code: int
    average: bool
    function: Any
    commutative: bool
    exact: bool
    said: str

    def __init__(
        self,
        name: str,
        code: int,
        average: bool = False,
        function: Any = None,
        commutative: bool = True,
        exact: bool = False,
        said: str | None = None,
    ) -> None:
        self.name, self.code, self.average, self.function = name, code, average, function
        self.commutative, self.exact, self.said = commutative, exact, said or name
        if function is not None:
            self.said = name.encode(errors="backslashreplace").decode()
        elif said is None:
            built_in[name] = self

    def __repr__(self) -> str:
        return f"collectives.{self.name}" if self.function is None else f"<Reduction {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.function is None:
            return reduction_named, (self.name,)
        return Reduction, (self.name, self.code, False, self.function, self.commutative)

    def dtypes(self) -> list[str]:
        """Return the names of the dtypes that it can fold. Local."""
        if self.function is not None:
            return list(DTYPES)
        if self.code >= NOPS:
            return [f"{name},{index}" for name in DTYPES if name in VALUES for index in INDICES]
        return [
            name
            for name in DTYPES
            if is_defined(self.code, name)
            and (not self.average or name in SCALED)
            and not (self.exact and name == "float128")
        ]


def reduction_named(name: str) -> Reduction:
    """Return the reduction of a name, for pickles. Local."""
    return built_in[name]


def reduction_called(op: Any) -> Reduction:
    """Return the reduction that a call has passed, or that of a name, in any case. Local."""
    if type(op) is Reduction:
        return op
    found = built_in.get(op.upper()) if isinstance(op, str) else None
    if found is None:
        same = spelled_here(op, built_in)
        raise ArgumentError(
            f"op is {shown(op)}, and must be one of collectives.{', '.join(built_in)}, its name, "
            f"or made by collectives.reduction" + (f"; pass op=collectives.{same}" if same else "")
        )
    return found


def is_defined(code: int, dtype: str) -> bool:
    """Return whether an operation on numbers is defined on a dtype. Local."""
    if dtype == "bool" or dtype in INTEGERS:
        return True
    return code <= (MAX if dtype in FLOATS else PROD) and dtype in DTYPES


def undefined(reduction: Reduction, dtype: str) -> UnsupportedTypeError:
    """Return the error of an operation on a dtype that it does not fold. Local."""
    known = ", ".join(reduction.dtypes())
    if reduction.code >= NOPS:
        known = (
            "pairs of a value, which is an integer or a float, and an index, which is int32 or "
            "int64, such as numpy.dtype('float64,int64')"
        )
    return UnsupportedTypeError(f"{reduction.name} is not defined on {dtype}; it is on {known}")


def kernel_of(code: int, dtype: str, of: np.dtype[Any]) -> Fold | None:
    """Return the function ``left op right`` of an operation on a dtype, or None. Local."""
    if code >= NOPS:
        pair = buffers.pair_of(of)
        is_known = pair is not None and pair[0] in VALUES
        return (lambda a, b: _fold_pairs(code == MAXLOC, a, b)) if is_known else None
    if not is_defined(code, dtype):
        return None
    return lambda a, b: _fold(code, dtype, a, b)


def _fold(code: int, dtype: str, a: Array, b: Array) -> Array:
    if dtype == "bool":
        return np.asarray(_OF_BOOL[code](a, b))
    with np.errstate(all="ignore"):
        if dtype in INTEGERS:
            return np.asarray(_OF_INTEGERS[code](a, b)).astype(a.dtype, copy=False)
        if dtype.startswith("complex"):
            return _fold_complex(code, a, b)
        if dtype in ("float16", "bfloat16"):
            return _rounded(_fold_floats(code, _widened(a), _widened(b)), a.dtype)
        return _fold_floats(code, a, b)


def _fold_floats(code: int, a: Array, b: Array) -> Array:
    """Fold floats; -0.0 is less than 0.0, and every NaN of the result is NumPy's."""
    if code in (SUM, PROD):
        return _numbers(np.asarray(np.add(a, b) if code == SUM else np.multiply(a, b)))
    made = np.asarray(np.minimum(a, b) if code == MIN else np.maximum(a, b))
    first = np.signbit(a) == (code == MIN)
    return _numbers(np.where(a == b, np.where(first, a, b), made))


def _numbers(made: Array) -> Array:
    made[np.isnan(made)] = np.nan
    if made.dtype.itemsize == 16 and np.finfo(made.dtype).nmant == 63:
        made.view(np.uint8).reshape(-1, 16)[:, PADDING:] = 0
    return made


def _fold_complex(code: int, a: Array, b: Array) -> Array:
    made = np.empty_like(a)
    if code == SUM:
        made.real, made.imag = _numbers(a.real + b.real), _numbers(a.imag + b.imag)
    else:  # the textbook's product
        made.real = _numbers(a.real * b.real - a.imag * b.imag)
        made.imag = _numbers(a.real * b.imag + a.imag * b.real)
    return made


def _widened(half: Array) -> Array:
    """Return halves as float32."""
    if half.dtype.kind == "f":
        return half.astype(np.float32)
    return (half.view(np.uint16).astype(np.uint32) << 16).view(np.float32)  # bfloat16


def _rounded(wide: Array, dtype: np.dtype[Any]) -> Array:
    """Return float32 as halves, rounded to nearest even."""
    if dtype.kind == "f":
        return wide.astype(dtype)
    bits = wide.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(dtype)


def _fold_pairs(is_max: bool, a: Array, b: Array) -> Array:
    """Fold pairs of a value and an index: MINLOC or MAXLOC."""
    value, place = a.dtype.names or ("", "")
    v, w, i, j = a[value], b[value], a[place], b[place]
    wins = np.where(v == w, i < j, v > w if is_max else v < w)
    if v.dtype.kind == "f":
        wins = np.where((v == w) & (i == j), np.signbit(v) != is_max, wins)
        wins = np.where(np.isnan(v) & np.isnan(w), i < j, np.where(np.isnan(v), True, wins))
        wins &= ~(np.isnan(w) & ~np.isnan(v))
    made = np.zeros_like(a)  # gaps between the fields are zeros
    best = np.where(wins, v, w)
    made[value] = _numbers(best) if v.dtype.kind == "f" else best
    made[place] = np.where(wins, i, j)
    return made


def scaled(array: Array, dtype: str, factor: Any) -> Array:
    """Return an array times a factor, rounded once. Local."""
    with np.errstate(all="ignore"):
        if dtype in ("float16", "bfloat16"):
            return _rounded(_numbers(_widened(array) * np.float32(factor)), array.dtype)
        if dtype == "float128":
            return _numbers(array * np.longdouble(factor))
        parts = array.view(array.real.dtype)
        made = _numbers((parts.astype(np.float64) * float(factor)).astype(parts.dtype))
        return made.view(array.dtype)
