"""Collectives that move tensors: allgather, broadcast, alltoall, and the sum of sparse tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.handles import Handle, Submitted, grouped, submit
from collectives.horovod.ops import Average, ReduceOp, Sum
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.text.words import shown
from collectives.torch.handles import Tensors, array, changed, new

__all__ = [
    "allgather_async",
    "alltoall_async",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather_async",
    "sparse_allreduce_async",
]


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an `allgather`; return a handle for `synchronize`.
    Collective.
    """
    part, finish = _gathering(tensor, name, process_set)
    return Handle((part,), finish)


def grouped_allgather_async(
    tensors: Tensors,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start a `grouped_allgather`; return one handle for all tensors.
    Collective.
    """
    return grouped(name, tensors, lambda tensor, part: _gathering(tensor, part, process_set))


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start a `broadcast`; return a handle for `synchronize`.
    Collective.
    """
    return _broadcast(tensor, None, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start a `broadcast_`; return a handle for `synchronize`. Until then, the tensor may not be
    used. Collective.
    """
    return _broadcast(tensor, tensor, root_rank, name, process_set)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an `alltoall`; return a handle, whose output is the tensor and the received splits.
    Collective.
    """
    comm = process_set.comm()
    x = array(tensor)
    sizes = _sizes(splits, x, comm.size)
    row = prod(x.shape[1:])
    x = x[: sum(sizes)]
    parts = [submit("alltoallv", name, x, group=comm, counts=[n * row for n in sizes])]
    dtype = splits.dtype if isinstance(splits, torch.Tensor) else torch.int32
    if not row:  # the elements say nothing of the rows
        part = None if name is None else f"{name}, splits"
        parts.append(submit("alltoall", part, torch.tensor(sizes), group=comm))

    def finish(*results: Any) -> tuple[torch.Tensor, torch.Tensor]:
        moved, counts = results[0]
        received = torch.from_numpy(counts) // row if row else results[1]
        moved = moved.reshape(int(received.sum()), *x.shape[1:])
        return moved, received.to(dtype)

    return Handle(parts, finish)


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

    def result() -> torch.Tensor:
        places, elements = indices.wait(), values.wait()
        if op == Average:
            elements = elements / size
        return torch.sparse_coo_tensor(
            places.transpose(0, 1), elements, tensor.shape, check_invariants=False
        )

    return result


def _gathering(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Submitted:
    x = array(tensor)
    if not x.dim():
        raise HorovodArgumentError("the tensor has no dimensions, and allgather joins the first")
    comm = process_set.comm()
    if prod(x.shape[1:]):
        return submit("allgatherv", name, x, group=comm), None
    # There are no elements, which would say how many rows there are.
    count = submit("allreduce", name, torch.tensor(x.shape[0]), group=comm)
    return count, lambda rows: x.new_empty(int(rows), *x.shape[1:])


def _broadcast(
    tensor: torch.Tensor,
    target: torch.Tensor | None,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
) -> Handle:
    comm = process_set.comm()
    root = process_set.place(root_rank)
    x = array(tensor)
    out = new(x) if target is None else x
    if target is None and comm.rank == root:
        out.copy_(x)
    part = submit("broadcast", name, out, out, root=root, group=comm)
    return Handle((part,), None if target is None else lambda _: changed(target, out))


def _sizes(splits: Any, x: torch.Tensor, size: int) -> list[int]:
    """Return how many rows go to each rank."""
    if not x.dim():
        raise HorovodArgumentError("the tensor has no dimensions, and alltoall cuts the first")
    if splits is None:
        rows, left = divmod(x.shape[0], size)
        if left:
            raise HorovodArgumentError(
                f"the tensor has {x.shape[0]} rows, which {size} ranks do not divide: pass splits"
            )
        return [rows] * size
    sizes = splits.tolist() if hasattr(splits, "tolist") else list(splits)
    are_counts = all(type(each) is int and each >= 0 for each in sizes)  # and not bool
    if not are_counts or len(sizes) != size or sum(sizes) > x.shape[0]:
        raise HorovodArgumentError(
            f"splits is {sizes}, and must be {size} numbers of rows, of {x.shape[0]} in all"
        )
    return sizes
