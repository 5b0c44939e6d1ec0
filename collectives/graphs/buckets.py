"""Buckets: arrays of one dtype that are reduced as one.

Arrays come in as a program computes them, and may not be written. A bucket of several packs them
into one array, which is reduced in place, and the results are views of it. A bucket of one reduces
it into a new array, without a copy.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.background.engine import fusion
from collectives.graphs.terms import Terms
from collectives.horovod.arrays import allreduce_async
from collectives.horovod.handles import Handle
from collectives.horovod.ops import Adasum

__all__ = ["Bucket", "Call", "Kind", "aligned", "buckets", "packed"]

ALIGNMENT = 64  # bytes: frameworks take memory over without a copy that begins at a multiple
STEPS = 8  # of a call that are kept, of which more than one exists where threads make it

Array = NDArray[Any]


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
    name : str
        What is submitted for them is called so.
    priority : int
        That of tensors that come first is highest: the next forward pass needs them first.
    """

    places: list[int]
    name: str
    priority: int


def buckets(kinds: Sequence[Kind], terms: Terms) -> list[Bucket]:
    """Return what is reduced together, the last tensors first: backward passes compute them first.
    Local, and the same on all ranks.

    Parameters
    ----------
    kinds : sequence of Kind
    terms : Terms
    """
    most = 0 if terms.op == Adasum else fusion(terms.process_set.comm())
    return [
        Bucket(places, _name(places, len(kinds), terms.name), -min(places))
        for places in _parts(kinds, most)
    ]


def _parts(kinds: Sequence[Kind], most: int) -> Iterator[list[int]]:
    """Yield lists of tensors that have one dtype, and no more than so many bytes together."""
    filled: dict[str, list[int]] = {}
    room: dict[str, int] = {}
    for place in reversed(range(len(kinds))):
        dtype, nbytes = kinds[place].dtype, kinds[place].nbytes
        if not most or nbytes is None or nbytes > most:
            yield [place]
            continue
        if dtype in filled and room[dtype] < nbytes:
            yield filled.pop(dtype)
        if dtype not in filled:
            filled[dtype], room[dtype] = [], most
        filled[dtype].append(place)
        room[dtype] -= nbytes
    yield from filled.values()


def _name(places: list[int], count: int, name: str) -> str:
    """Return the name of a bucket; it depends on what is in it alone."""
    if count == 1:
        return name
    first, last = max(places) + 1, min(places) + 1
    which = f"{first}" if first == last else f"{first} to {last}"
    return f"{name}, {which} of {count}"


Cuts = list[tuple[int, tuple[int, ...]]]  # where arrays begin in a packed one, and their shapes


def packed(arrays: Sequence[Array]) -> tuple[Array, Cuts]:
    """Return one array that contains some of one dtype, and where they are in it. Local.

    Parameters
    ----------
    arrays : sequence of array
    """
    dtype = arrays[0].dtype
    step = ALIGNMENT // dtype.itemsize
    sizes = [each.size for each in arrays]
    starts = [0, *itertools.accumulate(-(-size // step) * step for size in sizes)]
    flat = aligned(starts[-1] * dtype.itemsize).view(dtype)
    for each, start, after in zip(arrays, starts, starts[1:], strict=False):
        end = start + each.size
        np.copyto(flat[start:end].reshape(each.shape), each)
        flat[end:after] = 0
    return flat, [(start, each.shape) for start, each in zip(starts, arrays, strict=False)]


def aligned(nbytes: int) -> Array:
    """Return so many bytes of memory that a framework can take over without a copy. Local.

    Parameters
    ----------
    nbytes : int
    """
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + nbytes]


class Step:
    """One run of a `Call`: what it has submitted, and how that is cut into arrays.

    Parameters
    ----------
    count : int
        How many buckets there will be.
    """

    def __init__(self, count: int) -> None:
        self.handles: list[Handle | None] = [None] * count
        self.cuts: list[Cuts | None] = [None] * count

    def drain(self) -> None:
        """Wait for all that was submitted. Local, but it waits for the other ranks."""
        for each in self.handles:
            if each is not None:
                with contextlib.suppress(RuntimeError):  # nobody wants the result
                    each.wait()


class Call:
    """The reduction of some tensors, at one place of a program that runs again and again.

    Parameters
    ----------
    parts : list of Bucket
    terms : Terms
    """

    def __init__(self, parts: list[Bucket], terms: Terms) -> None:
        self.parts, self.terms = parts, terms
        self._steps: deque[tuple[int, Step]] = deque(maxlen=STEPS)
        self._lock = threading.Lock()

    def submit(self, number: int, which: int, arrays: Sequence[Array]) -> int:
        """Submit a bucket. Collective.

        Parameters
        ----------
        number : int
            That of the step, which `submit` has returned for the first bucket; 0 for that.
        which : int
            Which bucket it is.
        arrays : sequence of array
            In the order of the bucket. They are not written.

        Returns
        -------
        int
            The number of the step.
        """
        number, step = self._begin() if number == 0 else (number, self._find(number))
        bucket, terms = self.parts[which], self.terms
        options: dict[str, Any] = {"priority": bucket.priority}
        if terms.codec is not None:
            options["compression"] = terms.codec
        if len(arrays) == 1:
            x = np.asarray(arrays[0], order="C")
            out = aligned(x.nbytes).view(x.dtype).reshape(x.shape)
        else:
            x, step.cuts[which] = packed(arrays)
            out = x
        scales = terms.prescale, terms.postscale
        step.handles[which] = allreduce_async(
            x, out, bucket.name, terms.op, *scales, terms.process_set, **options
        )
        return number

    def wait(self, number: int, which: int) -> list[Array]:
        """Wait for a bucket; return the results in its order.
        Local, but it waits for what the other ranks submit.

        Parameters
        ----------
        number : int
            That of the step.
        which : int
            Which bucket it is.
        """
        step = self._find(number)
        handle, cuts = step.handles[which], step.cuts[which]
        assert handle is not None
        try:
            result = handle.wait()
        except BaseException:
            step.drain()  # so that the names are free when the program goes on
            raise
        step.handles[which] = step.cuts[which] = None
        if cuts is None:
            return [result]
        return [result[first : first + prod(shape)].reshape(shape) for first, shape in cuts]

    def _begin(self) -> tuple[int, Step]:
        """Return a new step, when nothing is under way of an earlier one that was given up."""
        with self._lock:
            earlier = [step for _, step in self._steps]
        for each in earlier:
            each.drain()
        number, step = next(_numbers), Step(len(self.parts))
        with self._lock:
            self._steps.append((number, step))
        return number, step

    def _find(self, number: int) -> Step:
        with self._lock:
            return dict(self._steps)[number]


_numbers = itertools.count(1)
