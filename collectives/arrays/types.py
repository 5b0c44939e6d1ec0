"""The types of arrays and operations in signatures, for type checkers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, Union

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer, TypeVar


class HasArrayInterface(Protocol):
    """An array of NumPy, or one that gives access to its memory by the same attribute."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class HasCudaArrayInterface(Protocol):
    """An array in the memory of a CUDA device."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class HasDlpack(Protocol):
    """An array that exports its memory by DLPack."""

    def __dlpack__(self, *args: Any, **options: Any) -> Any: ...


# Any array that calls take.
Array = Union[Buffer, HasArrayInterface, HasCudaArrayInterface, HasDlpack]
# A number of Python, which is an array without dimensions; the result is one of NumPy.
Number = complex
ArrayT = TypeVar("ArrayT", bound=Array, default=NDArray[Any])
DTypeT = TypeVar("DTypeT", bound=np.dtype[Any])  # of an array whose result has other axes
Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
Counts = Union[Sequence[int], NDArray[np.integer[Any]]]
ResultT_co = TypeVar("ResultT_co", covariant=True)


class Waits(Protocol[ResultT_co]):
    """The request that a nonblocking call returns."""

    def test(self) -> bool: ...
    def wait(self, timeout: float | None = ...) -> ResultT_co: ...


# fmt: off
OpName = Literal[
    "SUM", "PROD", "MIN", "MAX", "AVG", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR",
    "sum", "prod", "min", "max", "avg", "land", "lor", "lxor", "band", "bor", "bxor",
    "SUM_REPRODUCIBLE", "sum_reproducible", "MINLOC", "minloc", "MAXLOC", "maxloc",
]
# fmt: on
