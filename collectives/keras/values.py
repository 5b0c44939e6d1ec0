"""Collectives of values in host memory: numbers, arrays, and tensors of Keras's backend."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from collectives.horovod.arrays import (
    allgather_async,
    allreduce_async,
    broadcast_async,
    reducescatter_async,
)
from collectives.horovod.ops import Average, ReduceOp, chosen
from collectives.keras.compression import Compression

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Any = Compression.none,
) -> NDArray[Any]:
    """Reduce the values of all ranks; return the result on all ranks.
    Collective.

    Parameters
    ----------
    value : number, array or tensor
        Of the same shape and dtype on all ranks. It is not changed.
    name : str, optional
        What the call is named. Ranks may make calls with names in different orders.
    average : bool, optional
        Deprecated: pass `op`.
    prescale_factor, postscale_factor : float
        Factors of the values, and of the result.
    op : ReduceOp, optional
        ``Average``, the default, ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``.
    compression : Compressor
        How the value is sent.

    Returns
    -------
    ndarray

    Raises
    ------
    HorovodArgumentError
        If an argument is wrong; nothing was submitted.
    HorovodInternalError
        If the ranks have submitted different things under this name, a rank is lost, or a deadline
        has passed.
    """
    small, ctx = compression.compress(value)
    factors = prescale_factor, postscale_factor
    result = allreduce_async(_array(small), None, name, chosen(op, average), *factors).wait()
    return _array(compression.decompress(result, ctx))


def allgather(value: Any, name: str | None = None) -> NDArray[Any]:
    """Join the values of all ranks along the first dimension; return them on all ranks.
    Collective.

    Parameters
    ----------
    value : array or tensor
        Of the same dtype and shape on all ranks, except for the first dimension.
    name : str, optional
        As for `allreduce`.

    Returns
    -------
    ndarray

    Raises
    ------
    HorovodInternalError
        As for `allreduce`.
    """
    result: NDArray[Any] = allgather_async(_array(value), name).wait()
    return result


def broadcast(value: Any, root_rank: int, name: str | None = None) -> NDArray[Any]:
    """Send the value of one rank to all ranks; return it.
    Collective.

    Parameters
    ----------
    value : number, array or tensor
        Of the same shape and dtype on all ranks. It is not changed.
    root_rank : int
        Whose value is sent.
    name : str, optional
        As for `allreduce`.

    Returns
    -------
    ndarray

    Raises
    ------
    HorovodInternalError
        As for `allreduce`.
    """
    result: NDArray[Any] = broadcast_async(_array(value).copy(), root_rank, name).wait()
    return result


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> NDArray[Any]:
    """Reduce the values of all ranks; return a part of the result, along the first dimension.
    Collective.

    Parameters
    ----------
    value : array or tensor
        As for `allreduce`, with at least one dimension. If the ranks do not divide the first one,
        the parts of the first ranks have one row more.
    name : str, optional
        As for `allreduce`.
    op : ReduceOp
        As for `allreduce`, except for ``Adasum``.

    Returns
    -------
    ndarray

    Raises
    ------
    HorovodInternalError
        As for `allreduce`.
    """
    result: NDArray[Any] = reducescatter_async(_array(value), name, chosen(op, None)).wait()
    return result


def _array(value: Any) -> NDArray[Any]:
    """Return a value as a contiguous array, which shares its memory where that is possible."""
    if not isinstance(value, np.ndarray | np.generic | int | float | bool | complex | list):
        value = keras.ops.convert_to_numpy(value)
    return np.array(value, order="C", copy=None)
