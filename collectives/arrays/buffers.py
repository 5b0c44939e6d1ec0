"""NumPy views of all arguments that the core does not handle itself.

The core handles contiguous NumPy arrays of its dtypes, and tensors that come through DLPack.
Everything else with the buffer protocol is wrapped here without a copy. An argument that cannot be
used raises an error with its name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from collectives.arrays import frameworks
from collectives.errors import ArgumentError, BufferError, UnsupportedTypeError
from collectives.text.words import article, plain

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "DTYPES",
    "DelayedOutput",
    "as_array",
    "contiguous",
    "copy_all",
    "dtype_name",
    "unsupported",
]

INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
FLOATS = ("float16", "bfloat16", "float32", "float64", "float128")
SUMMED = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
DTYPES = ("bool", *INTEGERS, *FLOATS, "complex64", "complex128")
INDICES = ("int32", "int64")  # of the index of a pair, for MINLOC and MAXLOC
NUMPY = (np.ndarray, np.generic)
NUMBERS = (bool, int, float, complex)
MOVED_BYTES = (1, 2, 4, 8, 16, 32)  # sizes of elements that may be moved without a kernel


def as_array(value: Any, name: str, writable: bool) -> NDArray[Any]:
    """Return a NumPy array over the memory of `value`. Local."""
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise BufferError(f"{name} is a masked array; pass {name}.filled(...) or {name}.data")
        return value.view(np.ndarray)
    if isinstance(value, np.generic) and not writable:
        return np.asarray(value)
    if type(value).__name__ == "InPlaceType":  # of mpi4py; it is a number and a buffer, too
        raise BufferError(f"{name} is MPI.IN_PLACE; pass the array itself as x and as out")
    if isinstance(value, NUMBERS) and not writable:
        return _scalar(value, name)
    try:
        view = memoryview(value)
    except TypeError:
        remedy = frameworks.remedy(value, name)
        raise BufferError(
            f"{name} is {article(type(value).__name__)}, which has no buffer"
            + (f"; {remedy}" if remedy else "")
        ) from None
    except Exception as error:  # it was released or closed, or cannot be shared
        raise BufferError(
            f"{name} is a {type(value).__name__} whose memory cannot be used: {plain(error)}"
        ) from error
    if writable and view.readonly:
        raise BufferError(f"{name} is a read-only {type(value).__name__}, and would be written")
    try:
        return np.asarray(view)
    except (TypeError, ValueError) as error:
        raise UnsupportedTypeError(f"{name} has the format {view.format!r}: {error}") from None


def _scalar(value: complex, name: str) -> NDArray[Any]:
    """Return a number of Python as an array. Its dtype depends on its type only, not on its value,
    so that it is the same on all ranks.
    """
    if type(value) is int:
        try:
            return np.array(value, np.int64)
        except OverflowError:
            raise ArgumentError(
                f"{name} is {value}, which is no int64; pass an array of another dtype"
            ) from None
    return np.asarray(value)


class DelayedOutput:
    """The place of a result: it is written once, when it is complete, by any thread."""

    out: Any
    write: Callable[[], object]
    kept: object

    def __init__(self, out: Any, write: Callable[[], object], kept: object = None) -> None:
        self.out, self.write, self.kept = out, write, kept
        self.lock: threading.Lock = threading.Lock()
        self.written: bool = False

    def __call__(self, result: object) -> Any:
        with self.lock:
            if not self.written:
                self.write()
                self.written = True
        return self.out


def copy_all(pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> None:
    """Copy the second of each pair of arrays into the first. Local."""
    for target, source in pairs:
        target[...] = source


def dtype_name(array: NDArray[Any], name: str, moves: bool = False) -> str:
    """Return the name of the dtype in the kernels. Local."""
    dtype = array.dtype
    if not dtype.isnative:
        raise UnsupportedTypeError(
            f"{name} has the byte-swapped dtype {dtype.str!r}; "
            f"pass {name}.astype({name}.dtype.newbyteorder('='))"
        )
    if dtype.name in DTYPES:
        return dtype.name
    number = dtype.kind in "biufc" or dtype.type.__module__ == "ml_dtypes"
    movable = number and dtype.itemsize in MOVED_BYTES
    if movable and moves:
        return dtype.name
    raise unsupported(name, str(dtype), movable, moves, _remedy(dtype, name, moves))


def summed(dtype: np.dtype[Any]) -> str | None:
    """Return the dtype of the numbers whose exact sums an array of this dtype has, as a result of
    `collectives.sum_local`, or None. Local.
    """
    names = dtype.names or ()
    has_sums = len(names) == 1 and names[0] in SUMMED and dtype[0].base == np.int64
    return names[0] if has_sums else None


def pair_of(dtype: np.dtype[Any]) -> tuple[str, bool, bool] | None:
    """Return the dtype of the value, whether the index has 64 bits, and whether the fields are
    aligned as in C and not one after the other, if a dtype is a pair; otherwise None. Local.
    """
    names = dtype.names or ()
    fields = [dtype[name].name for name in names]
    if (
        len(fields) != 2
        or not dtype.isnative
        or fields[0] not in DTYPES
        or fields[1] not in INDICES
    ):
        return None
    made = [(name, dtype[name]) for name in names]
    for aligned in (False, True):
        if dtype == np.dtype(made, align=aligned):
            return fields[0], fields[1] == INDICES[1], aligned
    return None


def pair_name(value: str, is_wide: bool, is_aligned: bool) -> str:
    """Return the name of a pair, which does not depend on the names of its fields. Local."""
    return f"{value},{INDICES[is_wide]}" + " aligned as in C" * is_aligned


def _remedy(dtype: np.dtype[Any], name: str, moves: bool) -> str:
    """Return the advice for an array of that dtype, or ""."""
    if dtype.kind in "mM":
        return f"pass {name}.view('int64')"
    if not moves and summed(dtype) is not None:
        return "reduce the result of sum_local with op=SUM_REPRODUCIBLE"
    if dtype.names is not None:
        return f"pass its fields one by one, {name}[{dtype.names[0]!r}] first"
    if dtype.kind in "SU" and moves:
        return f"pass {name}.view('uint8')"
    return ""


def unsupported(
    name: str, dtype: str, movable: bool, moves: bool, remedy: str = ""
) -> UnsupportedTypeError:
    """Return the error for a dtype that cannot be used, with a list of those that can. Local."""
    parts = [f"{name} has dtype {dtype}"]
    if movable and not moves:
        parts[0] += ", which can be moved from rank to rank but not folded"
    if remedy:
        parts.append(remedy)
    more = ", and any other number of 1, 2, 4, 8, 16 or 32 bytes" if moves else ""
    parts.append(f"supported are {', '.join(DTYPES)}{more}")
    return UnsupportedTypeError("; ".join(parts))


def contiguous(array: NDArray[Any], name: str, writable: bool) -> NDArray[Any]:
    """Return `array`, or a packed copy of it where not `writable`; `name` is for errors. Local."""
    if not writable:
        return np.require(np.array(array, order="C", copy=True), requirements=["C", "A"])
    if not array.flags.writeable:
        raise BufferError(f"{name} is read-only, and would be written")
    if not array.flags.aligned:
        raise BufferError(f"{name} is not aligned to its dtype {array.dtype}")
    raise BufferError(
        f"{name} is not C-contiguous (shape {array.shape}, strides {array.strides} bytes); "
        f"pass a contiguous array and copy the result"
    )
