"""The benchmark's data: inputs that differ by rank, element and buffer, and expected results.

The data repeats after a prime number of elements, so that the expected result is computed only for
one period, and blocks in wrong places are detected. Values are small integers, and so few ranks
have other values than 0 that sums are exact in every dtype, so results can be compared exactly. No
sum of integers overflows, either: Open MPI's own sums of 8 and 16 bits do not all wrap around then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from collectives.reductions import Reduction

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
    "SUM_REPRODUCIBLE": np.add,
}


def period(rank: int, size: int, number: int, dtype: DTypeLike, op: str | None) -> NDArray[Any]:
    """Return one period of the contribution of `rank` to buffer `number`. Local."""
    i = np.arange(PERIOD) + 13 * number
    # Each rank has its own order of the residues of the prime; it is unique for ranks below it.
    mixed = i * (rank % (PERIOD - 1) + 1) % PERIOD
    if op is None:
        # Fifth powers also permute the residues, and leave no runs of even or odd values.
        values = mixed**5 % PERIOD % 2 if np.dtype(dtype) == np.bool_ else mixed
    elif op == "PROD":  # only one rank has a factor other than 1; else the product would overflow
        values = np.where(i % size == rank, 1 + i % 3, 1)
    elif op in ("LAND", "BAND"):  # mostly set, so that results are not all zero
        values = np.where(mixed % 5 == 0, 2, 3)
        values = np.where((i + rank) % 11 == 0, 0, values)
    else:
        values = mixed % 3
        turns = -(-size // (_most(np.dtype(dtype)) // 2))
        if op in ("SUM", "AVG") and turns > 1:  # the sum of all ranks could be too large
            values = np.where((i + rank) % turns == 0, 1 + mixed % 2, 0)
    return values.astype(dtype)


def _most(dtype: np.dtype[Any]) -> int:
    """Return a number up to which a dtype represents all integers from 0 on."""
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).max)
    return {"float16": 2**11, "bfloat16": 2**8}.get(dtype.name, 2**24)


def filled(
    count: int, values: NDArray[Any], first: int = 0, empty: Callable[..., NDArray[Any]] = np.empty
) -> NDArray[Any]:
    """Return `count` elements of the repeated `values`, from element `first` on. Local."""
    out = empty(count, values.dtype)
    values = np.roll(values, -(first % PERIOD))
    whole = count // PERIOD
    out[: whole * PERIOD].reshape(whole, PERIOD)[:] = values
    out[whole * PERIOD :] = values[: count - whole * PERIOD]
    return out


def folded(
    sources: int, size: int, number: int, dtype: DTypeLike, op: Reduction | None
) -> NDArray[Any]:
    """Return one period of the fold of some ranks' contributions. Local."""
    ranks = [rank for rank in range(size) if sources >> rank & 1]
    name = None if op is None else op.name
    total = period(ranks[0], size, number, dtype, name)
    if op is None:
        return total
    for rank in ranks[1:]:
        total = FOLDS[op.name](total, period(rank, size, number, dtype, name)).astype(dtype)
    if op.average:
        # As in the library: the sum times the factor, rounded once.
        total = (total * total.dtype.type(1 / size)).astype(dtype)
    return total


def different(
    array: NDArray[Any], values: NDArray[Any], first: int = 0, tolerance: float = 0.0
) -> int:
    """Count the elements that are not the repeated `values`. Local."""
    values = np.roll(values, -(first % PERIOD))
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
    """Overwrite `array` with values that no collective of the benchmark returns. Local."""
    if array.dtype == np.bool_:
        np.logical_not(array, out=array)
    else:
        array.fill(111)
