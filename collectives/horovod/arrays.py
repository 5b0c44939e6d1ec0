"""Collectives of arrays and tensors, submitted in Horovod's terms.

Each function returns a `Handle`, whose ``wait()`` returns the result. `Elements` has the parts that
depend on the framework of the tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.algorithms.bits import SIZE
from collectives.background.engine import submit_steps
from collectives.horovod import adasum
from collectives.horovod.errors import HorovodArgumentError, translated
from collectives.horovod.handles import Handle, submit
from collectives.horovod.ops import Adasum, ReduceOp, Scaling, check_compression, scaling
from collectives.horovod.process_sets import ProcessSet, global_process_set

Array = Any  # an array of NumPy, or a contiguous tensor in host memory


class Elements:
    """The properties of an array's elements that reductions need: here, of NumPy."""

    float32: Any = np.float32
    float64: Any = np.float64

    @staticmethod
    def kind(x: Array) -> str:
        """Return "f" for floating elements, "c" for complex ones, "b" for bools, or another."""
        kind: str = x.dtype.kind
        return "f" if kind == "V" else kind  # bfloat16

    @staticmethod
    def is_double(x: Array) -> bool:
        """Return whether real numbers have more than 32 bits."""
        return x.dtype.char in "dDgG"

    # NumPy turns 0-dimensional results into numbers: these turn them back into arrays.
    cast: Any = staticmethod(np.asarray)
    made: Any = staticmethod(np.asarray)  # from an array of NumPy

    @staticmethod
    def truncated(x: Array, divisor: int) -> Array:
        """Return quotients, rounded towards zero."""
        quotient = x // divisor
        is_less = (x < 0) & (quotient * divisor != x)
        return np.asarray(quotient + is_less.astype(quotient.dtype))


def allreduce_async(
    x: Array,
    out: Array | None,
    name: str | None,
    op: ReduceOp,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet = global_process_set,
    start: Callable[..., Any] = submit,
    on: type[Elements] = Elements,
    **options: Any,
) -> Handle:
    """Start to reduce the arrays of all ranks, if possible in the memory of `out`; by default, in
    the background. Collective.
    """
    comm = process_set.comm()
    if op == Adasum:
        check_compression(op, options.get("compression"))
        return _adasum(x, name, prescale, postscale, process_set, on)
    terms = _terms(x, op, prescale, postscale, comm.size, on)
    options |= {"op": terms.op, "prescale": terms.prescale, "postscale": terms.postscale}
    if terms.is_whole:
        return Handle((start("allreduce", name, x, out, group=comm, **options),), None)
    scaled = _scaled(x, terms.before, on)
    part = start("allreduce", name, scaled, out if scaled is x else scaled, group=comm, **options)
    return Handle((part,), lambda result: _settled(result, terms, on))


def reducescatter_async(
    x: Array,
    name: str | None,
    op: ReduceOp,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet = global_process_set,
    on: type[Elements] = Elements,
) -> Handle:
    """Start to reduce the arrays of all ranks, for a part of the result. Collective."""
    comm = process_set.comm()
    if op == Adasum:
        raise HorovodArgumentError("op is Adasum, which reducescatter does not support")
    if not x.ndim:
        raise HorovodArgumentError("the tensor has no dimensions, and reducescatter cuts the first")
    terms = _terms(x, op, prescale, postscale, comm.size, on)
    x = _scaled(x, terms.before, on)
    rows, more = divmod(x.shape[0], comm.size)
    row = prod(x.shape[1:])
    counts = [(rows + (rank < more)) * row for rank in range(comm.size)]
    options = {"op": terms.op, "prescale": terms.prescale, "postscale": terms.postscale}
    part = submit("reduce_scatterv", name, x, group=comm, counts=counts, **options)
    shape = rows + (comm.rank < more), *x.shape[1:]
    return Handle((part,), lambda result: _settled(result.reshape(shape), terms, on))


