"""The sum of sparse tensors, by allgathers of their elements."""

from __future__ import annotations

from typing import Any

import torch

from collectives import reductions
from collectives.communicator import Communicator
from collectives.errors import ArgumentError
from collectives.reductions import Reduction


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
