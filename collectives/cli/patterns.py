"""The benchmark's data: inputs that differ by rank, element and buffer, and what must come out.

Inputs repeat after a prime number of elements, so that the expected result is computed once for
one period, and blocks that end in each other's places show. Values are small integers: sums are
exact in every dtype on any plausible number of ranks, so a result is right or wrong, never close.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from collectives.reductions import Reduction

__all__ = ["different", "expected", "inputs", "poison"]

PERIOD = 97

FOLDS: dict[str, Any] = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "LAND": np.logical_and,
    "LOR": np.logical_or,
    "LXOR": np.logical_xor,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
    "AVG": np.add,
}


def period(rank: int, size: int, number: int, dtype: DTypeLike, op: str) -> NDArray[Any]:
    """Return one period of the input of `rank` in buffer `number`. Local."""
    i = np.arange(PERIOD) + 13 * number
    if op == "PROD":  # a factor other than 1 from one rank only, or the product overflows
        values = np.where(i % size == rank, 1 + i % 3, 1)
    elif op in ("LAND", "BAND"):  # mostly set, or nothing is left
        values = np.where((i * 7 + rank) % 5 == 0, 2, 3)
        values = np.where((i + rank) % 11 == 0, 0, values)
    else:
        values = (i * i + 5 * rank * i + rank) % 3
    return values.astype(dtype)


def inputs(
    count: int, rank: int, size: int, number: int, dtype: DTypeLike, op: str
) -> NDArray[Any]:
    """Return the input of `rank` in buffer `number`. Local."""
    out = np.empty(count, dtype)
    values = period(rank, size, number, dtype, op)
    whole = count // PERIOD
    out[: whole * PERIOD].reshape(whole, PERIOD)[:] = values
    out[whole * PERIOD :] = values[: count - whole * PERIOD]
    return out


def expected(size: int, number: int, dtype: DTypeLike, op: Reduction) -> NDArray[Any]:
    """Return one period of the fold of all ranks' inputs. Local."""
    total = period(0, size, number, dtype, op.name)
    for rank in range(1, size):
        total = FOLDS[op.name](total, period(rank, size, number, dtype, op.name)).astype(dtype)
    if op.average:
        # As the library does it: the sum times the factor, rounded once.
        total = (total * total.dtype.type(1 / size)).astype(dtype)
    return total


def different(array: NDArray[Any], values: NDArray[Any], tolerance: float = 0.0) -> int:
    """Count the elements that are not the repeated `values`. Local.

    Parameters
    ----------
    array : ndarray
        What a collective left.
    values : ndarray
        One period of what it should have left.
    tolerance : float
        Relative error that is accepted: for averages, whose factor is rounded.
    """
    whole = len(array) // PERIOD
    parts = [
        (array[: whole * PERIOD].reshape(whole, PERIOD), values),
        (array[whole * PERIOD :], values[: len(array) - whole * PERIOD]),
    ]
    wrong = 0
    for got, wanted in parts:
        equal = got == wanted
        if tolerance:
            equal |= np.abs(got - wanted) <= tolerance * np.abs(wanted)
        wrong += int(equal.size - np.count_nonzero(equal))
    return wrong


def poison(array: NDArray[Any]) -> None:
    """Overwrite an array with what no collective of the benchmark leaves. Local."""
    if array.dtype == np.bool_:
        np.logical_not(array, out=array)
    else:
        array.fill(77)
