"""The blocking calls: each submits its tensors, waits, and is recorded by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import Function

from collectives.background.engine import at_once
from collectives.horovod.compression import checked
from collectives.horovod.handles import Handle, grouped, names
from collectives.horovod.ops import Average, ReduceOp, Sum, check_gradient, chosen
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.torch.asynchronous import (
    Tensors,
    allgather_async,
    alltoall_async,
    broadcast_async,
    broadcast_async_,
    checked_tensor,
    grouped_allgather_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    reducescatter_async,
    start_allreduce,
)
from collectives.torch.compression import Compression, Compressor

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


class _Recorded(Function):
    """A call for autograd: `start` takes the tensors, and `back` the gradients of the results.

    `back` makes recorded calls, for second derivatives, and the same ones on all ranks.
    """

    @staticmethod
    def forward(ctx: Any, start: Any, back: Any, *tensors: torch.Tensor) -> Any:
        ctx.back = back
        return start(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, None, *ctx.back(*grads)


def _is_recorded(tensors: Tensors) -> bool:
    """Return whether autograd needs a gradient; raise an error unless all are tensors."""
    for x in tensors:
        if checked_tensor(x).requires_grad:
            is_enabled: bool = torch.is_grad_enabled()
            return is_enabled
    return False


def _recorded(start: Callable[..., Any], back: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    """Call `start`; register `back` with autograd if a gradient is needed."""
    if _is_recorded(tensors):
        return _Recorded.apply(start, back, *tensors)
    return start(*tensors)


def _sent(compression: Any) -> tuple[Any, dict[str, Any]]:
    """Return the compressor of an allreduce, and the options of its submission, which take a codec
    of the library.
    """
    if hasattr(compression, "compress"):
        return compression, {}
    return Compression.none, {"compression": compression}


def _gradient_of(name: str | None) -> str | None:
    return None if name is None else f"gradient of {name}"


def _reduced(
    tensor: torch.Tensor,
    is_in_place: bool,
    name: str | None,
    terms: tuple[ReduceOp, float, float, ProcessSet],
) -> torch.Tensor:
    with at_once(terms[-1].comm()):
        result: torch.Tensor = start_allreduce(tensor, is_in_place, name, terms).wait()
    return result


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce the tensors of all ranks; return the result on all ranks.
    Collective.

    Autograd records it, with ``Average`` and ``Sum``: the gradient is reduced in the same way.

    Parameters
    ----------
    tensor : Tensor
        Of the same shape and dtype on all ranks. It is not changed.
    average : bool, optional
        Deprecated: pass `op`.
    name : str, optional
        The name of the call. Ranks may make calls with names in different orders.
    compression : Compressor, or codec of `collectives.compression`
        The compression of the tensor and of its gradient.
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
    TypeError
        If `tensor` is not a tensor.
    HorovodArgumentError
        If another argument is wrong; nothing was submitted.
    HorovodInternalError
        If the ranks have submitted different things under this name, a rank is lost, or a deadline
        has passed.
    """
    terms = chosen(op, average), prescale_factor, postscale_factor, process_set
    if compression is Compression.none and not _is_recorded((tensor,)):  # a fast path
        return _reduced(tensor, False, name, terms)
    compressor, options = _sent(compression)
    if compressor is not Compression.none:
        checked_tensor(tensor)
    small, ctx = compressor.compress(tensor)

    def reduce(x: torch.Tensor, name: str | None) -> torch.Tensor:
        def back(grad: torch.Tensor) -> Any:
            check_gradient("allreduce", terms[0])
            return [reduce(grad, _gradient_of(name))]

        result: torch.Tensor = _recorded(
            lambda x: start_allreduce(x, False, name, terms, **options).wait(), back, x
        )
        return result

    return compressor.decompress(reduce(small, name), ctx)


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
    terms = chosen(op, average), prescale_factor, postscale_factor, process_set
    return _reduced(tensor, True, name, terms)


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors of all ranks; small ones are sent together.
    Collective.

    Autograd records it, as `allreduce`.

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
    terms = chosen(op, average), prescale_factor, postscale_factor, process_set
    compressor, options = _sent(compression)
    pairs = [compressor.compress(checked_tensor(each)) for each in tensors]

    def start(x: torch.Tensor, part: str | None) -> Handle:
        return start_allreduce(x, False, part, terms, **options)

    def reduce(xs: Tensors, name: str | None) -> Any:
        def back(*grads: torch.Tensor) -> Any:
            check_gradient("grouped_allreduce", terms[0])
            return reduce(grads, _gradient_of(name))

        return _recorded(lambda *xs: tuple(grouped(name, xs, start).wait()), back, *xs)

    results = reduce([each for each, _ in pairs], name)
    return [compressor.decompress(each, ctx) for each, (_, ctx) in zip(results, pairs, strict=True)]


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

    Autograd records it, with ``Average`` and ``Sum``: the gradients of the parts are joined.

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
    small, ctx = checked(compression).compress(checked_tensor(tensor))
    terms = op, process_set, prescale_factor, postscale_factor

    def back(grad: torch.Tensor) -> Any:
        check_gradient("reducescatter", chosen(op, None))
        size = process_set.comm().size if op == Average else 1
        factor = prescale_factor * postscale_factor / size
        return [_joined(grad * factor, None, process_set, Sum)]

    result = _recorded(lambda x: reducescatter_async(x, name, *terms).wait(), back, small)
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

    Autograd records it, as `reducescatter`.

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
    if _is_recorded(tensors):
        return [
            reducescatter(each, part, *terms[1:])
            for part, each in zip(names(name, len(tensors)), tensors, strict=True)
        ]
    pairs = [checked(compression).compress(checked_tensor(each)) for each in tensors]
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

    Autograd records it: the gradient is the part of this rank of the mean of all, as in Horovod.

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
    return _joined(tensor, name, process_set, Average)


