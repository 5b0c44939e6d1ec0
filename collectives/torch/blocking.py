"""The blocking calls: each submits its tensors, waits, and is recorded by autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from collectives.horovod.handles import names
from collectives.horovod.ops import Average, ReduceOp
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.torch import gradients
from collectives.torch.compression import Compression, Compressor
from collectives.torch.handles import Tensors
from collectives.torch.moving import (
    allgather_async,
    alltoall_async,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
)
from collectives.torch.reducing import (
    allreduce_async,
    allreduce_async_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    reducescatter_async,
)

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce the tensors of all ranks; return the result on all ranks.
    Collective.

    Autograd records it: the gradient is reduced in the same way.

    Parameters
    ----------
    tensor : Tensor
        Of the same shape and dtype on all ranks. It is not changed.
    average : bool, optional
        Deprecated: pass `op`.
    name : str, optional
        What the call is named. Ranks may make calls with names in different orders.
    compression : Compressor
        How the tensor is sent.
    op : ReduceOp
        ``Average``, the default, ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``. The mean of
        integers is truncated.
    prescale_factor, postscale_factor : float
        Factors of the tensors, and of the result.
    process_set : ProcessSet
        The ranks.

    Returns
    -------
    Tensor
        A new tensor.

    Raises
    ------
    HorovodArgumentError
        If an argument is wrong; nothing was submitted.
    HorovodInternalError
        If the ranks have submitted different things under this name, a rank is lost, or a deadline
        has passed.
    """
    small, ctx = compression.compress(tensor)
    terms = average, name, op, prescale_factor, postscale_factor, process_set
    if small.requires_grad and torch.is_grad_enabled():
        result = gradients.Allreduce.apply(small, *terms)
    else:
        result = allreduce_async(small, *terms).wait()
    return compression.decompress(result, ctx)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce the tensors of all ranks in place, as `allreduce` does; return the tensor.
    Collective.
    """
    terms = average, name, op, prescale_factor, postscale_factor, process_set
    result: torch.Tensor = allreduce_async_(tensor, *terms).wait()
    return result


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors of all ranks, as one message where they are small.
    Collective.

    Autograd records it.

    Parameters
    ----------
    tensors : sequence of Tensor
        As for `allreduce`; as many on all ranks.
    average, name, compression, op, prescale_factor, postscale_factor, process_set
        As for `allreduce`.

    Returns
    -------
    list of Tensor
        New tensors.

    Raises
    ------
    HorovodInternalError
        As for `allreduce`, if one of them fails.
    """
    pairs = [compression.compress(each) for each in tensors]
    terms = average, name, op, prescale_factor, postscale_factor, process_set
    small = [each for each, _ in pairs]
    if torch.is_grad_enabled() and any(each.requires_grad for each in small):
        results = gradients.GroupedAllreduce.apply(*terms, *small)
    else:
        results = grouped_allreduce_async(small, *terms).wait()
    return [
        compression.decompress(each, ctx) for each, (_, ctx) in zip(results, pairs, strict=True)
    ]


