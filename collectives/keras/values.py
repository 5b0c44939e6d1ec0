"""Collectives of values in host memory: numbers, arrays, tensors and variables of Keras."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any, NoReturn

import keras
import numpy as np
from numpy.typing import NDArray

from collectives.horovod.arrays import (
    allgather_async,
    allreduce_async,
    broadcast_async,
    reducescatter_async,
)
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.gradients import label_of
from collectives.horovod.objects import allgather_object, is_seed
from collectives.horovod.ops import Average, ReduceOp, chosen
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.keras.compression import Compression
from collectives.text.words import error_text

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "reducescatter",
]


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
        The name of the call. Ranks may make calls with names in different orders.
    average : bool, optional
        Deprecated: pass `op`.
    prescale_factor, postscale_factor : float
        Factors of the values, and of the result.
    op : ReduceOp, optional
        ``Average``, the default, ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``.
    compression : Compressor
        The compression of the value.

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
        The root.
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
    """Return a value as a contiguous array, which shares its memory if possible."""
    if not isinstance(value, np.ndarray | np.generic | int | float | bool | complex | list):
        value = keras.ops.convert_to_numpy(value)
    return np.array(value, order="C", copy=None)


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Set the variables of all ranks to those of one.
    Collective.

    Parameters
    ----------
    variables : iterable of variable
        Such as ``model.variables`` and ``optimizer.variables``; the same number on all ranks, in
        the same order. The seeds of Keras's layers are left out, because with the same seeds all
        ranks would drop the same units.
    root_rank : int
        The root, by its number among all ranks.
    process_set : ProcessSet
        The ranks.

    Raises
    ------
    HorovodArgumentError
        On all ranks, if their variables differ in number, shape or dtype, or if one of them has
        other values than numbers, or a dtype that NumPy does not have. Nothing was sent.
    HorovodInternalError
        If the collective fails.
    """
    comm = process_set.comm()
    if comm.size == 1:
        return
    sent = [each for each in variables if not is_seed(each)]
    check_alike(sent, "variables", process_set)
    handles = []
    for k, x in enumerate([_copied(each) for each in sent], start=1):
        name = f"variable {k} of {len(sent)}"
        handles.append(broadcast_async(x, root_rank, name, process_set))
    values = [each.wait() for each in handles]
    if comm.rank != process_set.place(root_rank):
        for each, value in zip(sent, values, strict=True):
            each.assign(value)


def _copied(variable: Any) -> NDArray[Any]:
    """Return a copy: an array of a framework may be its own memory, and read-only."""
    try:
        x = np.array(keras.ops.convert_to_numpy(variable), order="C")
        problem = "only numbers are sent" if x.dtype.kind in "OSU" else None
    except TypeError as error:
        problem = f"cannot be copied to an array of NumPy: {error_text(error)}"
    if problem is not None:
        name = getattr(variable, "path", variable.name)
        dtype = keras.backend.standardize_dtype(variable.dtype)
        raise HorovodArgumentError(
            f"the variable {name} is of dtype {dtype}, and {problem}; leave it out, and pass its "
            f"value to broadcast_object"
        )
    return x


def check_alike(variables: Iterable[Any], name: str, process_set: ProcessSet) -> None:
    """Raise an error on all ranks if their variables have different names, dtypes or shapes.
    Collective.
    """
    mine = [
        f"{label_of(each)} {keras.backend.standardize_dtype(each.dtype)} {tuple(each.shape)}"
        for each in variables
    ]
    every = allgather_object(mine, name, process_set)
    for number, each in enumerate(zip_longest(*every, fillvalue="missing"), start=1):
        if len(set(each)) > 1:
            ranks = process_set.ranks or range(len(every))
            said = "; ".join(f"rank {k}: {what}" for k, what in zip(ranks, each, strict=True))
            raise HorovodArgumentError(
                f"{name} differ between ranks, the first of them in variable {number}: {said}"
            )


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Refuse to send all variables of the program to all ranks from `root_rank`. Local.

    Raises
    ------
    RuntimeError
        Always: Keras 3 has no list of all variables.
    """
    raise RuntimeError(
        "broadcast_global_variables() needs a list of all variables, which Keras 3 does not have: "
        "pass callbacks.BroadcastGlobalVariablesCallback(root_rank) to fit(), or call "
        "broadcast_variables(model.variables, root_rank)"
    )
