"""Parameters of a program, which are changed: arrays of NumPy and of other frameworks.

No framework is imported: the class of a parameter names it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.arrays.frameworks import LABELS, framework_of
from collectives.errors import ArgumentError, BufferError, UnsupportedTypeError
from collectives.text.words import article, plain, shown


def changeable(value: Any, name: str) -> NDArray[Any]:
    """Return a parameter as an array of NumPy, which may share its memory; raise an error unless it
    can be changed.
    """
    if isinstance(value, np.ndarray):
        if not value.flags.writeable:
            raise BufferError(f"{name} is read-only; pass a copy")
        return value
    framework = framework_of(type(value))
    if framework == "torch" or (hasattr(value, "assign") and hasattr(value, "numpy")):
        return _values(value, name)
    if framework is not None:
        raise ArgumentError(
            f"{name} is {article(LABELS[framework])}, which cannot be changed; pass an array of "
            f"NumPy with its values"
        )
    raise ArgumentError(
        f"{name} is {shown(value)}, and must be an array of NumPy, a tensor of torch, or a "
        f"variable of Keras or TensorFlow, which can be changed"
    )


def like(value: Any, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a value in the shape of a parameter, which is added to it or replaces it, as an array
    of NumPy, which may share its memory.
    """
    array = _values(value, name)
    if array.dtype.kind in "cOSUmM":  # NumPy would leave out imaginary parts, and has None be NaN
        raise UnsupportedTypeError(f"{name} has dtype {array.dtype}, and must have real numbers")
    if array.shape != shape:
        raise ArgumentError(
            f"{name} has shape {array.shape}, and must have {shape}, that of the parameter"
        )
    return array


def _values(value: Any, name: str) -> NDArray[Any]:
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


def assign(value: Any, array: NDArray[Any]) -> None:
    """Set a parameter to the values of an `array` of its shape. Local."""
    if isinstance(value, np.ndarray):
        value[...] = array
    elif framework_of(type(value)) == "torch":
        # A copy: torch warns of arrays that cannot be written.
        value.detach().copy_(sys.modules["torch"].from_numpy(array.copy()))
    else:
        value.assign(array)


def divided(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Return the places of arrays with some `sizes`, in their order, in parts of about as many
    elements. None is empty if there are enough arrays. Local.
    """
    total, before, last = max(1, sum(sizes)), 0, -1
    places: list[list[int]] = [[] for _ in range(parts)]
    for k, size in enumerate(sizes):
        wished = (before + size // 2) * parts // total
        needed = parts - (len(sizes) - k)  # so that the others fill the parts that are left
        last = min(max(wished, needed, last, 0), last + 1, parts - 1)
        places[last].append(k)
        before += size
    return places
