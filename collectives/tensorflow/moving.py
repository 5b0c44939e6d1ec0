"""Collectives that move tensors: allgather, broadcast, alltoall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from collectives.background.group import all_or_none
from collectives.compiled.buckets import aligned
from collectives.compiled.phases import (
    WITHOUT_NUMBERS,
    Phases,
    differentiable,
    listed,
    unconverted,
)
from collectives.compiled.tensorflow import Finish, gathering, reduced
from collectives.horovod.arrays import alltoall_async, broadcast_async
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.gradients import GradientOptions
from collectives.horovod.handles import Handle, names
from collectives.horovod.ops import Average
from collectives.horovod.process_sets import ProcessSet, global_process_set

__all__ = ["allgather", "alltoall", "broadcast", "broadcast_", "grouped_allgather"]

Tensor = Any


@unconverted
def allgather(
    tensor: Tensor,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Join the tensors of all ranks along the first dimension.
    Collective.

    It is differentiable: the gradient is the part of this rank of the mean of all, as in Horovod.

    Parameters
    ----------
    tensor : Tensor
        Of the same dtype and shape on all ranks, except for the first dimension.
    name : str, optional
        As for `allreduce`.
    ignore_name_scope : bool
        Ignored; accepted for compatibility with Horovod.
    process_set : ProcessSet
        The ranks.

    Returns
    -------
    Tensor

    Raises
    ------
    HorovodInternalError
        As for `allreduce`.
    """
    return gathering(Phases(), tf.convert_to_tensor(tensor), name, process_set)()


@unconverted
def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Join several tensors of all ranks, each along the first dimension.
    Collective.

    It is differentiable.

    Parameters
    ----------
    tensors : sequence of Tensor
        As for `allgather`; as many on all ranks.
    name, ignore_name_scope, process_set
        As for `allgather`.

    Returns
    -------
    list of Tensor

    Raises
    ------
    HorovodInternalError
        As for `allgather`, if one of them fails.
    """
    phases = Phases()
    with all_or_none():
        finish = [
            gathering(phases, tf.convert_to_tensor(each), part, process_set)
            for part, each in zip(names(name, len(tensors)), tensors, strict=True)
        ]
    return [each() for each in finish]


@unconverted
def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Send the tensor of one rank to all ranks.
    Collective.

    It is differentiable: the gradient of the root is the mean of all, as in Horovod, and that of
    others is zero.

    Parameters
    ----------
    tensor : Tensor
        Of the same dtype and shape on all ranks.
    root_rank : int
        The root, by its number among all ranks.
    name : str, optional
        As for `allreduce`.
    ignore_name_scope : bool
        Ignored; accepted for compatibility with Horovod.
    process_set : ProcessSet
        The ranks.

    Returns
    -------
    Tensor

    Raises
    ------
    HorovodInternalError
        As for `allreduce`.
    """
    phases, x = Phases(), tf.convert_to_tensor(tensor)
    key = phases.named(name, "Broadcast", x)
    finish = sending(phases, x, root_rank, key, process_set)

    def waited(x: Tensor) -> Any:
        def grad(back: Tensor) -> Tensor:
            options = GradientOptions(Average, process_set=process_set, name=None)
            (mean,) = reduced([back], options)
            is_root = process_set.comm().rank == process_set.place(root_rank)
            # On all ranks the result depends on the mean, so that they all compute its gradient.
            return tf.where(is_root, mean, tf.zeros_like(mean))

        return finish(), grad

    return differentiable(waited)(x)


