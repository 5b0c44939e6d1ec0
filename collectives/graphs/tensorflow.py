"""Tensors of TensorFlow, reduced over the ranks: eagerly, and in a `tf.function`.

In a function, NumPy functions are called back in the order of the program, one at a time. Each
bucket is submitted by one of them as soon as its tensors are computed, and waited for by another
one behind all of these. They see the memory of the tensors, and TensorFlow takes over that of the
results.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from collectives.errors import CollectivesError
from collectives.graphs.buckets import Call, Kind, buckets
from collectives.graphs.kept import text_of
from collectives.graphs.terms import Terms
from collectives.horovod.errors import HorovodArgumentError, HorovodInternalError

__all__ = ["array", "callback", "reduced", "tensor"]

Array = NDArray[Any]
Tensor = Any


@tf.autograph.experimental.do_not_convert
def reduced(tensors: Sequence[Tensor], terms: Terms) -> list[Tensor]:
    """Reduce some tensors of all ranks.
    Collective.

    It is differentiable: gradients are reduced in the same way. In a `tf.function`, what is
    computed first should come last, as the gradients of a model do.

    Parameters
    ----------
    tensors : sequence of Tensor
        Dense; of the same dtypes and shapes on all ranks.
    terms : Terms

    Returns
    -------
    list of Tensor

    Raises
    ------
    HorovodInternalError
        If a collective fails.
    """
    dense = [tf.convert_to_tensor(each) for each in tensors]
    if not dense:
        return []
    if terms.is_alone:
        factor = terms.prescale * terms.postscale
        return dense if factor == 1.0 else [_times(each, factor) for each in dense]
    if not isinstance(terms.compression, type):
        return _reduced(dense, terms)
    pairs = [terms.compression.compress(each) for each in dense]
    results = _reduced([each for each, _ in pairs], terms._replace(compression=None))
    return [
        terms.compression.decompress(each, ctx)
        for each, (_, ctx) in zip(results, pairs, strict=True)
    ]


def _times(x: Tensor, factor: float) -> Tensor:
    if x.dtype.is_floating or x.dtype.is_complex:
        return x * tf.cast(factor, x.dtype)
    return tf.cast(tf.cast(x, tf.float64) * factor, x.dtype)


def _reduced(tensors: list[Tensor], terms: Terms) -> list[Tensor]:
    if tf.executing_eagerly():

        @tf.custom_gradient
        def at_once(*inputs: Tensor) -> Any:
            return _at_once(inputs, terms), lambda *grads: _reduced(list(grads), _behind(terms))

        made = at_once(*tensors)
        return list(made) if isinstance(made, list | tuple) else [made]
    return _in_phases(tensors, terms)


def _behind(terms: Terms) -> Terms:
    """Return how the gradients of what is reduced are reduced."""
    return terms._replace(name=f"gradient of {terms.name}")


def _at_once(tensors: Sequence[Tensor], terms: Terms) -> list[Tensor]:
    """Reduce tensors that have values."""
    parts = buckets([_kind(each) for each in tensors], terms)
    call, number = Call(parts, terms), 0
    for which, part in enumerate(parts):
        number = call.submit(number, which, [array(tensors[k]) for k in part.places])
    results: list[Tensor] = [None] * len(tensors)
    for which, part in enumerate(parts):
        for place, result in zip(part.places, call.wait(number, which), strict=True):
            results[place] = tensor(result)
    return results


def _in_phases(tensors: list[Tensor], terms: Terms) -> list[Tensor]:
    """Reduce tensors of a graph."""
    check_graph()
    terms = terms._replace(name=_numbered(terms.name))
    parts = buckets([_kind(each) for each in tensors], terms)
    call = Call(parts, terms)
    number = tf.constant(0, tf.int64)
    for which, part in enumerate(parts):
        number = _submission(call, which, number, [tensors[k] for k in part.places])
    results: list[Tensor] = [None] * len(tensors)
    for which, part in enumerate(parts):
        made = _waiting(call, which, number, [tensors[k] for k in part.places])
        for place, each in zip(part.places, made, strict=True):
            results[place] = each
    return results


def _submission(call: Call, which: int, number: Tensor, inputs: list[Tensor]) -> Tensor:
    """Return the number of the step, when a bucket is submitted."""

    def submit(number: Any, *arrays: Array) -> Any:
        return np.int64(call.submit(int(number), which, arrays))

    inputs = [tf.stop_gradient(each) for each in inputs]
    made = tf.numpy_function(callback(submit), [number, *inputs], tf.int64)
    made.set_shape(())
    return made


def _waiting(call: Call, which: int, number: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Return the results of a bucket."""

    def wait(number: Any) -> list[Array]:
        return call.wait(int(number), which)

    @tf.custom_gradient
    def waited(*inputs: Tensor) -> Any:
        dtypes = [each.dtype for each in inputs]
        made = tf.numpy_function(callback(wait), [number], dtypes)
        made = list(made) if isinstance(made, list | tuple) else [made]
        for each, like in zip(made, inputs, strict=True):
            each.set_shape(like.shape)
        return made, lambda *grads: _reduced(list(grads), _behind(call.terms))

    made = waited(*inputs)
    return list(made) if isinstance(made, list | tuple) else [made]


# How many calls of a name a graph has.
_names: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


def _numbered(name: str) -> str:
    """Return a name that no other call in the graph has, and the same each time it is traced."""
    graph = tf.compat.v1.get_default_graph()
    counts = _names.setdefault(graph, Counter())
    counts[name] += 1
    return name if counts[name] == 1 else f"{name} ({counts[name]})"


def _kind(x: Tensor) -> Kind:
    shape = tuple(x.shape) if x.shape.is_fully_defined() else None
    return Kind(x.dtype.name, x.dtype.size, shape)


# -- arrays, tensors, and errors -------------------------------------------------------------------


def array(x: Tensor) -> Array:
    """Return a NumPy array over the memory of a tensor that has a value. Local.

    Parameters
    ----------
    x : Tensor
    """
    return np.asarray(x)


def tensor(x: Array) -> Tensor:
    """Return a tensor of an array that nothing else changes, over its memory if possible. Local.

    Parameters
    ----------
    x : array
    """
    if x.dtype.kind in "biuf" and x.flags.writeable:
        return tf.experimental.dlpack.from_dlpack(x.__dlpack__())
    return tf.convert_to_tensor(x)


def check_graph() -> None:
    """Raise an error if the graph that is being traced is for XLA. Local.

    Raises
    ------
    HorovodArgumentError
        With the remedy.
    """
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        within = graph._get_control_flow_context()
        while within is not None:
            if within.IsXLAContext():
                raise HorovodArgumentError(
                    "this function is compiled by XLA, which cannot call the library: pass "
                    "jit_compile=False to tf.function, or to model.compile"
                )
            within = within.outer_context
        graph = getattr(graph, "outer_graph", None)


def callback(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for `tf.numpy_function` whose errors can be found by their text. Local.

    Parameters
    ----------
    function : callable
    """

    def called(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (HorovodInternalError, CollectivesError, NotImplementedError) as error:
            text = text_of(error)
        raise RuntimeError(text)  # without the frames of the library

    return called