def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors of all ranks in place, as `grouped_allreduce` does; return them.
    Collective.
    """
    terms = average, name, op, prescale_factor, postscale_factor, process_set
    results: list[torch.Tensor] = grouped_allreduce_async_(tensors, *terms).wait()
    return results


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce the tensors of all ranks; return a part of the result, along the first dimension.
    Collective.

    Autograd records it.

    Parameters
    ----------
    tensor : Tensor
        As for `allreduce`, with at least one dimension. If the ranks do not divide the first one,
        the parts of the first ranks have one row more.
    name, compression, process_set, prescale_factor, postscale_factor
        As for `allreduce`.
    op : ReduceOp
        As for `allreduce`, except for ``Adasum``.

    Returns
    -------
    Tensor
        A new tensor.

    Raises
    ------
    HorovodInternalError
        As for `allreduce`.
    """
    small, ctx = compression.compress(tensor)
    terms = name, op, process_set, prescale_factor, postscale_factor
    if small.requires_grad and torch.is_grad_enabled():
        result = gradients.Reducescatter.apply(small, *terms)
    else:
        result = reducescatter_async(small, *terms).wait()
    return compression.decompress(result, ctx)


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce several tensors of all ranks; return a part of each.
    Collective.

    Autograd records it.

    Parameters
    ----------
    tensors : sequence of Tensor
        As for `reducescatter`; as many on all ranks.
    name, compression, op, process_set, prescale_factor, postscale_factor
        As for `reducescatter`.

    Returns
    -------
    list of Tensor
        New tensors.

    Raises
    ------
    HorovodInternalError
        As for `reducescatter`, if one of them fails.
    """
    terms = name, compression, op, process_set, prescale_factor, postscale_factor
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return [
            reducescatter(each, part, *terms[1:])
            for part, each in zip(names(name, len(tensors)), tensors, strict=True)
        ]
    pairs = [compression.compress(each) for each in tensors]
    results = grouped_reducescatter_async([each for each, _ in pairs], name, *terms[2:]).wait()
    return [
        compression.decompress(each, ctx) for each, (_, ctx) in zip(results, pairs, strict=True)
    ]


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Join the tensors of all ranks along the first dimension.
    Collective.

    Autograd records it.

    Parameters
    ----------
    tensor : Tensor
        Of the same dtype and shape on all ranks, except for the first dimension.
    name : str, optional
        As for `allreduce`.
    process_set : ProcessSet
        The ranks.

    Returns
    -------
    Tensor
        A new tensor.

    Raises
    ------
    HorovodInternalError
        As for `allreduce`.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        joined: torch.Tensor = gradients.Allgather.apply(tensor, name, process_set)
    else:
        joined = allgather_async(tensor, name, process_set).wait()
    return joined


def grouped_allgather(
    tensors: Tensors,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Join several tensors of all ranks, each along the first dimension.
    Collective.

    Autograd records it.

    Parameters
    ----------
    tensors : sequence of Tensor
        As for `allgather`; as many on all ranks.
    name, process_set
        As for `allgather`.

    Returns
    -------
    list of Tensor
        New tensors.

    Raises
    ------
    HorovodInternalError
        As for `allgather`, if one of them fails.
    """
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return [
            allgather(each, part, process_set)
            for part, each in zip(names(name, len(tensors)), tensors, strict=True)
        ]
    joined: list[torch.Tensor] = grouped_allgather_async(tensors, name, process_set).wait()
    return joined


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Send the tensor of one rank to all ranks.
    Collective.

    Autograd records it: the gradient of the root is the mean of all, and that of others is zero.

    Parameters
    ----------
    tensor : Tensor
        Of the same dtype and shape on all ranks. It is not changed.
    root_rank : int
        The rank whose tensor it is, among all ranks.
    name : str, optional
        As for `allreduce`.
    process_set : ProcessSet
        The ranks.

    Returns
    -------
    Tensor
        A new tensor.

    Raises
    ------
    HorovodInternalError
        As for `allreduce`.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        sent: torch.Tensor = gradients.Broadcast.apply(tensor, root_rank, name, process_set)
    else:
        sent = broadcast_async(tensor, root_rank, name, process_set).wait()
    return sent


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Send the tensor of one rank to all ranks in place, as `broadcast` does; return the tensor.
    Collective.
    """
    sent: torch.Tensor = broadcast_async_(tensor, root_rank, name, process_set).wait()
    return sent


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a part of the tensor to each rank, cut along the first dimension.
    Collective.

    Autograd records it.

    Parameters
    ----------
    tensor : Tensor
        Of the same dtype and shape on all ranks, except for the first dimension.
    splits : Tensor or sequence of int, optional
        How many rows each rank gets, that for rank 0 first; equally many by default.
    name : str, optional
        As for `allreduce`.
    process_set : ProcessSet
        The ranks.

    Returns
    -------
    Tensor, or tuple of Tensor
        The received parts, that of rank 0 first. If `splits` is given, also how many rows came from
        each rank.

    Raises
    ------
    HorovodInternalError
        As for `allreduce`.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        moved, received = gradients.Alltoall.apply(tensor, splits, name, process_set)
    else:
        moved, received = alltoall_async(tensor, splits, name, process_set).wait()
    return moved if splits is None else (moved, received)
