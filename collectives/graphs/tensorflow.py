"""Tensors of TensorFlow, reduced over the ranks: eagerly, and in a `tf.function`.

In a function, NumPy functions are called back in the order of the program, one at a time. Each
collective is submitted by one of them as soon as its tensors are computed, and waited for by
another one behind those. They see the memory of the tensors, and TensorFlow takes over that of the
results.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from collectives.errors import CollectivesError
from collectives.graphs import raising
from collectives.graphs.buckets import ALIGNMENT, Groups, Kind, buckets
from collectives.graphs.calls import Call, Start
from collectives.graphs.kept import text_of
from collectives.graphs.terms import Terms
from collectives.horovod.errors import HorovodArgumentError, HorovodInternalError

__all__ = ["Like", "Phases", "asked", "kind_of", "reduced", "reduction", "unconverted"]

Array = NDArray[Any]
Tensor = Any
Like = tuple[Any, Any]  # the dtype and the shape of a tensor, as far as it is known

F = TypeVar("F", bound=Callable[..., Any])

raising.install()


def unconverted(function: F) -> F:
    """Decorate a function that AutoGraph leaves as it is. Local.

    Parameters
    ----------
    function : callable
    """
    return cast(F, tf.autograph.experimental.do_not_convert(function))


@unconverted
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
    return reduction(Phases(), tensors, terms)()


def reduction(
    phases: Phases, tensors: Sequence[Tensor], terms: Terms, groups: Groups | None = None
) -> Callable[[], list[Tensor]]:
    """Submit tensors, as `reduced` does; return a function that waits and returns the results.
    Collective.

    Parameters
    ----------
    phases : Phases
        With what else is submitted before any of it is waited for.
    tensors, terms
        As for `reduced`.
    groups : sequence of sequence of int, optional
        As for `buckets`.
    """
    dense = [tf.convert_to_tensor(each) for each in tensors]
    if terms.is_alone or not dense:
        factor = terms.prescale * terms.postscale
        return lambda: dense if factor == 1.0 else [_times(each, factor) for each in dense]
    compressor: Any = terms.compression if isinstance(terms.compression, type) else None
    pairs = [(each, None) for each in dense]
    if compressor is not None:
        pairs = [compressor.compress(each) for each in dense]
        dense = [each for each, _ in pairs]
    inner = terms._replace(
        name=None if terms.name is None else phases.named(terms.name), compression=terms.codec
    )
    parts = buckets([kind_of(each) for each in dense], inner, groups)
    numbers = [phases.submit(part.start, [dense[k] for k in part.places]) for part in parts]

    def finish() -> list[Tensor]:
        results: list[Tensor] = [None] * len(dense)
        for part, number in zip(parts, numbers, strict=True):
            inputs = [dense[k] for k in part.places]
            made = _waited(phases, number, inputs, inner)
            for place, each in zip(part.places, made, strict=True):
                results[place] = each
        if compressor is None:
            return results
        return [
            compressor.decompress(each, ctx) for each, (_, ctx) in zip(results, pairs, strict=True)
        ]

    return finish


def _times(x: Tensor, factor: float) -> Tensor:
    if x.dtype.is_floating or x.dtype.is_complex:
        return x * tf.cast(factor, x.dtype)
    return tf.cast(tf.cast(x, tf.float64) * factor, x.dtype)


def _waited(phases: Phases, number: int, inputs: list[Tensor], terms: Terms) -> list[Tensor]:
    """Return the results of a bucket, whose gradients are reduced in the same way."""
    behind = terms._replace(name=None if terms.name is None else f"gradient of {terms.name}")

    def waited(*inputs: Tensor) -> Any:
        made = phases.wait(number, [(each.dtype, each.shape) for each in inputs])
        return made, lambda *grads: reduced(grads, behind)

    return listed(tf.custom_gradient(waited)(*inputs))


def listed(made: Any) -> list[Tensor]:
    """Return the result of an operation as a list, also where it is one tensor. Local.

    Parameters
    ----------
    made : Tensor, or list or tuple of Tensor
    """
    return list(made) if isinstance(made, list | tuple) else [made]


def kind_of(x: Tensor) -> Kind:
    """Return what is known of a tensor before it is computed, `x`. Local."""
    shape = tuple(x.shape) if x.shape.is_fully_defined() else None
    return Kind(x.dtype.name, x.dtype.size, shape)


class Phases:
    """Collectives that are submitted first, and then waited for: at once, or in a graph."""

    def __init__(self) -> None:
        self._call = Call()
        self._is_eager = tf.executing_eagerly()
        self._number: Any = 0  # of the step: a tensor in a graph
        if not self._is_eager:
            _check_graph()

    def named(self, name: str) -> str:
        """Return a name that no other call in the graph has, the same each time that it is traced.
        Local.

        Parameters
        ----------
        name : str
        """
        if self._is_eager:
            return name
        counts = _names.setdefault(tf.compat.v1.get_default_graph(), Counter())
        counts[name] += 1
        return name if counts[name] == 1 else f"{name} ({counts[name]})"

    def submit(self, start: Start, inputs: Sequence[Tensor]) -> int:
        """Submit some tensors; return a number for `wait`. Collective.

        Parameters
        ----------
        start : callable
            It submits the arrays that it is given, which it must not write.
        inputs : sequence of Tensor
        """
        part, call = self._call.add(start), self._call
        if self._is_eager:
            self._number = call.submit(self._number, part, [_array(each) for each in inputs])
            return part

        def submit(number: Any, *arrays: Array) -> Any:
            return np.int64(call.submit(int(number), part, arrays))

        before = tf.constant(0, tf.int64) if part == 0 else self._number
        inputs = [tf.stop_gradient(each) for each in inputs]
        self._number = tf.numpy_function(_called(submit), [before, *inputs], tf.int64)
        self._number.set_shape(())
        return part

    def wait(self, part: int, likes: Sequence[Like]) -> list[Tensor]:
        """Wait for what was submitted; return its results.
        Local, but it waits for what the other ranks submit.

        Parameters
        ----------
        part : int
            What `submit` has returned.
        likes : sequence of (DType, TensorShape)
            The dtypes and the shapes of the results, as far as they are known.
        """
        call = self._call
        if self._is_eager:
            return [_tensor(each) for each in call.wait(self._number, part)]

        def wait(number: Any) -> list[Array]:
            return call.wait(int(number), part)

        dtypes = [dtype for dtype, _ in likes]
        made = listed(tf.numpy_function(_called(wait), [self._number], dtypes))
        for each, (_, shape) in zip(made, likes, strict=True):
            each.set_shape(shape)
        return made


def asked(function: Callable[[], int]) -> Tensor:
    """Return a number that a function returns when the program asks for it.
    Local, if the function is.

    Parameters
    ----------
    function : callable

    Returns
    -------
    Tensor
        Of int32.
    """
    if tf.executing_eagerly():
        return tf.constant(function(), tf.int32)
    _check_graph()
    made = tf.numpy_function(_called(lambda: np.int32(function())), [], tf.int32)
    made.set_shape(())
    return made


# How many calls of a name a graph has.
_names: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


def _array(x: Tensor) -> Array:
    """Return an array over the memory of a tensor that has a value."""
    return np.asarray(x if x.shape.rank else x.numpy())


def _tensor(x: Array) -> Tensor:
    """Return a tensor of an array that nothing else changes, over its memory if possible."""
    is_aligned = x.ctypes.data % ALIGNMENT == 0 and x.flags.c_contiguous
    if is_aligned and x.dtype.kind in "iuf" and x.flags.writeable:
        return tf.experimental.dlpack.from_dlpack(x.__dlpack__())
    return tf.convert_to_tensor(x)


def _check_graph() -> None:
    """Raise an error if the graph that is being traced is for XLA."""
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


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for `tf.numpy_function` whose errors `raising` finds by their text."""

    def called(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (HorovodInternalError, CollectivesError, NotImplementedError) as error:
            text = text_of(error)
        raise RuntimeError(text)

    return called
