"""The arrays of a grouped call, and copies of small ones into one array and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collectives.errors import BufferError
from collectives.slow.arguments import View, view_of
from collectives.slow.kernels import Array


class Group:
    """The arrays of a grouped call, checked, and the places of their results."""

    count: int

    def __init__(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        self.count = len(arrays)
        self._arrays, self._places = arrays, list(outs)
        self._outs: list[View | None] = []
        self._views: list[View] = []
        for i, (x, out) in enumerate(zip(arrays, outs, strict=True)):
            place = None if out is None else view_of(out, f"out[{i}]", True)
            view = place if place is not None and x is out else view_of(x, f"arrays[{i}]", False)
            if place is not None and place.dtype != view.dtype:
                raise BufferError(
                    f"out[{i}] is {place.dtype} and arrays[{i}] is {view.dtype}; they must be equal"
                )
            if place is not None and place.size != view.size:
                raise BufferError(
                    f"out[{i}] has {place.size} elements, and arrays[{i}] has {view.size}; they "
                    f"must be equal"
                )
            self._outs.append(place)
            self._views.append(view)

    def overlap(self) -> tuple[str, str] | None:
        """Return the names of two arrays that overlap, at least one of which is written, or None.
        Local.
        """
        spans = []
        for i, (view, out) in enumerate(zip(self._views, self._outs, strict=True)):
            if view.size and out is not None:
                spans.append((out.address, out.flat.nbytes, True, f"out[{i}]"))
            if view.size and (out is None or view.address != out.address):
                spans.append((view.address, view.flat.nbytes, False, f"arrays[{i}]"))
        furthest: dict[bool, tuple[int, str]] = {}  # the last end so far, of those read and written
        for first, nbytes, written, name in sorted(spans, key=lambda each: each[0]):
            for kind, (end, other) in sorted(furthest.items()):
                if first < end and (written or kind):
                    return name, other
            if written not in furthest or first + nbytes > furthest[written][0]:
                furthest[written] = first + nbytes, name
        return None

    def sizes(self, most: int) -> list[tuple[str, int]]:
        """Return (dtype, number of elements) of each of the first `most` arrays. Local."""
        return [(each.dtype, each.size) for each in self._views[:most]]

    def smallest(self) -> list[int]:
        """Return, for each dtype, the number of the first array with the fewest elements. Local."""
        found: dict[str, int] = {}
        for i, view in enumerate(self._views):
            if view.size < self._views[found.setdefault(view.dtype, i)].size:
                found[view.dtype] = i
        return list(found.values())

    def parts(self, apart: int, most: int) -> list[list[int]]:
        """Return the numbers of the arrays of each collective, equal on all ranks. Local.

        Arrays of one dtype with less than `apart` bytes each are joined, up to `most` bytes.
        """
        parts: list[list[int]] = []
        begun: dict[str, tuple[list[int], int]] = {}
        for i, view in enumerate(self._views):
            nbytes = view.flat.nbytes
            if nbytes >= apart:
                parts.append([i])
                continue
            which, filled = begun.get(view.dtype, ([], 0))
            if not which or filled + nbytes > most:
                which, filled = [], 0
                parts.append(which)
            which.append(i)
            begun[view.dtype] = which, filled + nbytes
        return parts

    def allocate(self, which: Sequence[int]) -> Array:
        """Return an array with room for some of them, all of one dtype, after their new results.
        Local.
        """
        for i in which:
            view = self._views[i]
            if self._outs[i] is None:
                made = self._places[i] = np.empty(view.shape, view.flat.dtype)
                self._outs[i] = View(made.reshape(-1), view.dtype, view.shape)
        return np.empty(sum(self._views[i].size for i in which), self._views[which[0]].flat.dtype)

    def pack(self, which: Sequence[int], memory: Array) -> None:
        """Copy some arrays into one. Local."""
        np.concatenate([self._views[i].flat for i in which], out=memory)

    def unpack(self, which: Sequence[int], memory: Array) -> None:
        """Copy the parts of a packed array to the results of its arrays. Local."""
        start = 0
        for i in which:
            out = self._outs[i]
            assert out is not None
            out.flat[:] = memory[start : start + out.size]
            start += out.size

    def array(self, i: int) -> tuple[Any, Any]:
        """Return array `i` and its `out`, or None. Local."""
        return self._arrays[i], self._places[i]

    def store(self, i: int, result: Any) -> None:
        """Store the result of array `i`. Local."""
        self._places[i] = result

    def results(self) -> list[Any]:
        """Return the caller's results, when all collectives are complete. Local."""
        return list(self._places)
