"""The asynchronous calls: each submits its tensors, and returns a handle to wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from collectives.horovod import arrays
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.handles import Handle, grouped, together
from collectives.horovod.ops import Adasum, Average, ReduceOp, Sum, chosen
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.text.words import shown

__all__ = [
    "allgather_async",
    "allreduce_async",
    "allreduce_async_",
    "alltoall_async",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather_async",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]

Tensors = Sequence[torch.Tensor]


class Elements(arrays.Elements):
    """The properties of a tensor's elements that reductions need."""

    float32: Any = torch.float32
    float64: Any = torch.float64
    cast: Any = staticmethod(torch.Tensor.to)
    made: Any = staticmethod(torch.from_numpy)

    @staticmethod
    def kind(x: torch.Tensor) -> str:
        if x.is_floating_point():
            return "f"
        return "c" if x.is_complex() else "b" if x.dtype is torch.bool else "i"

    @staticmethod
    def is_double(x: torch.Tensor) -> bool:
        return x.dtype in (torch.float64, torch.complex128)

    @staticmethod
    def truncated(x: torch.Tensor, divisor: int) -> torch.Tensor:
        return torch.div(x, divisor, rounding_mode="trunc")


def checked_tensor(tensor: Any) -> torch.Tensor:
    """Return an argument; raise an error unless it is a tensor. Local."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor is {shown(tensor)}, and must be a torch.Tensor")
    return tensor


def check_shapes(named: Iterable[tuple[str | None, torch.Tensor]]) -> None:
    """Raise an error that names the parameters of lazy modules that have no shape yet. Local."""
    lazy = [name or f"number {k}" for k, (name, each) in enumerate(named) if is_lazy(each)]
    if lazy:
        raise HorovodArgumentError(
            f"parameters have no shape yet, because their modules are lazy: {', '.join(lazy)}; "
            f"first pass a batch through the model"
        )


def array(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor to submit: contiguous, and detached from autograd. Local."""
    if checked_tensor(tensor).layout is not torch.strided:
        raise HorovodArgumentError(
            f"the tensor has the layout {tensor.layout}, and must be dense: pass "
            f"tensor.to_dense(), or call sparse_allreduce_async"
        )
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def new(tensor: torch.Tensor) -> torch.Tensor:
    """Return an uninitialised tensor for a result, like one that `array` has returned. Local."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor, or if it has gaps, those of a new one like it. Local."""
    strides: tuple[int, ...] = torch.empty_like(tensor, device="meta").stride()
    return strides


