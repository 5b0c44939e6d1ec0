"""Arrays of JAX, reduced over the ranks: eagerly, and in programs that `jax.jit` compiles.

A compiled program calls functions of Python back in the order in which they were traced
(`io_callback`), one at a time. Such a function submits the tensors that are ready while the program
computes the rest, and a last one waits for all of them. They get the memory of the program, which
it uses again when they return, so they submit a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from numpy.typing import NDArray

from collectives.compiled.buckets import buckets
from collectives.compiled.calls import CompiledCall, found, text_of
from collectives.errors import CollectivesError
from collectives.horovod.errors import HorovodInternalError
from collectives.horovod.gradients import Framework, GradientOptions, Places

Array = NDArray[Any]


def reduced(
    tensors: Sequence[Any], options: GradientOptions, groups: Sequence[Places] | None = None
) -> list[jax.Array]:
    """Reduce some arrays of all ranks.
    Collective.

    In a compiled program, arrays that are computed first should come last, as gradients do.
    """
    arrays = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in tensors]
    if not arrays:
        return []
    if options.is_alone:
        factor = options.prescale * options.postscale
        return arrays if factor == 1.0 else [(x * factor).astype(x.dtype) for x in arrays]
    arrays, restored = options.compressed(arrays)
    listed, call = buckets(arrays, options, options.name, groups, LEAST), CompiledCall()
    parts = [part for several in listed for part in several]
    for part in parts:
        call.add(part.start)
    packed = [_packed([arrays[k] for k in part.places]) for part in parts]
    if is_compiled(*arrays):
        made = _in_phases(_Step(call), [len(several) for several in listed], packed)
    else:
        made = _at_once(_Step(call), packed)
    results: list[Any] = [None] * len(arrays)
    for part, whole in zip(parts, made, strict=True):
        shapes = tuple(tuple(arrays[k].shape) for k in part.places)
        for place, result in zip(part.places, _cut(whole, shapes), strict=True):
            results[place] = result
    return restored(results)


class Jax(Framework):
    """JAX, as the backend of Keras: gradients are dense, and the same ones are always missing."""

    def reduced(
        self, tensors: list[Any], options: GradientOptions, groups: Sequence[Places] | None
    ) -> list[Any]:
        return reduced(tensors, options, groups)

    def own_errors(self) -> AbstractContextManager[None]:
        return own_errors()


# A program of JAX takes a fraction of the time of its functions for each array. A callback takes as
# long for each array as for hundreds of kilobytes.


@jax.jit
def _packed(arrays: list[jax.Array]) -> jax.Array:
    """Return arrays of one dtype as one array, in one dimension."""
    return jnp.concatenate([x.ravel() for x in arrays])


@partial(jax.jit, static_argnums=1)
def _cut(whole: jax.Array, shapes: tuple[tuple[int, ...], ...]) -> list[jax.Array]:
    """Return the packed arrays, by their shapes."""
    ends = [*accumulate(map(prod, shapes), initial=0)]
    return [whole[a:b].reshape(shape) for (a, b), shape in zip(pairwise(ends), shapes, strict=True)]


def _at_once(step: _Step, packed: list[jax.Array]) -> list[jax.Array]:
    """Submit the buckets, and wait for them."""
    settled()
    for which, x in enumerate(packed):
        step.submit(which, [np.asarray(x)])
    results = [step.wait(which)[0] for which in range(len(packed))]
    made: list[jax.Array] = jax.device_put(results)  # the memory is new, and theirs now
    return made


def _in_phases(step: _Step, counts: list[int], packed: list[jax.Array]) -> list[jax.Array]:
    """Have the program submit `counts` buckets in turn, and wait for all with the last ones."""
    ends = [*accumulate(counts, initial=0)]
    for first, end in pairwise(ends[:-1]):
        called_back(_Submission(step, first), None, *packed[first:end])
    likes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in packed]
    last = _Submission(step, ends[-2], waits=True)
    made: list[jax.Array] = called_back(last, likes, *packed[ends[-2] :])
    return made


LEAST = 1 << 20  # the least bytes for which a callback is worth its time


class _Step:
    """Submissions that are not waited for yet. The callbacks of a program run one at a time."""

    def __init__(self, call: CompiledCall) -> None:
        self.call, self.number = call, 0

    def submit(self, which: int, arrays: Sequence[Array]) -> None:
        """Submit a bucket. Collective."""
        self.number = self.call.submit(self.number, which, arrays)

    def wait(self, which: int) -> list[Array]:
        """Wait for a bucket, and return the results. Local."""
        return self.call.wait(self.number, which)


@dataclass(frozen=True)
class _Submission:
    """The callback that submits some buckets, each as one array, and may wait for all."""

    step: _Step
    first: int
    waits: bool = False

    def __call__(self, *arrays: Array) -> list[Array] | None:
        """Submit the buckets; return all results if this waits for them. Collective."""
        if self.first == 0:
            self.step.number = 0
        for which, x in enumerate(arrays, start=self.first):
            self.step.submit(which, [np.array(x)])
        if not self.waits:
            return None
        return [self.step.wait(which)[0] for which in range(self.step.call.count)]


# -- callbacks, and their errors -------------------------------------------------------------------


def is_traced(x: Any) -> bool:
    """Return whether an array stands for a result of a transformation of JAX. Local."""
    return isinstance(x, jax.core.Tracer)


def is_compiled(*arrays: Any) -> bool:
    """Return whether operations on some arrays become part of a compiled program. Local."""
    return any(map(is_traced, arrays)) or is_traced(_nothing())


@jax.jit
def _nothing() -> jax.Array:
    return jnp.zeros(())


def called_back(function: Callable[..., Any], like: Any, *arrays: Any) -> Any:
    """Add a call of a function to the program that is being traced, in the order of the program.
    Collective, if the function is.
    """
    return io_callback(_Called(function), like, *arrays, ordered=True)


@dataclass(frozen=True)
class _Called:
    """A function for `io_callback` whose errors can be found by their text."""

    function: Callable[..., Any]

    def __call__(self, *arrays: Any) -> Any:
        """Call the function with arrays of NumPy."""
        try:
            return self.function(*[np.asarray(x) for x in arrays])
        except (
            HorovodInternalError,
            CollectivesError,
            NotImplementedError,
            KeyboardInterrupt,
        ) as error:
            text = text_of(error)
        raise RuntimeError(text)  # without the frames of the library


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise the library's own error for a compiled program that has failed because of it.
    Local.

    If a collective in a program has failed, JAX raises an error of its own, with the text. The end
    of the ``with`` statement waits for the communication of programs that were started in it, so
    that errors are not raised later.
    """
    try:
        yield
        jax.effects_barrier()
    except Exception as error:
        own = found(str(error))
        if own is None:
            raise
        raise own from own.__cause__


def settled() -> None:
    """Wait until started programs have communicated, so that later calls come next.
    Local, but it waits for the other ranks.
    """
    with own_errors():
        pass
