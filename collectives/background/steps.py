"""Submissions that take several collectives: vector forms, many arrays, and exact sums.

The ranks of a vector form may have different numbers of elements, which they exchange first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collectives import _core
from collectives._core import ALLGATHER, ALLREDUCE, ALLTOALL, REDUCE_SCATTER, counts_of
from collectives.arrays import frameworks
from collectives.calls.exact_sums import sums_of
from collectives.calls.grouped import GroupedRequest, text_of
from collectives.communicator import Communicator
from collectives.errors import ArgumentError
from collectives.process.advice import alone
from collectives.reductions import said

if TYPE_CHECKING:
    from collectives.arrays.types import Counts

Run = Generator[_core.Request, None, Any]


class Steps(NamedTuple):
    """A submission that consists of several collectives.

    Attributes
    ----------
    kind : int
        The collective with the same dtypes and operations.
    like : array
        An array of the dtype, and of the shape that all ranks must have.
    op : Reduction or str or None
    text : str
        A description that begins with its kind; equal on all ranks.
    run : callable
        It takes a communicator, and returns a generator that yields each request when it has
        started, and returns the result.
    """

    kind: int
    like: Any
    op: Any
    text: str
    run: Callable[[Communicator], Run]


VECTORS = ("allgatherv", "alltoallv", "reduce_scatterv")


def vector(
    kind: str,
    x: Any,
    counts: Counts | None,
    op: Any,
    scales: tuple[float, float],
    size: int,
    bits: str | None,
) -> Steps:
    """Return the steps of a vector form, with its own `bits` if they are not None. Local."""
    shape = _core.shape(x)
    if not shape:
        raise ArgumentError(f"x has no axes, and {kind} joins and cuts arrays along the first one")
    if kind == "allgatherv" and counts is not None:
        raise ArgumentError("counts is given, and allgatherv takes none in the background")
    if kind != "allgatherv" and counts is None:
        raise ArgumentError(f"counts is None, and {kind} needs the elements for each rank")
    given = np.empty(0, np.int64) if counts is None else counts_of(counts, size, alone)
    if counts is not None and given.sum() != prod(shape):
        raise ArgumentError(f"counts sum to {given.sum()}, and x has {prod(shape)} elements")
    like = x[:0]
    if kind == "allgatherv":
        text = f"allgatherv of {_dtype(like)} (..., {_sizes(shape[1:])})"
        return Steps(ALLGATHER, like, None, text, lambda comm: _allgatherv(comm, x))
    if kind == "alltoallv":
        text = f"alltoallv of {_dtype(like)} (..., {_sizes(shape[1:])})"
        return Steps(ALLTOALL, like, None, text, lambda comm: _alltoallv(comm, x, given))
    text = f"reduce_scatterv of {_dtype(like)} {shape}, op {said(op)}"
    text += f", counts {given.tolist()}{_scaled(scales)}{_own(bits)}"

    def run(comm: Communicator) -> Run:
        request = comm.ireduce_scatterv(
            x, counts=given, op=op, prescale=scales[0], postscale=scales[1], bits=bits
        )
        yield request
        return request.wait()

    return Steps(REDUCE_SCATTER, like, op, text, run)


def many(
    comm: Communicator,
    arrays: Iterable[Any],
    out: Iterable[Any] | None,
    op: Any,
    scales: tuple[float, float],
    bits: str | None,
) -> Steps:
    """Return the steps of an allreduce of many arrays. Local."""
    request = GroupedRequest(comm._engine, arrays, out, (op, None, bits, *scales))
    group = request._group
    assert isinstance(group, _core.Group)
    sizes = group.sizes(1)
    like = np.empty(0, frameworks.numpy_dtype(sizes[0][0], "arrays") if sizes else np.uint8)
    text = f"allreduce_many of {text_of(group)}, op {said(op)}{_scaled(scales)}{_own(bits)}"

    def run(_: Communicator) -> Run:
        yield from request._steps()
        return request.wait()

    return Steps(ALLREDUCE, like, op if sizes else "SUM", text, run)


def reproducible(
    kind: int, x: Any, out: Any, op: Any, root: int, scales: tuple[float, float], terms: str | None
) -> Steps:
    """Return the steps of a sum that is rounded once. Local."""
    name = _core.COLLECTIVES[kind]
    shape = x.shape if sums_of(x) else _core.shape(x)
    like = np.zeros(0) if sums_of(x) else x[:0] if shape else x
    text = f"{name} of {sums_of(x) or _dtype(x)} {shape}, op {said(op)}, root {root}"
    text += f"{_scaled(scales)}{'' if terms is None else f', {terms}'}"

    def run(comm: Communicator) -> Run:
        request = comm._engine.call(kind, x, out, op, root, None, None, *scales, False)
        yield request
        return request.wait()

    return Steps(kind, like, op, text, run)


def _scaled(scales: tuple[float, float]) -> str:
    return "" if scales == (1.0, 1.0) else ", scaled by {:g} and {:g}".format(*scales)


def _own(bits: str | None) -> str:
    return "" if bits is None else f", bits {bits}"


def _dtype(x: Any) -> str:
    return str(x.dtype).rpartition(".")[2] if hasattr(x, "dtype") else "elements"


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def _allgatherv(comm: Communicator, x: Any) -> Run:
    every = np.empty(comm.size, np.int64)
    yield comm.iallgather(np.array([prod(_core.shape(x))]), out=every)
    request = comm.iallgatherv(x, counts=every)
    yield request
    return request.wait()


def _alltoallv(comm: Communicator, x: Any, sent: Any) -> Run:
    received = np.empty(comm.size, np.int64)
    yield comm.ialltoall(sent, out=received)
    request = comm.ialltoallv(x, sent, receive_counts=received)
    yield request
    return request.wait(), received
