"""The parameters of a model: arrays of any framework, read and written as arrays of NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.arrays.parameters import assign, changeable, like
from collectives.errors import ArgumentError, UnsupportedTypeError
from collectives.text.words import article


class Parameters:
    """The parameters that a program has passed."""

    def __init__(self, values: Iterable[Any]) -> None:
        if isinstance(values, Mapping) or hasattr(values, "__array__"):
            kind, parts = type(values).__name__, "list(parameters.values())"
            raise ArgumentError(
                f"parameters is {article(kind)}, and must be a list of arrays: pass "
                f"{parts if isinstance(values, Mapping) else '[parameters]'}"
            )
        try:
            self.values: list[Any] = list(values)
        except TypeError:
            raise ArgumentError(
                f"parameters is {article(type(values).__name__)}, and must be a list of arrays"
            ) from None
        if not self.values:
            raise ArgumentError("parameters is empty, and must be a list of arrays")
        arrays = []
        for k, value in enumerate(self.values):
            name = f"parameters[{k}]"
            arrays.append(changeable(value, name))
            if arrays[-1].dtype.kind != "f":
                raise UnsupportedTypeError(
                    f"{name} has dtype {arrays[-1].dtype}, and must have floating-point numbers; "
                    f"leave out arrays without a mean"
                )
        self.shapes: list[tuple[int, ...]] = [each.shape for each in arrays]
        self.dtypes: list[np.dtype[Any]] = [each.dtype for each in arrays]
        self._measure()

    def _measure(self) -> None:
        """Set the sizes and ends that follow from shapes and dtypes."""
        self.sizes: list[int] = [prod(each) for each in self.shapes]
        pairs = zip(self.sizes, self.dtypes, strict=True)
        self._ends = np.cumsum([size * dtype.itemsize for size, dtype in pairs])
        self.nbytes: int = int(self._ends[-1])

    def subset(self, places: Sequence[int]) -> Parameters:
        """Return some of the parameters, by their places. Local."""
        made = Parameters.__new__(Parameters)
        made.values = [self.values[k] for k in places]
        made.shapes = [self.shapes[k] for k in places]
        made.dtypes = [self.dtypes[k] for k in places]
        made._measure()
        return made

    def read(self) -> list[NDArray[Any]]:
        """Return copies of the values. Local."""
        return self.checked(self.values, "parameters")

    def write(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Set the values to those of `arrays`. Local."""
        for value, array in zip(self.values, arrays, strict=True):
            assign(value, array)

    def checked(self, values: Iterable[Any], name: str) -> list[NDArray[Any]]:
        """Return copies of arrays of any framework that have the shapes of the parameters."""
        listed = list(values)
        if len(listed) != len(self.shapes):
            raise ArgumentError(
                f"{name} has {len(listed)} arrays, and must have {len(self.shapes)}, as many as "
                f"the parameters"
            )
        shaped = zip(listed, self.shapes, strict=True)
        arrays = [like(value, f"{name}[{k}]", shape) for k, (value, shape) in enumerate(shaped)]
        return [
            np.array(array, dtype, order="C")
            for array, dtype in zip(arrays, self.dtypes, strict=True)
        ]

    def packed(self, arrays: Sequence[NDArray[Any]]) -> NDArray[np.uint8]:
        """Return the bytes of `arrays`, one after the other, in new memory. Local."""
        parts = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in arrays]
        return np.concatenate(parts)

    def unpacked(self, data: NDArray[np.uint8]) -> list[NDArray[Any]]:
        """Return the arrays whose bytes `packed` has returned as `data`, in new memory. Local."""
        parts = zip(np.split(data, self._ends[:-1]), self.dtypes, self.shapes, strict=True)
        return [part.copy().view(dtype).reshape(shape) for part, dtype, shape in parts]
