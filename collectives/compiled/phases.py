"""Collectives of TensorFlow that are submitted first, and then waited for.

In a `tf.function`, NumPy functions are called back in the order of the program, one at a time. Each
collective is submitted by one of them as soon as its tensors are computed, and another one waits
for it later. They get the memory of the tensors, and TensorFlow takes over the memory of the
results.

A graph of TensorFlow 1 calls them in any order. So all collectives in it have names, and waiting
does not occupy a thread of the session, which may have no other to submit with.
"""

from __future__ import annotations

import functools
import math
import re
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

try:
    from tensorflow.python.eager import record
except ImportError:  # it has no public name
    record = None

from collectives.compiled.buckets import ALIGNMENT, Bucket, Memory
from collectives.compiled.calls import CompiledCall, Start, found, text_of
from collectives.errors import CollectivesError
from collectives.horovod.errors import HorovodArgumentError, HorovodInternalError
from collectives.horovod.handles import Handle, together

Array = NDArray[Any]
Tensor = Any
WITHOUT_NUMBERS = tf.string, tf.resource, tf.variant
Like = tuple[Any, Any]  # the dtype and the shape of a tensor, as far as it is known

F = TypeVar("F", bound=Callable[..., Any])


def unconverted(function: F) -> F:
    """Decorate a call: AutoGraph leaves it alone; outside of functions, its errors are
    TensorFlow's, too.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except HorovodArgumentError as error:
            is_traced = not tf.executing_eagerly() and _keeps_order()
            if is_traced or isinstance(error, tf.errors.OpError):
                raise  # AutoGraph makes another error of it
            raise tensorflow_error(error) from None

    return cast(F, tf.autograph.experimental.do_not_convert(call))


def differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a gradient of its own, as ``tf.custom_gradient`` takes it. Local.

    If no tape records, the function has no gradient, because TensorFlow would copy each tensor.
    """
    if not tf.executing_eagerly() or _may_record():
        return cast(Callable[..., Any], tf.custom_gradient(function))
    return lambda *inputs: function(*inputs)[0]


def _may_record() -> bool:
    """Return whether a tape may record eager operations."""
    asks = getattr(record, "could_possibly_record", None)
    return asks is None or asks()


def listed(made: Any) -> list[Tensor]:
    """Return the result of an operation as a list, also if it is one tensor. Local."""
    return list(made) if isinstance(made, list | tuple) else [made]


