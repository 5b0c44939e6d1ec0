"""Tensors and IndexedSlices of TensorFlow, reduced over the ranks: eagerly, and in a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from collectives.background.group import all_or_none
from collectives.compiled.buckets import Bucket, buckets
from collectives.compiled.phases import Phases, differentiable, listed, unconverted
from collectives.horovod.arrays import allgather_async
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.gradients import Framework, GradientOptions, Places
from collectives.horovod.handles import Handle
from collectives.horovod.ops import Adasum, Average, ReduceOp, Sum, check_gradient
from collectives.horovod.process_sets import ProcessSet

Tensor = Any
Finish = Callable[[], Any]


@unconverted
def reduced(tensors: Sequence[Tensor], options: GradientOptions) -> list[Tensor]:
    """Reduce some tensors of all ranks.
    Collective.

    It is differentiable: gradients are reduced in the same way. In a `tf.function`, tensors
    that are computed first should come last, as the gradients of a model do.
    """
    return reduction(Phases(), tensors, options)()


def reduction(
    phases: Phases,
    tensors: Sequence[Tensor],
    options: GradientOptions,
    groups: Sequence[Places] | None = None,
) -> Callable[[], list[Tensor]]:
    """Submit tensors, as `reduced` does; return a function that waits and returns the results.
    Collective.
    """
    dense = [tf.convert_to_tensor(each) for each in tensors]
    if options.is_alone or not dense:
        factor = options.prescale * options.postscale
        return lambda: dense if factor == 1.0 else [times(each, factor) for each in dense]
    dense, restored = options.compressed(dense)
    name = phases.named(options.name, "Allreduce", *dense)
    several = buckets([kind_of(each) for each in dense], options, name, groups, LEAST)
    numbers = [phases.submit(*phases.packing(parts, dense)) for parts in several]

    def finish() -> list[Tensor]:
        results: list[Tensor] = [None] * len(dense)
        for parts, number in zip(several, numbers, strict=True):
            places = [k for part in parts for k in part.places]
            mine = [dense[k] for k in places]
            made = _waited(phases, number, parts, mine, options, name)
            for place, each in zip(places, made, strict=True):
                results[place] = each
        return restored(results)

    return finish


def _waited(
    phases: Phases,
    number: int,
    parts: list[Bucket],
    tensors: list[Tensor],
    options: GradientOptions,
    name: str | None,
) -> list[Tensor]:
    """Return the results of some buckets, whose gradients are reduced in the same way."""

    def grad(*grads: Tensor) -> list[Tensor]:
        check_gradient("allreduce", options.op)
        behind = None if name is None else f"gradient of {name}"
        return reduced(grads, replace(options, name=behind, labels=None, compression=options.codec))

    def waited(*inputs: Tensor) -> Any:
        return phases.unpacked(number, parts, inputs), grad

    return listed(differentiable(waited)(*tensors))


# The least bytes for which a callback is worth its time. The processor's time for a step with
# 161 gradients of 25.6 million elements together was 119 ms with 1 MiB, and 98 ms with 4 MiB. That
# is as much as with more, and as with one allreduce_many of as many arrays (2 cores of an EPYC of
# family 25, 2026-11-23, other programs beside; the largest case of
# `benchmarks/measure_tensorflow.py`).
LEAST = 4 << 20


def times(x: Tensor, factor: float) -> Tensor:
    """Return a tensor times a factor, of the dtype of the tensor."""
    if x.dtype.is_floating or x.dtype.is_complex:
        return x * tf.cast(factor, x.dtype)
    return tf.cast(tf.cast(x, tf.float64) * factor, x.dtype)


class Kind(NamedTuple):
    """The properties of a tensor that are known before it is computed."""

    dtype: Any
    nbytes: int | None
    shape: tuple[int, ...] | None


def kind_of(x: Tensor) -> Kind:
    """Return the known properties of a tensor before it is computed. Local."""
    if not x.shape.is_fully_defined():
        return Kind(x.dtype, None, None)
    shape = tuple(x.shape)
    return Kind(x.dtype, math.prod(shape) * x.dtype.size, shape)


# -- IndexedSlices ---------------------------------------------------------------------------------


def reduce_all(
    tensors: Sequence[Tensor], options: GradientOptions, groups: Sequence[Places] | None = None
) -> list[Tensor]:
    """Reduce tensors and IndexedSlices of all ranks. Collective."""
    phases = Phases()
    sparse = {k for k, each in enumerate(tensors) if isinstance(each, tf.IndexedSlices)}
    if sparse and options.op not in (Average, Sum):
        remedy = ": pass sparse_as_dense=True" if options.op == Adasum else ""
        raise NotImplementedError(
            f"IndexedSlices are reduced by Average and Sum only, not by {options.op.name}{remedy}"
        )
    dense = [k for k in range(len(tensors)) if k not in sparse]
    if groups is not None and sparse:
        place = {k: new for new, k in enumerate(dense)}
        groups = [[place[k] for k in group if k in place] for group in groups]
    with all_or_none():
        finish = reduction(phases, [tensors[k] for k in dense], options, groups)
        joined = {k: _joining(phases, tensors[k], options, k) for k in sorted(sparse, reverse=True)}
    results = dict(zip(dense, finish(), strict=True))
    return [joined[k]() if k in sparse else results[k] for k in range(len(tensors))]


def _joining(phases: Phases, slices: Any, options: GradientOptions, place: int) -> Finish:
    """Submit the slices without compression, as Horovod does; return a function that waits for the
    slices of all ranks and returns them.
    """
    name = None if options.name is None else f"{options.name}, slices {place + 1}"
    parts = [None, None] if name is None else [f"{name}, values", f"{name}, indices"]
    values = gathering(phases, slices.values, parts[0], options.process_set, Sum)
    indices = gathering(phases, slices.indices, parts[1], options.process_set)
    factor = options.prescale * options.postscale

    def finish() -> Any:
        joined = values()
        if factor != 1.0:
            joined = times(joined, factor)
        if options.op == Average:
            joined /= tf.cast(options.process_set.comm().size, joined.dtype)
        return tf.IndexedSlices(joined, indices(), slices.dense_shape)

    return finish


def gathering(
    phases: Phases,
    tensor: Tensor,
    name: str | None,
    process_set: ProcessSet,
    back_op: ReduceOp = Average,
) -> Finish:
    """Submit a tensor, to be joined along the first dimension; return a function that waits for the
    result. Its gradient is reduced by `back_op`: Horovod's allgather averages it. Collective.
    """
    if tensor.shape.rank == 0:
        raise HorovodArgumentError("the tensor has no dimensions, and allgather joins the first")
    if process_set.comm().size == 1:
        return lambda: tensor
    key = phases.named(name, "Allgather", tensor)

    def start(arrays: Any) -> Handle:
        return allgather_async(np.asarray(arrays[0], order="C"), key, process_set)

    part = phases.submit(start, [tensor])

    def waited(x: Tensor) -> Any:
        shape = tf.TensorShape(None) if x.shape.rank is None else [None, *x.shape[1:]]
        (joined,) = phases.wait(part, [(x.dtype, shape)])

        def grad(back: Tensor) -> Tensor:
            rows = tf.shape(x)[:1]
            every = gathering(Phases(), rows, None, process_set)()
            options = GradientOptions(back_op, process_set=process_set, name=None)
            (total,) = reduced([back], options)
            first = tf.reduce_sum(every[: process_set.comm().rank])
            return total[first : first + rows[0]]

        return joined, grad

    return lambda: differentiable(waited)(tensor)


class TensorFlow(Framework):
    """TensorFlow, and Keras on it: gradients of embeddings are slices, and steps are graphs."""

    def reduced(
        self, tensors: list[Any], options: GradientOptions, groups: Sequence[Places] | None
    ) -> list[Any]:
        return reduce_all(tensors, options, groups)

    def key(self, variable: Any) -> object:
        inner = getattr(variable, "value", variable)  # one of Keras has one of TensorFlow
        return id(variable if callable(inner) else inner)

    def prepared(self, gradient: Any, number: int, as_dense: bool) -> Any:
        if isinstance(gradient, tf.IndexedSlices) and not as_dense:
            return gradient
        try:
            return tf.convert_to_tensor(gradient)
        except (TypeError, ValueError) as error:
            raise HorovodArgumentError(
                f"the gradient of source {number} is a {type(gradient).__name__}, and only tensors "
                f"and IndexedSlices are reduced"
            ) from error

    def divided(self, gradient: Any, divisor: int) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient / divisor
        values = gradient.values / divisor
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)

    def branch(self, condition: Any, yes: Callable[[], object], no: Callable[[], object]) -> None:
        def with_result(function: Callable[[], object]) -> Callable[[], Any]:
            def run() -> Any:
                function()
                return tf.constant(0)

            return run

        tf.cond(condition, with_result(yes), with_result(no))

    def unconverted(self, function: Any) -> Any:
        return unconverted(function)
