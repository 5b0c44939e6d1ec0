"""Arrays of JAX, reduced over the ranks: eagerly, and in programs that `jax.jit` compiles.

A compiled program calls functions of Python back in the order in which they were traced
(`io_callback`), one at a time. What is ready is submitted by such a function while the program
computes the rest, and one behind all of them waits for everything. They see the memory of the
program, which it uses for something else when they return: what is submitted is a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from numpy.typing import NDArray

from collectives.errors import CollectivesError
from collectives.graphs.buckets import Call, Kind, buckets
from collectives.graphs.kept import found, text_of
from collectives.graphs.terms import Terms
from collectives.horovod.errors import HorovodInternalError

__all__ = ["called_back", "is_traced", "own_errors", "reduced", "settled"]

Array = NDArray[Any]


def reduced(tensors: Sequence[Any], terms: Terms) -> list[jax.Array]:
    """Reduce some arrays of all ranks.
    Collective.

    In a compiled program, what is computed first should come last, as the gradients of a model do.

    Parameters
    ----------
    tensors : sequence of array
        Of the same dtypes and shapes on all ranks. They may be traced.
    terms : Terms
        Calls of one program that may be under way at once need different names.

    Returns
    -------
    list of jax.Array

    Raises
    ------
    HorovodInternalError
        If a collective fails. From a compiled program, `own_errors` raises it.
    """
    arrays = [jnp.asarray(each) for each in tensors]
    if not arrays:
        return []
    if terms.is_alone:
        factor = terms.prescale * terms.postscale
        return arrays if factor == 1.0 else [(x * factor).astype(x.dtype) for x in arrays]
    if not isinstance(terms.compression, type):
        return _reduced(arrays, terms)
    pairs = [terms.compression.compress(x) for x in arrays]
    results = _reduced([x for x, _ in pairs], terms._replace(compression=None))
    return [
        terms.compression.decompress(x, context)
        for x, (_, context) in zip(results, pairs, strict=True)
    ]


def _reduced(arrays: list[jax.Array], terms: Terms) -> list[jax.Array]:
    """Reduce arrays as they are."""
    kinds = [Kind(x.dtype.name, x.dtype.itemsize, tuple(x.shape)) for x in arrays]
    step = _Step(Call(buckets(kinds, terms), terms), len(arrays))
    places = [part.places for part in step.call.parts]
    if not any(map(is_traced, arrays)):
        settled()
        for which, part in enumerate(places):
            step.submit(which, [np.asarray(arrays[k]) for k in part])
        return [jnp.array(x) for x in step.wait()]  # a copy, aligned as JAX wants it
    for first, last in _together(places, kinds):
        inputs = [arrays[k] for part in places[first:last] for k in part]
        called_back(_Submission(step, first, last), None, *inputs)
    likes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    results: list[jax.Array] = called_back(step.wait, likes)
    return results


def _together(places: list[list[int]], kinds: list[Kind]) -> Iterator[tuple[int, int]]:
    """Yield from which bucket to which one callback submits: a callback costs as much as copying
    a mebibyte.
    """
    first, nbytes = 0, 0
    for which, part in enumerate(places):
        nbytes += sum(kinds[k].nbytes or 0 for k in part)
        if nbytes >= LEAST:
            yield first, which + 1
            first, nbytes = which + 1, 0
    if first < len(places):
        yield first, len(places)


LEAST = 1 << 20  # bytes that a callback submits, if that many are left


class _Step:
    """What a program has submitted and not waited for. Its callbacks come one at a time."""

    def __init__(self, call: Call, count: int) -> None:
        self.call, self.count, self.number = call, count, 0

    def submit(self, which: int, arrays: list[Array]) -> None:
        """Submit a bucket. Collective."""
        self.number = self.call.submit(self.number, which, arrays)

    def wait(self) -> list[Array]:
        """Wait for all buckets; return the results in the order of the arrays."""
        number, self.number = self.number, 0
        results: list[Any] = [None] * self.count
        for which, part in enumerate(self.call.parts):
            for place, result in zip(part.places, self.call.wait(number, which), strict=True):
                results[place] = result
        return results


class _Submission(NamedTuple):
    """The callback that submits some buckets."""

    step: _Step
    first: int
    last: int

    def __call__(self, *arrays: Array) -> None:
        """Submit them. Collective."""
        left = list(arrays)
        for which in range(self.first, self.last):
            count = len(self.step.call.parts[which].places)
            mine, left = left[:count], left[count:]
            self.step.submit(which, [np.array(x) for x in mine] if count == 1 else mine)


# -- callbacks, and their errors -------------------------------------------------------------------


def is_traced(x: Any) -> bool:
    """Return whether an array has no value yet. Local.

    Parameters
    ----------
    x : jax.Array
    """
    return isinstance(x, jax.core.Tracer)


def called_back(function: Callable[..., Any], like: Any, *arrays: Any) -> Any:
    """Have the program that is being traced call a function, in the order of the program.
    Collective, if the function is.

    Parameters
    ----------
    function : callable
        It is given arrays of NumPy, which may not be written nor used later, and returns such.
        Functions that are equal may share a compiled program. It must not use JAX.
    like : nested value of jax.ShapeDtypeStruct, or None
        What it returns.
    *arrays : jax.Array
        What it is given.

    Returns
    -------
    nested value of jax.Array, or None
    """
    return io_callback(_Called(function), like, *arrays, ordered=True)


class _Called(NamedTuple):
    """A function for `io_callback` whose errors can be found by their text."""

    function: Callable[..., Any]

    def __call__(self, *arrays: Any) -> Any:
        """Call the function with arrays of NumPy."""
        try:
            return self.function(*[np.asarray(x) for x in arrays])
        except (HorovodInternalError, CollectivesError, NotImplementedError) as error:
            text = text_of(error)
        raise RuntimeError(text)  # without the frames of the library


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise the library's own error where a compiled program has failed because of it.
    Local.

    JAX raises an error of its own, with the text, when a program has failed in which a collective
    has. At the end of the ``with`` statement, it is waited for what programs that were started in
    it communicate, so that errors are not raised later.

    Raises
    ------
    HorovodInternalError, CollectivesError
        The error of the collective.
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
    """Wait until programs that were started have communicated, so that what comes now is next.
    Local, but it waits for the other ranks.

    Raises
    ------
    HorovodInternalError, CollectivesError
        If a collective in one of them has failed.
    """
    with own_errors():
        pass
