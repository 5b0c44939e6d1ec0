"""Any array as NumPy sees it: what the core does not recognise at a glance comes here.

The core reads contiguous NumPy arrays of its dtypes itself. Everything else that has the buffer
protocol is wrapped without a copy; what cannot be used is refused by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.errors import BufferError, UnsupportedTypeError

__all__ = ["DTYPES", "as_array", "contiguous", "dtype_name"]

INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = ("bool", *INTEGERS, *FLOATS, "complex64", "complex128")


def as_array(value: Any, name: str, writable: bool) -> NDArray[Any]:
    """Return a NumPy array over the memory of `value`. Local.

    Parameters
    ----------
    value : buffer
        A NumPy array, NumPy scalar, memoryview, bytearray, `array.array`, or anything else with
        the buffer protocol.
    name : str
        The argument's name, for the error.
    writable : bool
        Whether it will be written.

    Raises
    ------
    BufferError
        If it is not a buffer, or is read-only and would be written.
    """
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise BufferError(f"{name} is a masked array; pass {name}.filled(...) or {name}.data")
        return value.view(np.ndarray)
    if isinstance(value, np.generic) and not writable:
        return np.asarray(value)
    try:
        view = memoryview(value)
    except TypeError:
        remedy = "; pass np.asarray(...) of it" if isinstance(value, int | float | list) else ""
        raise BufferError(
            f"{name} is a {type(value).__name__}, which has no buffer{remedy}"
        ) from None
    if writable and view.readonly:
        raise BufferError(f"{name} is a read-only {type(value).__name__}, and would be written")
    try:
        return np.asarray(view)
    except (TypeError, ValueError) as error:
        raise UnsupportedTypeError(f"{name} has the format {view.format!r}: {error}") from None


def dtype_name(array: NDArray[Any], name: str) -> str:
    """Return the name of the dtype of `array` as the kernels know it; `name` is for errors. Local.

    Raises
    ------
    UnsupportedTypeError
        If no kernel knows it; the text lists those that they know.
    """
    dtype = array.dtype
    if not dtype.isnative:
        raise UnsupportedTypeError(
            f"{name} has the byte-swapped dtype {dtype.str!r}; "
            f"pass {name}.astype({name}.dtype.newbyteorder('='))"
        )
    if dtype.name not in DTYPES:
        raise UnsupportedTypeError(f"{name} has dtype {dtype}; supported are {', '.join(DTYPES)}")
    return dtype.name


def contiguous(array: NDArray[Any], name: str, writable: bool) -> NDArray[Any]:
    """Return `array`, or a packed copy of it where not `writable`; `name` is for errors. Local.

    Raises
    ------
    BufferError
        If it would be written, and is read-only, not aligned or not C-contiguous.
    """
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
