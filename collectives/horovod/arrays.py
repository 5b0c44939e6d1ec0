"""Collectives of NumPy arrays, submitted in Horovod's terms.

Front ends whose tensors are seen as NumPy arrays submit by these functions. Each returns a
`Handle`, whose ``wait()`` returns the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.background.engine import submit_steps
from collectives.horovod import adasum
from collectives.horovod.errors import HorovodArgumentError, translated
from collectives.horovod.handles import Handle, submit
from collectives.horovod.ops import Adasum, ReduceOp, Scaling, check_compression, scaling
from collectives.horovod.process_sets import ProcessSet, global_process_set

Array = NDArray[Any]


def allreduce_async(
    x: Array,
    out: Array | None,
    name: str | None,
    op: ReduceOp,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet = global_process_set,
    start: Callable[..., Any] = submit,
    **options: Any,
) -> Handle:
    """Start to reduce the arrays of all ranks, in the background by default. Collective."""
    comm = process_set.comm()
    check_compression(op, options.get("compression"))
    if op == Adasum:
        return _adasum(x, name, prescale, postscale, process_set)
    terms = scaling(op, _is_inexact(x), prescale, postscale, comm.size, _is_double(x))
    options |= {"op": terms.op, "prescale": terms.prescale, "postscale": terms.postscale}
    if terms.is_whole:
        return Handle((start("allreduce", name, x, out, group=comm, **options),), None)
    _check_integers(x, op)
    scaled = _scaled(x, terms.before)
    part = start("allreduce", name, scaled, group=comm, **options)
    return Handle((part,), lambda result: _settled(result, terms))


def reducescatter_async(
    x: Array,
    name: str | None,
    op: ReduceOp,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to reduce the arrays of all ranks, for a part of the result. Collective."""
    comm = process_set.comm()
    if op == Adasum:
        raise HorovodArgumentError("op is Adasum, which reducescatter does not support")
    if not x.ndim:
        raise HorovodArgumentError("the tensor has no dimensions, and reducescatter cuts the first")
    terms = scaling(op, _is_inexact(x), prescale, postscale, comm.size, _is_double(x))
    if not terms.is_whole:
        _check_integers(x, op)
        x = _scaled(x, terms.before)
    rows, more = divmod(x.shape[0], comm.size)
    row = prod(x.shape[1:])
    counts = [(rows + (rank < more)) * row for rank in range(comm.size)]
    options = {"op": terms.op, "prescale": terms.prescale, "postscale": terms.postscale}
    part = submit("reduce_scatterv", name, x, group=comm, counts=counts, **options)
    shape = rows + (comm.rank < more), *x.shape[1:]
    return Handle((part,), lambda result: _settled(result.reshape(shape), terms))


def allgather_async(
    x: Array, name: str | None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start to join the arrays of all ranks along the first dimension. Collective."""
    if not x.ndim:
        raise HorovodArgumentError("the tensor has no dimensions, and allgather joins the first")
    comm, row = process_set.comm(), x.shape[1:]
    if prod(row):
        part = submit("allgatherv", name, x, group=comm)
        return Handle((part,), lambda joined: joined.reshape(-1, *row))
    # There are no elements, which would say how many rows there are.
    count = submit("allreduce", name, np.array(x.shape[0]), group=comm)
    return Handle((count,), lambda rows: np.empty((int(rows), *row), x.dtype))


def broadcast_async(
    x: Array,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to send the array of one rank to all ranks. Collective."""
    comm, root = process_set.comm(), process_set.place(root_rank)
    return Handle((submit("broadcast", name, x, x, root=root, group=comm),), None)


def alltoall_async(
    x: Array,
    splits: Sequence[int] | Array | None,
    name: str | None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to send a part of the array to each rank. Collective."""
    comm = process_set.comm()
    sizes = _sizes(splits, x, comm.size)
    row = prod(x.shape[1:])
    x = x[: sum(sizes)]
    parts = [submit("alltoallv", name, x, group=comm, counts=[n * row for n in sizes])]
    if not row:  # the elements say nothing of the rows
        part = None if name is None else f"{name}, splits"
        parts.append(submit("alltoall", part, np.array(sizes, np.int64), group=comm))

    def finish(*results: Any) -> tuple[Array, Array]:
        moved, counts = results[0]
        received = counts // row if row else results[1]
        return moved.reshape(int(received.sum()), *x.shape[1:]), received

    return Handle(parts, finish)


def _adasum(
    x: Array, name: str | None, prescale: float, postscale: float, process_set: ProcessSet
) -> Handle:
    comm = process_set.comm()
    if process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    if comm.size & (comm.size - 1):
        raise NotImplementedError(
            f"Running Adasum with non-power of 2 ranks is not supported yet: there are {comm.size}."
        )
    if not _is_inexact(x) or x.dtype.kind == "c":
        raise HorovodArgumentError(f"the tensor is {x.dtype}, and Adasum takes floating ones")
    exact = x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
    if prescale != 1.0:
        exact = exact * exact.dtype.type(prescale)
    key = None if name is None else f"allreduce.{name}"
    with translated():
        part = submit_steps(adasum.steps(exact), name=key, group=comm)

    def finish(result: Array) -> Array:
        made = result if postscale == 1.0 else result * result.dtype.type(postscale)
        return made.astype(x.dtype, copy=False)

    return Handle((part,), finish)


def _sizes(splits: Any, x: Array, size: int) -> list[int]:
    """Return how many rows go to each rank."""
    if not x.ndim:
        raise HorovodArgumentError("the tensor has no dimensions, and alltoall cuts the first")
    if splits is None:
        rows, left = divmod(x.shape[0], size)
        if left:
            raise HorovodArgumentError(
                f"the tensor has {x.shape[0]} rows, which {size} ranks do not divide: pass splits"
            )
        return [rows] * size
    sizes: list[int] = np.asarray(splits).tolist()
    are_counts = isinstance(sizes, list) and all(type(n) is int and n >= 0 for n in sizes)
    if not are_counts or len(sizes) != size or sum(sizes) > x.shape[0]:
        raise HorovodArgumentError(
            f"splits is {sizes}, and must be {size} numbers of rows, of {x.shape[0]} in all"
        )
    return sizes


def _is_double(x: Array) -> bool:
    return x.dtype.char in "dDgG"


def _is_inexact(x: Array) -> bool:
    return x.dtype.kind in "fcV"  # bfloat16 is of kind V


def _check_integers(x: Array, op: ReduceOp) -> None:
    if x.dtype.kind == "b":
        raise HorovodArgumentError(f"the tensor is {x.dtype}, of which there is no {op.name}")


def _scaled(x: Array, factor: float) -> Array:
    return x if factor == 1.0 else (x.astype(np.float64) * factor).astype(x.dtype)


def _settled(result: Array, terms: Scaling) -> Array:
    """Return the result of a reduction, after what the library does not do itself."""
    if terms.divisor != 1:
        quotient = result // terms.divisor
        is_less = (result < 0) & (quotient * terms.divisor != result)
        result = quotient + is_less.astype(quotient.dtype)  # truncated
    return _scaled(result, terms.after)
