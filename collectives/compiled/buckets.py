"""Buckets: arrays of one dtype that are reduced as one, and the memory of their results.

A bucket of several arrays packs them into one, which is reduced in place, and the results are views
of it. A bucket of one reduces it into a new array, without a copy. Each step of a program needs
results of the same sizes. New memory takes as long as a reduction, because the system clears it
page by page. So `Memory` keeps it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from collectives.background.engine import fusion
from collectives.horovod.arrays import allreduce_async
from collectives.horovod.gradients import GradientOptions, Places, Spec, split
from collectives.horovod.handles import Handle
from collectives.horovod.ops import Adasum

LARGE = 256 << 10  # bytes for which copying takes longer than a separate message
ALIGNMENT = 64  # bytes: frameworks take over memory that begins at a multiple, without a copy
LEAST_KEPT = 64 << 10  # bytes; malloc is fast for less

Array = NDArray[Any]


def aligned(nbytes: int) -> Array:
    """Return `nbytes` bytes of memory that a framework can take over without a copy. Local."""
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + nbytes]


class Memory:
    """Memory for the results of one place of a program. It keeps all blocks that were in use."""

    def __init__(self) -> None:
        self._free: defaultdict[int, deque[Array]] = defaultdict(deque)

    def take(self, nbytes: int) -> Array:
        """Return `nbytes` bytes, as `aligned` does. They come back when the last array on them is
        freed. Local.
        """
        if nbytes < LEAST_KEPT:
            return aligned(nbytes)
        free = self._free[nbytes]
        try:
            block = free.pop()
        except IndexError:  # all are in use
            block = aligned(nbytes)
        return np.asarray(_Lease(block, free))


class _Lease:
    """An object that NumPy keeps alive as long as an array is on the memory of a block."""

    def __init__(self, block: Array, free: deque[Array]) -> None:
        self._block, self._free = block, free
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._block)


class Tensor(Spec, Protocol):
    """The properties of a tensor before it is computed; its shape is None if that is not known."""

    @property
    def shape(self) -> tuple[int, ...] | None: ...


class Bucket(NamedTuple):
    """Some tensors that are reduced together: their places among all, the last one first, the name
    of their submission, their known shapes, and their labels, which may be empty.
    """

    places: list[int]
    name: str | None
    options: GradientOptions
    shapes: list[tuple[int, ...] | None]
    labels: tuple[str, ...]

    def start(self, arrays: Sequence[Array], memory: Memory | None = None) -> Handle:
        """Submit the values of the tensors in the order of the bucket, or as one array; the results
        are a list. Collective.
        """
        given = self.options
        # The next forward pass needs the first tensors first.
        options: dict[str, Any] = {"priority": -min(self.places)}
        if given.codec is not None:
            options["compression"] = given.codec
        shapes, cuts = self.shapes, None
        if len(arrays) == 1:
            x = np.asarray(arrays[0], order="C")
            taken = aligned(x.nbytes) if memory is None else memory.take(x.nbytes)
            out = taken.view(x.dtype).reshape(x.shape)
        else:
            x, cuts = packed(arrays)
            out = x
            shapes = [shape for _, shape in cuts]
        # The ranks compare the shape of `x` anyway.
        is_known = None not in shapes and shapes != [x.shape]
        if is_known or any(self.labels):
            options["terms"] = _packed_from(tuple(shapes) if is_known else (), self.labels)
        scales = given.prescale, given.postscale
        rest = given.op, *scales, given.process_set, given.start
        handle = allreduce_async(x, out, self.name, *rest, **options)
        return handle.then(lambda result: [result] if cuts is None else unpacked(result, cuts))


@lru_cache(maxsize=1024)
def _packed_from(shapes: tuple[tuple[int, ...] | None, ...], labels: tuple[str, ...]) -> str:
    """Return the text of a packed array that the ranks compare; it is equal in each step."""
    parts = [f"packed from {', '.join(map(str, shapes))}"] if shapes else []
    parts += [f"with {', '.join(labels)}"] if any(labels) else []
    return " ".join(parts)


Cuts = list[tuple[int, tuple[int, ...]]]  # where arrays begin in a packed one, and their shapes


def packed(arrays: Sequence[Array]) -> tuple[Array, Cuts]:
    """Return one array that contains some of one dtype, and their places in it. Local."""
    dtype = arrays[0].dtype
    step = ALIGNMENT // dtype.itemsize
    starts = [0, *itertools.accumulate(-(-each.size // step) * step for each in arrays)]
    flat = aligned(starts[-1] * dtype.itemsize).view(dtype)
    for each, first, after in zip(arrays, starts, starts[1:], strict=False):
        end = first + each.size
        np.copyto(flat[first:end].reshape(each.shape), each)
        flat[end:after] = 0
    return flat, [(first, each.shape) for first, each in zip(starts, arrays, strict=False)]


def unpacked(whole: Array, cuts: Cuts) -> list[Array]:
    """Return the arrays that a packed one contains. Local."""
    return [whole[first : first + prod(shape)].reshape(shape) for first, shape in cuts]


def buckets(
    tensors: Sequence[Tensor],
    options: GradientOptions,
    name: str | None,
    groups: Sequence[Places] | None = None,
    least: float = 0,
) -> list[list[Bucket]]:
    """Return the buckets that are reduced together, the last tensors first, in lists of at least
    `least` bytes: fewer are not worth a callback of a compiled program.
    Local, and the same on all ranks.
    """
    if options.op == Adasum:
        parts = [[place] for place in reversed(range(len(tensors)))]
    else:
        most = fusion(options.process_set.comm())
        parts = split(tensors, groups, most, min(most, LARGE))
    listed: list[list[Bucket]] = []
    nbytes = least
    for places in parts:
        if nbytes >= least:
            listed.append([])
            nbytes = 0
        shapes = [tensors[place].shape for place in places]
        labels = () if options.labels is None else tuple(options.labels[place] for place in places)
        named = _name(places, len(tensors), name)
        listed[-1].append(Bucket(places, named, options, shapes, labels))
        sizes = [tensors[place].nbytes for place in places]
        nbytes += sum(least if each is None else each for each in sizes)
    return listed


def _name(places: list[int], count: int, name: str | None) -> str | None:
    """Return the name of a bucket; it depends on the tensors in it alone."""
    if name is None or count == 1:
        return name
    first, last = min(places) + 1, max(places) + 1
    which = f"{first}" if first == last else f"{first} to {last}"
    return f"{name}, {which} of {count}"