def _joined(
    tensor: torch.Tensor, name: str | None, process_set: ProcessSet, back_op: ReduceOp
) -> torch.Tensor:
    """Join the tensors of all ranks; `back_op` reduces the gradients."""
    rows = len(tensor) if checked_tensor(tensor).dim() else 0

    def back(grad: torch.Tensor) -> Any:
        """Return this rank's rows of the reduced gradients."""
        every = allgather_async(torch.tensor([rows]), None, process_set).wait()
        total = allreduce(grad, op=back_op, process_set=process_set)
        first = int(every[: process_set.comm().rank].sum())
        return [total.narrow(0, first, rows)]

    joined: torch.Tensor = _recorded(
        lambda x: allgather_async(x, name, process_set).wait(), back, tensor
    )
    return joined


def grouped_allgather(
    tensors: Tensors,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Join several tensors of all ranks, each along the first dimension.
    Collective.

    Autograd records it, as `allgather`.

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
    if _is_recorded(tensors):
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

    Autograd records it: the gradient of the root is the mean of all, as in Horovod, and that of
    others is zero.

    Parameters
    ----------
    tensor : Tensor
        Of the same dtype and shape on all ranks. It is not changed.
    root_rank : int
        The root, by its number among all ranks.
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

    def back(grad: torch.Tensor) -> Any:
        mean = allreduce(grad, op=Average, process_set=process_set)
        is_root = process_set.comm().rank == process_set.place(root_rank)
        # On all ranks the result depends on the mean, so that they all compute its gradient.
        return [torch.where(torch.tensor(is_root, device=mean.device), mean, 0.0)]

    sent: torch.Tensor = _recorded(
        lambda x: broadcast_async(x, root_rank, name, process_set).wait(), back, tensor
    )
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
        The number of rows for each rank, that for rank 0 first; equally many by default.
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
    rows = len(tensor) if checked_tensor(tensor).dim() else 0

    def back(grad: torch.Tensor, _: Any) -> Any:
        """Return the gradients of the rows that this rank has sent, and zeros for others."""
        returned, _ = alltoall(grad, received, None, process_set)
        rest = returned.new_zeros(rows - len(returned), *returned.shape[1:])
        return [torch.cat((returned, rest)) if len(rest) else returned]

    moved, received = _recorded(
        lambda x: alltoall_async(x, splits, name, process_set).wait(), back, tensor
    )
    return moved if splits is None else (moved, received)