def allgather_async(
    x: Array, name: str | None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start to join the arrays of all ranks along the first dimension. Collective."""
    if not x.ndim:
        raise HorovodArgumentError("the tensor has no dimensions, and allgather joins the first")
    comm, row = process_set.comm(), x.shape[1:]
    if prod(row):
        return Handle((submit("allgatherv", name, x, group=comm),), None)
    # Without elements, the number of rows does not follow from the length.
    count = submit("allreduce", name, np.array(x.shape[0]), group=comm)
    return Handle((count,), lambda rows: x[:0].reshape(int(rows), *row))


def broadcast_async(
    x: Array,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to send the array of one rank to all ranks, in place. Collective."""
    comm, root = process_set.comm(), process_set.place(root_rank)
    return Handle((submit("broadcast", name, x, x, root=root, group=comm),), None)


def alltoall_async(
    x: Array,
    splits: Any,
    name: str | None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to send a part of the array to each rank; the output is the received parts, and the
    number of rows from each rank, as an array of NumPy. Collective.
    """
    comm = process_set.comm()
    sizes = _sizes(splits, x, comm.size)
    row = prod(x.shape[1:])
    x = x[: sum(sizes)]
    parts = [submit("alltoallv", name, x, group=comm, counts=[n * row for n in sizes])]
    if not row:  # the length does not determine the rows
        part = None if name is None else f"{name}, splits"
        parts.append(submit("alltoall", part, np.array(sizes, np.int64), group=comm))

    def finish(*results: Any) -> tuple[Array, NDArray[Any]]:
        moved, counts = results[0]
        received = counts // row if row else results[1]
        return moved.reshape(int(received.sum()), *x.shape[1:]), received

    return Handle(parts, finish)


def _adasum(
    x: Array,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    on: type[Elements],
) -> Handle:
    comm = process_set.comm()
    if process_set is not global_process_set:
        raise NotImplementedError(
            "op is Adasum, and process_set is not that of all ranks: leave it out"
        )
    if comm.size & (comm.size - 1):
        raise NotImplementedError(
            f"op is Adasum, which needs a power of two of ranks, and there are {comm.size}"
        )
    if on.kind(x) != "f":
        raise HorovodArgumentError(f"the tensor is {x.dtype}, and Adasum takes floating ones")
    if comm.bits == SIZE:
        raise HorovodArgumentError(
            f"op is Adasum, with which an element depends on all others of its tensor, and bits "
            f"is {SIZE!r}; pass op=Sum or Average, or init(bits='any')"
        )
    exact = np.asarray(x if x.dtype in (on.float32, on.float64) else on.cast(x, on.float32))
    if prescale != 1.0:
        exact = np.asarray(exact * exact.dtype.type(prescale))
    key = None if name is None else f"allreduce.{name}"
    with translated():
        part = submit_steps(adasum.steps(exact), name=key, group=comm)

    def finish(result: NDArray[Any]) -> Array:
        scaled = result if postscale == 1.0 else result * result.dtype.type(postscale)
        return on.cast(on.made(np.asarray(scaled)), x.dtype)

    return Handle((part,), finish)


def _sizes(splits: Any, x: Array, size: int) -> list[int]:
    """Return the number of rows for each rank."""
    if not x.ndim:
        raise HorovodArgumentError("the tensor has no dimensions, and alltoall cuts the first")
    if splits is None:
        rows, left = divmod(x.shape[0], size)
        if left:
            raise HorovodArgumentError(
                f"the tensor has {x.shape[0]} rows, which {size} ranks do not divide: pass splits"
            )
        return [rows] * size
    sizes: list[int] = (splits if hasattr(splits, "tolist") else np.asarray(splits)).tolist()
    are_counts = isinstance(sizes, list) and all(type(n) is int and n >= 0 for n in sizes)
    if not are_counts or len(sizes) != size or sum(sizes) > x.shape[0]:
        raise HorovodArgumentError(
            f"splits is {sizes}, and must be {size} numbers of rows, of {x.shape[0]} in all"
        )
    return sizes


def _terms(
    x: Array, op: ReduceOp, prescale: float, postscale: float, size: int, on: type[Elements]
) -> Scaling:
    """Return the scaling for the reduction of an array."""
    kind = on.kind(x)
    is_double = prescale == 1.0 == postscale or on.is_double(x)
    terms = scaling(op, kind in "fc", prescale, postscale, size, is_double)
    if kind == "b" and not terms.is_whole:
        raise HorovodArgumentError(f"the tensor is {x.dtype}, of which there is no {op.name}")
    return terms


def _scaled(x: Array, factor: float, on: type[Elements]) -> Array:
    return x if factor == 1.0 else on.cast(on.cast(x, on.float64) * factor, x.dtype)


def _settled(result: Array, terms: Scaling, on: type[Elements]) -> Array:
    """Return the result of a reduction, after the scaling that the library does not do itself."""
    if terms.divisor != 1:
        result = on.truncated(result, terms.divisor)
    return _scaled(result, terms.after, on)
