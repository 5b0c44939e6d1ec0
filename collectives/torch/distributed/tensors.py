"""Tensors as the collectives take them: in host memory, in one piece, without a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from collectives import reductions
from collectives.communicator import Communicator
from collectives.errors import ArgumentError, UnsupportedTypeError
from collectives.reductions import Reduction

Tensor = Any  # torch.Tensor
After = Callable[[], object]


def plain(tensor: Tensor) -> Tensor:
    """Return a tensor without its gradient; raise an error if it cannot be communicated. Local."""
    if not tensor.is_cpu:
        raise UnsupportedTypeError(
            f"a tensor is on {tensor.device}, and the backend 'collectives' of torch.distributed "
            f"takes tensors in host memory: pass tensor.cpu(), or use the calls of the library, "
            f"such as collectives.allreduce, which take tensors on GPUs"
        )
    if tensor.layout is not torch.strided:
        raise UnsupportedTypeError(
            f"a tensor has the layout {tensor.layout}, and the backend 'collectives' of "
            f"torch.distributed takes dense ones: pass tensor.to_dense()"
        )
    return tensor.detach() if tensor.requires_grad else tensor


def readable(tensor: Tensor) -> Tensor:
    """Return a tensor in one piece with the elements of another, or that itself. Local."""
    return plain(tensor).contiguous()


def writable(tensor: Tensor) -> tuple[Tensor, After | None]:
    """Return a tensor in one piece to receive into, and what to call afterwards. Local."""
    target = plain(tensor)
    if target.is_contiguous():
        return target, None
    copy = target.contiguous()
    return copy, lambda: target.copy_(copy)


def lengths(tensors: Sequence[Tensor]) -> list[int]:
    """Return the numbers of elements of some tensors. Local."""
    return [tensor.numel() for tensor in tensors]


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return one tensor with the elements of several, one after the other; without a copy if they
    lie in a row in memory already.
    Local.
    """
    parts = [plain(tensor) for tensor in tensors]
    _check_dtypes(parts)
    return _row(parts) if _lie_in_a_row(parts) else torch.cat([each.reshape(-1) for each in parts])


def scattered(tensors: Sequence[Tensor]) -> tuple[Tensor, After | None]:
    """Return one tensor to receive into that has room for the elements of several, and what to
    call afterwards to copy them there.
    Local.
    """
    parts = [plain(tensor) for tensor in tensors]
    _check_dtypes(parts)
    if _lie_in_a_row(parts):
        return _row(parts), None
    memory = torch.empty(sum(lengths(parts)), dtype=parts[0].dtype)

    def copy() -> None:
        pieces = memory.split(lengths(parts))
        for part, piece in zip(parts, pieces, strict=True):
            part.copy_(piece.view(part.shape))

    return memory, copy


def _check_dtypes(parts: Sequence[Tensor]) -> None:
    dtypes = {part.dtype for part in parts}
    if len(dtypes) != 1:
        raise ArgumentError(
            f"the tensors have the dtypes {', '.join(sorted(map(str, dtypes)))}, and must have one"
            if dtypes
            else "the list of tensors is empty"
        )


def _lie_in_a_row(parts: Sequence[Tensor]) -> bool:
    """Return whether each tensor begins where the one before ends, in the same memory."""
    memory = parts[0].untyped_storage().data_ptr()
    place = parts[0].data_ptr()
    for part in parts:
        if part.data_ptr() != place or not part.is_contiguous():
            return False
        if part.untyped_storage().data_ptr() != memory:
            return False
        place += part.numel() * part.element_size()
    return True


def _row(parts: Sequence[Tensor]) -> Tensor:
    first = parts[0]
    return first.as_strided((sum(lengths(parts)),), (1,))


def add_sparse(
    comm: Communicator, tensor: Any, op: Reduction, factor: float, timeout: float | None
) -> None:
    """Replace a sparse tensor by the sum, or the mean, of those of all ranks. Collective."""
    if op not in (reductions.SUM, reductions.AVG):
        raise ArgumentError(
            f"op is {op.name}, and must be SUM or AVG for sparse tensors: pass tensor.to_dense()"
        )
    mine = tensor.detach().coalesce()
    indices, values = mine.indices().t().contiguous(), mine.values().contiguous()
    shape = torch.tensor([mine._nnz(), mine.sparse_dim(), *mine.shape])
    shapes = torch.empty(comm.size, len(shape), dtype=shape.dtype)
    comm.allgather(shape, shapes, timeout=timeout)
    if (shapes[:, 1:] != shape[1:]).any():
        raise ArgumentError(
            f"the sparse tensors of all ranks must have one shape, and as many sparse dimensions; "
            f"the shapes are {', '.join(str(tuple(each[2:].tolist())) for each in shapes)}"
        )
    numbers = shapes[:, 0].tolist()
    every = []
    for part in (indices, values):
        whole = part.new_empty(sum(numbers), *part.shape[1:])
        width = part[:0].new_empty(1, *part.shape[1:]).numel()
        counts = [number * width for number in numbers]
        comm.allgatherv(part, whole, counts=counts, timeout=timeout)
        every.append(whole)
    if factor != 1.0:
        every[1] *= factor
    result = torch.sparse_coo_tensor(
        every[0].t(),
        every[1],
        mine.shape,
        check_invariants=False,  # they held on each rank
    ).coalesce()
    if op is reductions.AVG:
        result = result / comm.size
    with torch.no_grad():
        tensor.copy_(result)
