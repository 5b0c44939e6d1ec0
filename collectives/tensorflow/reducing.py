"""Collectives that reduce tensors: allreduce and reducescatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from collectives.background.group import all_or_none
from collectives.compiled.phases import Phases, differentiable, unconverted
from collectives.compiled.tensorflow import gathering, reduce_all, times
from collectives.horovod.arrays import reducescatter_async
from collectives.horovod.compression import checked
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.gradients import GradientOptions
from collectives.horovod.handles import Handle, names
from collectives.horovod.ops import Adasum, Average, ReduceOp, Sum, check_gradient, chosen
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.tensorflow.compression import Compression

__all__ = ["allreduce", "grouped_allreduce", "grouped_reducescatter", "reducescatter"]

Tensor = Any


@unconverted
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce the tensors of all ranks; return the result on all ranks.
    Collective.

    With ``Average`` and ``Sum``, it is differentiable: the gradient is reduced in the same way.

    Parameters
    ----------
    tensor : Tensor, Variable or IndexedSlices
        Of the same shape and dtype on all ranks. Of IndexedSlices, the slices of all ranks are
        joined.
    average : bool, optional
        Deprecated: pass `op`.
    device_dense, device_sparse : str
        Ignored; accepted for compatibility with Horovod.
    compression : Compressor, or codec of `collectives.compression`
        The compression of the tensor.
    op : ReduceOp
        ``Average``, the default, ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``. The mean of
        integers is truncated; that of IndexedSlices of integers is of floating point.
    prescale_factor, postscale_factor : float
        Factors of the tensors, and of the result.
    name : str, optional
        The name of the call. Ranks may make calls with names in different orders.
    process_set : ProcessSet
        The ranks.
    ignore_name_scope : bool
        Ignored; accepted for compatibility with Horovod.

    Returns
    -------
    Tensor or IndexedSlices

    Raises
    ------
    HorovodArgumentError
        If an argument is wrong; nothing was submitted.
    HorovodInternalError
        If the ranks have submitted different things under this name, a rank is lost, or a deadline
        has passed.
    """
    factors = prescale_factor, postscale_factor
    options = GradientOptions(
        chosen(op, average, depth=5), *factors, compression, process_set, name
    )
    (result,) = reduce_all([tensor], options)
    return result


@unconverted
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce several tensors of all ranks, as one message for each dtype.
    Collective.

    It is differentiable, as `allreduce` is.

    Parameters
    ----------
    tensors : sequence of Tensor, Variable or IndexedSlices
        As for `allreduce`; as many on all ranks.
    average, device_dense, device_sparse, compression, op, prescale_factor, postscale_factor
        As for `allreduce`.
    process_set, ignore_name_scope, name
        As for `allreduce`.

    Returns
    -------
    list of Tensor or IndexedSlices

    Raises
    ------
    HorovodInternalError
        As for `allreduce`, if one of them fails.
    """
    factors = prescale_factor, postscale_factor
    options = GradientOptions(
        chosen(op, average, depth=5), *factors, compression, process_set, name
    )
    return reduce_all(tensors, options, [range(len(tensors))] if tensors else None)


@unconverted
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce the tensors of all ranks; return a part of the result, along the first dimension.
    Collective.

    With ``Average`` and ``Sum``, it is differentiable: the gradients of the parts are joined.

    Parameters
    ----------
    tensor : Tensor or Variable
        As for `allreduce`, with at least one dimension. If the ranks do not divide the first one,
        the parts of the first ranks have one row more.
    device_dense, compression, name, process_set, ignore_name_scope
        As for `allreduce`.
    op : ReduceOp
        As for `allreduce`, except for ``Adasum``.
    prescale_factor, postscale_factor : float
        As for `allreduce`.

    Returns
    -------
    Tensor

    Raises
    ------
    HorovodInternalError
        As for `allreduce`.
    """
    options = GradientOptions(op, prescale_factor, postscale_factor, compression, process_set, name)
    return _scattering(Phases(), tensor, options)()


@unconverted
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Tensor]:
    """Reduce several tensors of all ranks; return a part of each.
    Collective.

    It is differentiable, as `reducescatter` is.

    Parameters
    ----------
    tensors : sequence of Tensor or Variable
        As for `reducescatter`; as many on all ranks.
    device_dense, compression, op, process_set, prescale_factor, postscale_factor
        As for `reducescatter`.
    ignore_name_scope, name
        As for `reducescatter`.

    Returns
    -------
    list of Tensor

    Raises
    ------
    HorovodInternalError
        As for `reducescatter`, if one of them fails.
    """
    phases = Phases()
    options = GradientOptions(op, prescale_factor, postscale_factor, compression, process_set)
    with all_or_none():
        finish = [
            _scattering(phases, each, replace(options, name=part))
            for part, each in zip(names(name, len(tensors)), tensors, strict=True)
        ]
    return [each() for each in finish]


def _scattering(phases: Phases, tensor: Any, options: GradientOptions) -> Callable[[], Tensor]:
    """Submit a tensor; return a function that waits for this rank's part."""
    x, ctx = checked(options.compression).compress(tf.convert_to_tensor(tensor))
    op, process_set = chosen(options.op, None), options.process_set
    scales = options.prescale, options.postscale
    if op == Adasum:
        raise HorovodArgumentError("op is Adasum, which reducescatter does not support")
    if x.shape.rank == 0:
        raise HorovodArgumentError("the tensor has no dimensions, and reducescatter cuts the first")
    key = phases.named(options.name, "Reducescatter", x)

    def start(arrays: Any) -> Handle:
        array = np.asarray(arrays[0], order="C")
        return reducescatter_async(array, key, op, *scales, process_set)

    part = phases.submit(start, [x])

    def waited(x: Tensor) -> Any:
        shape = tf.TensorShape(None) if x.shape.rank is None else [None, *x.shape[1:]]
        (made,) = phases.wait(part, [(x.dtype, shape)])

        def grad(back: Tensor) -> Tensor:
            check_gradient("reducescatter", op)
            factor = scales[0] * scales[1] / (process_set.comm().size if op == Average else 1)
            return gathering(Phases(), times(back, factor), None, process_set, Sum)()

        return made, grad

    return lambda: options.compression.decompress(differentiable(waited)(x), ctx)