def sending(
    phases: Phases, x: Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> Finish:
    """Submit a tensor for a broadcast; return a function that waits for the result. It is not
    differentiable. Collective.
    """
    comm, root = process_set.comm(), process_set.place(root_rank)
    if comm.size == 1:
        return lambda: tf.identity(x)

    def start(arrays: Any) -> Handle:
        source = arrays[0]
        out = aligned(source.nbytes).view(source.dtype).reshape(source.shape)
        if comm.rank == root:
            out[...] = source
        return broadcast_async(out, root_rank, name, process_set)

    part = phases.submit(start, [x])
    return lambda: phases.wait(part, [(x.dtype, x.shape)])[0]


@unconverted
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Send variables of one rank to all ranks, in place.
    Collective.

    Parameters
    ----------
    variables : sequence of Variable
        Of the same dtypes and shapes on all ranks.
    root_rank : int
        The root, by its number among all ranks.
    name : str, optional
        As for `allreduce`.
    process_set : ProcessSet
        The ranks.

    Returns
    -------
    list of Tensor
        Their values.

    Raises
    ------
    HorovodInternalError
        As for `allreduce`.
    """
    phases, tensors = Phases(), numbers(variables)
    key = phases.named(name, "Broadcast", *tensors)
    finish = [
        sending(phases, each, root_rank, part, process_set)
        for part, each in zip(names(key, len(tensors)), tensors, strict=True)
    ]
    values = [each() for each in finish]
    made = assigned(variables, values)
    with tf.control_dependencies([] if tf.executing_eagerly() else made):
        return [tf.identity(each) for each in values]


def numbers(variables: Sequence[Any]) -> list[Tensor]:
    """Return the values of some variables; raise an error that names one of another kind, before
    any of them is submitted. Local.
    """
    for each in variables:
        dtype = tf.as_dtype(each.dtype)
        if dtype in WITHOUT_NUMBERS:
            raise HorovodArgumentError(
                f"the variable {each.name} is of dtype {dtype.name}, and only numbers are sent: "
                f"leave it out, and pass its value to broadcast_object"
            )
    return [tf.convert_to_tensor(each) for each in variables]


def assigned(variables: Sequence[Any], values: Sequence[Tensor]) -> list[Any]:
    """Set some variables; return the operations in a graph of TensorFlow 1. Local."""
    made = [variable.assign(value) for variable, value in zip(variables, values, strict=True)]
    return [each for each in made if each is not None]


@unconverted
def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a part of the tensor to each rank, cut along the first dimension.
    Collective.

    It is differentiable.

    Parameters
    ----------
    tensor : Tensor
        Of the same dtype and shape on all ranks, except for the first dimension.
    splits : Tensor or sequence of int, optional
        The number of rows for each rank, that for rank 0 first; equally many by default.
    name : str, optional
        As for `allreduce`.
    ignore_name_scope : bool
        Ignored; accepted for compatibility with Horovod.
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
    x = tf.convert_to_tensor(tensor)
    if x.shape.rank == 0:
        raise HorovodArgumentError("the tensor has no dimensions, and alltoall cuts the first")
    sizes = None if splits is None else tf.convert_to_tensor(splits)
    phases = Phases()
    key = phases.named(name, "Alltoall", x)

    def start(arrays: Any) -> Handle:
        counts = None if sizes is None else arrays[1]
        return alltoall_async(np.asarray(arrays[0], order="C"), counts, key, process_set)

    part = phases.submit(start, [x] if sizes is None else [x, sizes])

    def waited(x: Tensor) -> Any:
        shape = tf.TensorShape(None) if x.shape.rank is None else [None, *x.shape[1:]]
        size = process_set.comm().size
        moved, received = phases.wait(part, [(x.dtype, shape), (tf.int64, [size])])

        def grad(back: Tensor, unused: Any = None) -> Tensor:
            returned, _ = alltoall(back, received, process_set=process_set)
            left = tf.shape(x)[0] - tf.shape(returned)[0]  # rows that were not sent
            return tf.pad(returned, [[0, left], *[[0, 0]] * (x.shape.rank - 1)])

        return (moved, received), grad

    moved, received = listed(differentiable(waited)(x))
    return moved if sizes is None else (moved, tf.cast(received, sizes.dtype))