def changed(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Set `tensor` to the `result` of a collective in place; return it. Local."""
    if result.data_ptr() != tensor.data_ptr():
        with torch.no_grad():
            tensor.copy_(result)
    elif not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
    return tensor


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
    return start_allreduce(tensor, False, name, terms)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an `allreduce_`; return a handle for `synchronize`. Do not use the
    tensor before that. Collective.
    """
    terms = chosen(op, average), prescale_factor, postscale_factor, process_set
    return start_allreduce(tensor, True, name, terms)


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
    return grouped(name, tensors, lambda tensor, part: start_allreduce(tensor, False, part, terms))


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
    return grouped(name, tensors, lambda tensor, part: start_allreduce(tensor, True, part, terms))


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
    terms = chosen(op, None), prescale_factor, postscale_factor, process_set
    return arrays.reducescatter_async(array(tensor), name, *terms, on=Elements)


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
    return grouped(name, tensors, lambda tensor, part: reducescatter_async(tensor, part, *terms))


def start_allreduce(
    tensor: torch.Tensor,
    is_in_place: bool,
    name: str | None,
    terms: tuple[ReduceOp, float, float, ProcessSet],
    **options: Any,
) -> Handle:
    """Start to reduce a tensor, into another one or in place. Collective."""
    x = array(tensor)
    if terms[0] == Adasum and not x.is_cpu:  # it computes in host memory
        handle = arrays.allreduce_async(x.cpu(), None, name, *terms, on=Elements, **options)
        handle = handle.then(lambda result: result.to(tensor.device))
        return handle.then(lambda result: changed(tensor, result)) if is_in_place else handle
    # A tensor that is already a copy can be reduced in place.
    is_copy = x is not tensor and x.data_ptr() != tensor.data_ptr()
    out = x if is_in_place or is_copy else new(x)
    handle = arrays.allreduce_async(x, out, name, *terms, on=Elements, **options)
    return handle.then(lambda result: changed(tensor, result)) if is_in_place else handle


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an `allgather`; return a handle for `synchronize`.
    Collective.
    """
    return arrays.allgather_async(array(tensor), name, process_set)


def grouped_allgather_async(
    tensors: Tensors,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start a `grouped_allgather`; return one handle for all tensors.
    Collective.
    """
    return grouped(name, tensors, lambda tensor, part: allgather_async(tensor, part, process_set))


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start a `broadcast`; return a handle for `synchronize`.
    Collective.
    """
    x = array(tensor)
    out = new(x)
    if process_set.comm().rank == process_set.place(root_rank):
        out.copy_(x)
    return arrays.broadcast_async(out, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start a `broadcast_`; return a handle for `synchronize`. Do not use the
    tensor before that. Collective.
    """
    handle = arrays.broadcast_async(array(tensor), root_rank, name, process_set)
    return handle.then(lambda result: changed(tensor, result))


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an `alltoall`; return a handle whose output is the tensor and the received splits.
    Collective.
    """
    like = splits if isinstance(splits, torch.Tensor) else torch.empty(0, dtype=torch.int32)
    handle = arrays.alltoall_async(array(tensor), splits, name, process_set)
    return handle.then(lambda made: (made[0], torch.from_numpy(made[1]).to(like)))


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Start to add the sparse tensors of all ranks, by an allgather of their elements.
    Collective.

    Parameters
    ----------
    tensor : Tensor
        Sparse, with the layout ``sparse_coo``, of the same shape on all ranks.
    name : str, optional
        As for `allreduce`.
    op : ReduceOp
        ``Average`` or ``Sum``.
    process_set : ProcessSet
        The ranks.

    Returns
    -------
    callable
        It waits, and returns the sparse result, not coalesced.

    Raises
    ------
    HorovodArgumentError
        If the tensor is not sparse, or for another `op`.
    """
    return sparse_handle(tensor, name, op, process_set).wait


def sparse_handle(
    tensor: torch.Tensor, name: str | None, op: ReduceOp, process_set: ProcessSet
) -> Handle:
    """Start a `sparse_allreduce_async`; return a handle. Collective."""
    if op not in (Average, Sum):
        raise HorovodArgumentError(f"op is {shown(op)}, and must be Average or Sum")
    if tensor.layout is not torch.sparse_coo:
        raise HorovodArgumentError(f"the tensor has the layout {tensor.layout}, not sparse_coo")
    size = process_set.comm().size
    parts = f"{name}.indices", f"{name}.values"
    indices = allgather_async(
        tensor._indices().transpose(0, 1), parts[0] if name else None, process_set
    )
    values = allgather_async(tensor._values(), parts[1] if name else None, process_set)

    def result(joined: list[torch.Tensor]) -> torch.Tensor:
        places, elements = joined
        if op == Average:
            elements = elements / size
        return torch.sparse_coo_tensor(
            places.transpose(0, 1), elements, tensor.shape, check_invariants=False
        )

    return together([indices, values]).then(result)


def poll(handle: Handle) -> bool:
    """Return whether a collective is complete or has failed, so that `synchronize` will not wait.
    Local.

    Parameters
    ----------
    handle : Handle

    Raises
    ------
    ValueError
        If it is not a handle.
    """
    if not isinstance(handle, Handle):
        raise ValueError(f"handle is {shown(handle)}, and must come from an asynchronous call")
    return handle.done()


def synchronize(handle: Handle) -> Any:
    """Wait until a collective is complete; return its output.
    Local, but it waits for the submissions of the other ranks.

    Parameters
    ----------
    handle : Handle
        As returned by an asynchronous call. It may be waited for again.

    Returns
    -------
    Tensor, list or tuple of Tensor, or None
        The result of the blocking call, and the received splits for an `alltoall_async`. None if
        `handle` is not a handle, as in Horovod.

    Raises
    ------
    HorovodInternalError
        If the collective has failed: the ranks have submitted different things under its name, a
        rank is lost, or a deadline has passed.
    """
    return handle.wait() if isinstance(handle, Handle) else None
