"""Parameters of a program, which are changed: arrays of NumPy, and what other frameworks have.

No framework is imported: what a parameter is, its class says.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.arrays.frameworks import LABELS, framework_of
from collectives.errors import ArgumentError, BufferError, UnsupportedTypeError
from collectives.text.words import article, plain, shown

__all__ = ["assign", "check", "numbers_of", "values_of"]


def check(value: Any, name: str) -> None:
    """Raise an error unless a parameter can be changed. Local."""
    if isinstance(value, np.ndarray):
        if not value.flags.writeable:
            raise BufferError(f"{name} is read-only; pass a copy")
        return
    framework = framework_of(type(value))
    if framework == "torch" or _is_variable(value):
        return
    if framework is not None:
        raise ArgumentError(
            f"{name} is {article(LABELS[framework])}, which cannot be changed; pass an array of "
            f"NumPy with its values"
        )
    raise ArgumentError(
        f"{name} is {shown(value)}, and must be an array of NumPy, a tensor of torch, or a "
        f"variable of Keras or TensorFlow, which can be changed"
    )


def values_of(value: Any, name: str) -> NDArray[Any]:
    """Return a parameter or a gradient as an array of NumPy, which may share its memory. Local."""
    if isinstance(value, np.ndarray):
        return value
    try:
        if framework_of(type(value)) == "torch":
            return np.asarray(value.detach().cpu().numpy())
        return np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    except (TypeError, ValueError) as error:
        raise UnsupportedTypeError(
            f"{name} cannot be read as an array of NumPy ({plain(error)}); pass float32"
        ) from error


def numbers_of(value: Any, name: str) -> NDArray[Any]:
    """Return what is added to a parameter as an array of NumPy, which may share its memory."""
    array = values_of(value, name)
    if array.dtype.kind in "cOSUmM":  # NumPy would leave out imaginary parts, and has None be NaN
        raise UnsupportedTypeError(f"{name} has dtype {array.dtype}, and must have real numbers")
    return array


def assign(value: Any, array: NDArray[Any]) -> None:
    """Set a parameter to the values of an `array` of its shape. Local."""
    if isinstance(value, np.ndarray):
        value[...] = array
    elif framework_of(type(value)) == "torch":
        # A copy: torch warns of arrays that cannot be written.
        value.detach().copy_(sys.modules["torch"].from_numpy(array.copy()))
    else:
        value.assign(array)


def _is_variable(value: Any) -> bool:
    return hasattr(value, "assign") and hasattr(value, "numpy")
