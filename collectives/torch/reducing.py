"""Reductions of tensors: allreduce, reducescatter, and their grouped and asynchronous forms."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from collectives.background.engine import submit_steps
from collectives.horovod import adasum
from collectives.horovod.errors import HorovodArgumentError, translated
from collectives.horovod.handles import Handle, Submitted, grouped, submit
from collectives.horovod.ops import Adasum, Average, ReduceOp, Scaling, chosen, scaling
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.torch.handles import Tensors, array, changed, new

__all__ = [
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "reducescatter_async",
]


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an `allreduce`; return a handle for `synchronize`.
    Collective.
    """
    terms = chosen(op, average), prescale_factor, postscale_factor, process_set
    part, finish = _reduction(tensor, None, name, *terms)
    return Handle((part,), finish)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an `allreduce_`; return a handle for `synchronize`. Until then, the tensor may not be
    used. Collective.
    """
    terms = chosen(op, average), prescale_factor, postscale_factor, process_set
    part, finish = _reduction(tensor, tensor, name, *terms)
    return Handle((part,), finish)


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start a `grouped_allreduce`; return one handle for all tensors.
    Collective.
    """
    terms = chosen(op, average), prescale_factor, postscale_factor, process_set
    return grouped(name, tensors, lambda tensor, part: _reduction(tensor, None, part, *terms))


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start a `grouped_allreduce_`; return one handle for all tensors.
    Collective.
    """
    terms = chosen(op, average), prescale_factor, postscale_factor, process_set
    return grouped(name, tensors, lambda tensor, part: _reduction(tensor, tensor, part, *terms))


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start a `reducescatter`; return a handle for `synchronize`.
    Collective.
    """
    terms = op, process_set, prescale_factor, postscale_factor
    part, finish = _scattering(tensor, name, *terms)
    return Handle((part,), finish)


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start a `grouped_reducescatter`; return one handle for all tensors.
    Collective.
    """
    terms = op, process_set, prescale_factor, postscale_factor
    return grouped(name, tensors, lambda tensor, part: _scattering(tensor, part, *terms))


def _reduction(
    tensor: torch.Tensor,
    target: torch.Tensor | None,
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Submitted:
    """Submit an allreduce, into a new tensor or into the `target`, which is the tensor itself."""
    comm = process_set.comm()
    x = array(tensor)
    if op == Adasum:
        return _adasum(x, target, name, prescale, postscale, process_set)
    terms = scaling(op, _is_inexact(x), prescale, postscale, comm.size, is_double(x))
    is_whole = terms.is_whole
    if not is_whole:
        _check_integers(x, op)
        x = _scaled(x, terms.before)
    # What is a copy already can be reduced in place.
    owned = target is not None or (x is not tensor and x.data_ptr() != tensor.data_ptr())
    out = x if owned else new(x)
    options = {"op": terms.op, "prescale": terms.prescale, "postscale": terms.postscale}
    handle = submit("allreduce", name, x, out, group=comm, **options)
    if is_whole and target is None:
        return handle, None

    def finish(result: torch.Tensor) -> torch.Tensor:
        result = _settled(result, terms)
        return result if target is None else changed(target, result)

    return handle, finish


def _adasum(
    x: torch.Tensor,
    target: torch.Tensor | None,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Submitted:
    comm = process_set.comm()
    if process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    if comm.size & (comm.size - 1):
        raise NotImplementedError(
            f"Running Adasum with non-power of 2 ranks is not supported yet: there are {comm.size}."
        )
    if not x.is_floating_point():
        raise HorovodArgumentError(f"the tensor is {x.dtype}, and Adasum takes floating ones")
    exact = x if x.dtype in (torch.float32, torch.float64) else x.float()
    if prescale != 1.0:
        exact = exact * prescale
    key = None if name is None else f"allreduce.{name}"
    with translated():
        handle = submit_steps(adasum.steps(exact.numpy()), name=key, group=comm)

    def finish(result: Any) -> torch.Tensor:
        made = torch.from_numpy(result).to(x.dtype)
        made = made if postscale == 1.0 else made * postscale
        return made if target is None else changed(target, made)

    return handle, finish


def _scattering(
    tensor: torch.Tensor,
    name: str | None,
    op: ReduceOp,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
) -> Submitted:
    comm = process_set.comm()
    op = chosen(op, None)
    if op == Adasum:
        raise HorovodArgumentError("op is Adasum, which reducescatter does not support")
    x = array(tensor)
    if not x.dim():
        raise HorovodArgumentError("the tensor has no dimensions, and reducescatter cuts the first")
    terms = scaling(op, _is_inexact(x), prescale, postscale, comm.size, is_double(x))
    if not terms.is_whole:
        _check_integers(x, op)
        x = _scaled(x, terms.before)
    rows, more = divmod(x.shape[0], comm.size)
    row = prod(x.shape[1:])
    counts = [(rows + (rank < more)) * row for rank in range(comm.size)]
    options = {"op": terms.op, "prescale": terms.prescale, "postscale": terms.postscale}
    handle = submit("reduce_scatterv", name, x, group=comm, counts=counts, **options)
    shape = rows + (comm.rank < more), *x.shape[1:]
    return handle, lambda result: _settled(result.reshape(shape), terms)


def is_double(x: torch.Tensor) -> bool:
    """Return whether the real numbers of a tensor have more than 32 bits."""
    return x.dtype in (torch.float64, torch.complex128)


def _is_inexact(x: torch.Tensor) -> bool:
    return bool(x.is_floating_point() or x.is_complex())


def _check_integers(x: torch.Tensor, op: ReduceOp) -> None:
    if x.dtype is torch.bool:
        raise HorovodArgumentError(f"the tensor is {x.dtype}, of which there is no {op.name}")


def _scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x if factor == 1.0 else (x.double() * factor).to(x.dtype)


def _settled(result: torch.Tensor, terms: Scaling) -> torch.Tensor:
    """Return the result of a reduction, after what the library does not do itself."""
    if terms.divisor != 1:
        result = torch.div(result, terms.divisor, rounding_mode="trunc")
    return _scaled(result, terms.after)
