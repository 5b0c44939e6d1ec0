"""Buckets: arrays of one dtype that are reduced as one.

A bucket of several arrays packs them into one, which is reduced in place, and the results are views
of it. A bucket of one reduces it into a new array, without a copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.background.engine import fusion
from collectives.graphs.memory import ALIGNMENT, Memory, aligned
from collectives.graphs.terms import Terms
from collectives.horovod.arrays import allreduce_async
from collectives.horovod.handles import Handle
from collectives.horovod.ops import Adasum

LARGE = 256 << 10  # bytes from which on copying takes longer than a message of its own

Array = NDArray[Any]
Groups = Sequence[Sequence[int]]


class Kind(NamedTuple):
    """What is known of a tensor before it is computed.

    Attributes
    ----------
    dtype : str
    itemsize : int
    shape : tuple of int, or None
        None if it is not known.
    """

    dtype: str
    itemsize: int
    shape: tuple[int, ...] | None

    @property
    def nbytes(self) -> int | None:
        """How many bytes it has."""
        return None if self.shape is None else prod(self.shape) * self.itemsize


class Bucket(NamedTuple):
    """Some tensors that are reduced together.

    Attributes
    ----------
    places : list of int
        Which of all tensors they are, the last one first.
    name : str or None
        What is submitted for them is called so.
    terms : Terms
    shapes : list of (tuple of int, or None)
        Their shapes, as far as these are known.
    """

    places: list[int]
    name: str | None
    terms: Terms
    shapes: list[tuple[int, ...] | None]

    def start(self, arrays: Sequence[Array], memory: Memory | None = None) -> Packed:
        """Submit the values of the tensors in the order of the bucket, or as one array.
        Collective.
        """
        terms = self.terms
        # The next forward pass needs the first tensors first.
        options: dict[str, Any] = {"priority": -min(self.places)}
        if terms.codec is not None:
            options["compression"] = terms.codec
        shapes, cuts = self.shapes, None
        if len(arrays) == 1:
            x = np.asarray(arrays[0], order="C")
            taken = aligned(x.nbytes) if memory is None else memory.take(x.nbytes)
            out = taken.view(x.dtype).reshape(x.shape)
        else:
            x, cuts = packed(arrays)
            out = x
            shapes = [shape for _, shape in cuts]
        if None not in shapes and shapes != [x.shape]:  # which the ranks compare anyway
            options["terms"] = _packed_from(tuple(shapes))
        scales = terms.prescale, terms.postscale
        rest = terms.op, *scales, terms.process_set
        return Packed(allreduce_async(x, out, self.name, *rest, **options), cuts)


@lru_cache(maxsize=1024)
def _packed_from(shapes: tuple[tuple[int, ...] | None, ...]) -> str:
    """Return what ranks compare of a packed array: a step after the other has the same."""
    return f"packed from {', '.join(map(str, shapes))}"


Cuts = list[tuple[int, tuple[int, ...]]]  # where arrays begin in a packed one, and their shapes


class Packed:
    """A bucket that was submitted."""

    def __init__(self, handle: Handle, cuts: Cuts | None) -> None:
        self._handle, self._cuts = handle, cuts

    def done(self) -> bool:
        """Return whether it is complete, or has failed. Local."""
        return self._handle.done()

    def wait(self) -> list[Array]:
        """Wait for it; return the results in the order of the bucket.
        Local, but it waits for what the other ranks submit.
        """
        result = self._handle.wait()
        if self._cuts is None:
            return [result]
        return [result[first : first + prod(shape)].reshape(shape) for first, shape in self._cuts]


def packed(arrays: Sequence[Array]) -> tuple[Array, Cuts]:
    """Return one array that contains some of one dtype, and where they are in it. Local."""
    dtype = arrays[0].dtype
    step = ALIGNMENT // dtype.itemsize
    starts = [0, *itertools.accumulate(-(-each.size // step) * step for each in arrays)]
    flat = aligned(starts[-1] * dtype.itemsize).view(dtype)
    for each, first, after in zip(arrays, starts, starts[1:], strict=False):
        end = first + each.size
        np.copyto(flat[first:end].reshape(each.shape), each)
        flat[end:after] = 0
    return flat, [(first, each.shape) for first, each in zip(starts, arrays, strict=False)]


def buckets(kinds: Sequence[Kind], terms: Terms, groups: Groups | None = None) -> list[Bucket]:
    """Return what is reduced together, the last tensors first: backward passes compute them first.
    Local, and the same on all ranks.
    """
    every = range(len(kinds))
    if terms.op == Adasum:
        parts: list[list[int]] = [[place] for place in reversed(every)]
    elif groups is None:
        parts = list(_parts(kinds, every, fusion(terms.process_set.comm())))
    else:
        last_first = sorted(groups, key=max, reverse=True)
        parts = [part for group in last_first for part in _parts(kinds, sorted(group), None)]
    return [
        Bucket(
            places,
            _name(places, len(kinds), terms.name),
            terms,
            [kinds[place].shape for place in places],
        )
        for places in parts
    ]


def _parts(kinds: Sequence[Kind], places: Sequence[int], most: int | None) -> Iterator[list[int]]:
    """Yield lists of tensors that have one dtype, and no more than so many bytes together."""
    filled: dict[str, list[int]] = {}
    room: dict[str, float] = {}
    for place in reversed(places):
        dtype, nbytes = kinds[place].dtype, kinds[place].nbytes
        if most is not None and (nbytes is None or nbytes > min(most, LARGE)):
            yield [place]
            continue
        if dtype in filled and room[dtype] < (nbytes or 0):
            yield filled.pop(dtype)
        if dtype not in filled:
            filled[dtype], room[dtype] = [], float("inf") if most is None else most
        filled[dtype].append(place)
        room[dtype] -= nbytes or 0
    yield from filled.values()


def _name(places: list[int], count: int, name: str | None) -> str | None:
    """Return the name of a bucket; it depends on what is in it alone."""
    if name is None or count == 1:
        return name
    first, last = min(places) + 1, max(places) + 1
    which = f"{first}" if first == last else f"{first} to {last}"
    return f"{name}, {which} of {count}"