class Phases:
    """Collectives that are submitted first, and then waited for: at once, or in a graph."""

    def __init__(self) -> None:
        self._call, self._memory = CompiledCall(), Memory()
        self._is_eager = tf.executing_eagerly()
        self._is_ordered = self._is_eager or _keeps_order()
        self._number: Any = 0  # of the step: a tensor in a graph
        if not self._is_eager:
            _check_graph()

    def named(self, name: str | None, kind: str = "", *tensors: Tensor) -> str | None:
        """Return a name that no other call in the graph has, the same each time that it is traced.
        In a graph of TensorFlow 1, a call without a name is named after its tensors. Local.
        """
        if self._is_eager or (name is None and self._is_ordered):
            return name
        graph = tf.compat.v1.get_default_graph()
        if not self._is_ordered:
            graph = list(_around(graph))[-1]
        if name is None:
            ends = [tensors[0].name] if len(tensors) == 1 else [tensors[0].name, tensors[-1].name]
            name = f"Horovod{kind}_{re.sub('[^a-zA-Z0-9_]', '_', '_'.join(ends))}"
        counts = _names.setdefault(graph, Counter())
        counts[name] += 1
        return name if counts[name] == 1 else f"{name} ({counts[name]})"

    def submit(self, start: Start, inputs: Sequence[Tensor]) -> int:
        """Submit some tensors; return a number for `wait`. Collective."""
        for each in inputs:
            if each.dtype in WITHOUT_NUMBERS:
                raise HorovodArgumentError(
                    f"the tensor is of dtype {each.dtype.name}, and must have numbers"
                )
        part, call = self._call.add(start), self._call
        if self._is_eager:
            arrays = [_array(each) for each in inputs]
            try:
                self._number = call.submit(self._number, part, arrays)
            except HorovodInternalError as error:
                raise tensorflow_error(error) from None
            return part

        def submit(number: Any, *arrays: Array) -> Any:
            return np.int64(call.submit(int(number), part, arrays))

        before = tf.constant(0, tf.int64) if part == 0 else self._number
        self._number = tf.numpy_function(_called(submit), [before, *inputs], tf.int64)
        self._number.set_shape(())
        return part

    def packing(self, parts: list[Bucket], tensors: list[Tensor]) -> tuple[Start, list[Tensor]]:
        """Return a function that submits some buckets, and the tensors for it. In a graph, those of
        a bucket are joined, because TensorFlow joins them faster than it passes them on. Local.
        """
        memory = None if self._is_eager else self._memory
        inputs, counts = [], []
        for part in parts:
            mine = [tensors[k] for k in part.places]
            if not self._is_eager and len(mine) > 1:
                mine = [tf.concat([tf.reshape(each, [-1]) for each in mine], 0)]
            inputs += mine
            counts.append(len(mine))

        def start(arrays: Sequence[Array]) -> Handle:
            left = iter(arrays)
            started = [
                part.start([next(left) for _ in range(count)], memory)
                for part, count in zip(parts, counts, strict=True)
            ]
            return together(started).then(lambda results: [x for xs in results for x in xs])

        return start, inputs

    def unpacked(self, number: int, parts: list[Bucket], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Wait for some buckets; return the results of all their tensors.
        Local, but it waits for the submissions of the other ranks.
        """
        left = iter(tensors)
        likes = [[next(left) for _ in part.places] for part in parts]
        if self._is_eager:
            return self.wait(number, ())
        kinds = [(each[0].dtype, each[0].shape if len(each) == 1 else [None]) for each in likes]
        results: list[Tensor] = []
        for made, mine in zip(self.wait(number, kinds), likes, strict=True):
            if len(mine) == 1:
                results.append(made)
                continue
            are_known = all(each.shape.is_fully_defined() for each in mine)
            shapes = [each.shape if are_known else tf.shape(each) for each in mine]
            sizes = [math.prod(each) if are_known else tf.reduce_prod(each) for each in shapes]
            cut = tf.split(made, sizes, num=len(mine))
            results += [tf.reshape(each, shape) for each, shape in zip(cut, shapes, strict=True)]
        return results

    def wait(self, part: int, likes: Sequence[Like]) -> list[Tensor]:
        """Wait for the submissions; return their results.
        Local, but it waits for the submissions of the other ranks.
        """
        call = self._call
        if self._is_eager:
            try:
                return [_tensor(each) for each in call.wait(self._number, part)]
            except HorovodInternalError as error:
                raise tensorflow_error(error) from None

        def wait(number: Any) -> list[Array]:
            return call.wait(int(number), part)

        number = self._number if self._is_ordered else self._done(part)
        dtypes = [dtype for dtype, _ in likes]
        made = listed(tf.numpy_function(_called(wait), [number], dtypes))
        for each, (_, shape) in zip(made, likes, strict=True):
            each.set_shape(shape)
        return made

    def _done(self, part: int) -> Tensor:
        """Return the number of the step when a part is complete. The wait does not occupy a thread
        of the session.
        """
        call = self._call

        def goes_on(number: Any) -> Any:
            if call.done(int(number), part):
                return np.False_
            time.sleep(NAP)
            return np.True_

        def again(number: Tensor) -> list[Tensor]:
            # It ends on another thread, so that the loop goes to the back of the session's queue.
            return [tf.data.Dataset.from_tensors(number).get_single_element()]

        asks = _called(goes_on)
        return tf.while_loop(
            lambda number: tf.numpy_function(asks, [number], tf.bool), again, [self._number]
        )[0]


NAP = 1e-4  # seconds for which waiting in a graph of TensorFlow 1 occupies a thread


def asked(function: Callable[[], int]) -> Tensor:
    """Return a number that a function returns when the program asks for it.
    Local, if the function is.
    """
    if tf.executing_eagerly():
        return tf.constant(function(), tf.int32)
    _check_graph()
    made = tf.numpy_function(_called(lambda: np.int32(function())), [], tf.int32)
    made.set_shape(())
    return made


# The number of calls of a name that a graph has.
_names: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


def _keeps_order() -> bool:
    """Return whether operations run in the order of the program, as they do in functions."""
    return bool(tf.compat.v1.executing_eagerly_outside_functions())


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
    for graph in _around(tf.compat.v1.get_default_graph()):
        within = graph._get_control_flow_context()
        while within is not None:
            if within.IsXLAContext():
                raise HorovodArgumentError(
                    "this function is compiled by XLA, which cannot call the library: pass "
                    "jit_compile=False to tf.function, or to model.compile"
                )
            within = within.outer_context


def _around(graph: Any) -> Iterator[Any]:
    """Yield a graph, and those that it is in."""
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


# -- errors ----------------------------------------------------------------------------------------
#
# TensorFlow passes on the text of an error that a NumPy function raises, and raises a
# ``tf.errors.UnknownError`` itself. That becomes an error of the kept one's class, too, with its
# text and its cause, and a ``FailedPreconditionError`` or an ``InvalidArgumentError``.

UnknownError: Any = tf.errors.UnknownError


def _install() -> None:
    """Give errors of TensorFlow with the text of a kept one the class of that. Local."""
    plain = UnknownError.__init__
    if hasattr(plain, "is_aware_of_kept_errors"):
        return

    def __init__(self: Any, node_def: Any, op: Any, message: str, *args: Any) -> None:
        plain(self, node_def, op, message, *args)
        kept: Any = found(message)
        if kept is not None:
            kind: Any = type(kept)
            self.__class__ = _derived(kind)
            self.kept = kept

    __init__.is_aware_of_kept_errors = True  # type: ignore[attr-defined]
    UnknownError.__init__ = __init__


@functools.cache
def _derived(kind: Any) -> Any:
    """Return a class of errors that are TensorFlow's, and of a `kind` of the library."""
    members = {
        "__module__": kind.__module__,
        "__str__": lambda self: str(self.kept),
        "__repr__": lambda self: repr(self.kept),
        # TensorFlow raises its errors without a cause.
        "__cause__": property(lambda self: self.kept.__cause__),
    }
    is_argument = issubclass(kind, HorovodArgumentError)
    own = tf.errors.InvalidArgumentError if is_argument else tf.errors.FailedPreconditionError
    return type(kind.__name__, (UnknownError, own, kind), members)


def tensorflow_error(error: HorovodInternalError | HorovodArgumentError) -> BaseException:
    """Return an error that is one of TensorFlow and of the class of `error`. Local."""
    made: BaseException = UnknownError(None, None, text_of(error))
    return made


_install()


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for `tf.numpy_function` whose errors are found by their text."""

    def called(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (HorovodInternalError, CollectivesError, NotImplementedError) as error:
            text = text_of(error)
        raise RuntimeError(text)

    return called
