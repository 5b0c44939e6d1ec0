"""Collectives in pieces: every array is rows of parts, and a piece is some columns of each part.

A collective treats all elements of a part alike, so that each piece is a collective by itself::

    part 0   ....|....|..         piece 0 is the first `width` elements of each part,
    part 1   ....|....|..         piece 1 the next; in vector forms, short parts end early
    piece      0    1   2

In a slot of pinned memory, the parts of a piece lie in a row. Where the parts of the input are
among those of the output, they have the same place, and the collective runs in place. In an
alltoall they are different parts, and the input lies before the output.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives import _core
from collectives._core import ALLTOALL
from collectives.algorithms import spec
from collectives.devices.driver import Driver

ALIGNED = 64  # elements: rows of pieces begin on whole cache lines

Integers = NDArray[np.int64]


class Part(NamedTuple):
    """The place of a part in a caller's array, in elements."""

    start: int
    length: int


class Piece(NamedTuple):
    """The arrays of a piece, as the core runs it: places in a slot, in elements."""

    x: int
    x_count: int
    out: int
    out_count: int
    counts: Integers | None  # of a vector form: the rest of each part
    receive_counts: Integers | None


class Columns:
    """The parts into which the arrays of a rank are cut."""

    inputs: int
    outputs: int
    itemsize: int
    part: int
    width: int

    def __init__(
        self,
        kind: int,
        place: tuple[int, int, int],
        itemsize: int,
        room: int,
        part: int,
        counts: tuple[Integers, Integers] | None = None,
    ) -> None:
        contract = spec.COLLECTIVES[_core.COLLECTIVES[kind]]
        self.place = place
        inputs, outputs = contract.inputs(*place), contract.outputs(*place)
        self.is_alltoall: bool = kind == ALLTOALL
        self.inputs, self.outputs = len(inputs), len(outputs)
        self.first_in: int = 0 if self.is_alltoall else min(inputs, default=0)
        self.first_out: int = 0 if self.is_alltoall else min(outputs, default=0)
        self.itemsize, self.part = itemsize, part
        self.counts: Integers | None = None if counts is None else counts[0]
        self.receive_counts: Integers | None = None if counts is None else counts[1]
        parts = contract.per_array(place[1]) * (2 if self.is_alltoall else 1)
        # The columns of each piece but the last, equal on all ranks.
        self.width = max(1, room // (parts * itemsize))
        if self.width > ALIGNED:
            self.width -= self.width % ALIGNED
        self.longest: int = part  # elements, as far as this rank knows
        if self.counts is not None:
            self.longest = int(self.counts.max())

    def piece(self, j: int) -> Piece:
        """Return piece number `j`. Local."""
        if self.counts is None:
            m = max(0, min(self.width, self.part - j * self.width))
            out = self.inputs * m if self.is_alltoall else self.first_out * m
            return Piece(self.first_in * m, self.inputs * m, out, self.outputs * m, None, None)
        given = self._left(self.counts, j)
        if self.is_alltoall:
            assert self.receive_counts is not None
            got = self._left(self.receive_counts, j)
            sent = int(given.sum())
            return Piece(0, sent, sent, int(got.sum()), given, got)
        starts = np.concatenate([[0], np.cumsum(given)])
        x, out = int(starts[self.first_in]), int(starts[self.first_out])
        ends = self.first_in + self.inputs, self.first_out + self.outputs
        return Piece(x, int(starts[ends[0]]) - x, out, int(starts[ends[1]]) - out, given, given)

    def _left(self, counts: Integers, j: int) -> Integers:
        """Return the number of elements of each part in a piece."""
        return np.clip(counts - j * self.width, 0, self.width)

    def copy(
        self,
        driver: Driver,
        j: int,
        slot: int,
        array: tuple[int, list[Part] | None],
        incoming: bool,
        stream: int,
    ) -> None:
        """Copy a piece between an array of the device and a slot. Local."""
        size = self.itemsize
        address, parts = array
        begin = j * self.width
        if parts is None:
            rows = self.outputs if incoming else self.inputs
            m = max(0, min(self.width, self.part - begin))
            if m * rows == 0:
                return
            here, pitch = address + begin * size, self.part * size
            width = m * size
            if rows == 1 or m == self.part:
                ends = (here, slot) if incoming else (slot, here)
                driver.copy(*ends, rows * width, stream)
            elif incoming:
                driver.copy_rows(here, pitch, slot, width, width, rows, stream)
            else:
                driver.copy_rows(slot, width, here, pitch, width, rows, stream)
            return
        for start, length in parts:
            nbytes = max(0, min(self.width, length - begin)) * size
            if nbytes:
                here = address + (start + begin) * size
                ends = (here, slot) if incoming else (slot, here)
                driver.copy(*ends, nbytes, stream)
                slot += nbytes


def rows_of(columns: Columns, incoming: bool, displs: Any) -> list[Part] | None:
    """Return the places of the parts of an array, or None if they are equal rows. Local."""
    counts = columns.counts
    if counts is None:
        return None
    first, many = columns.first_in, columns.inputs
    if incoming:
        first, many = columns.first_out, columns.outputs
        counts = columns.receive_counts if columns.is_alltoall else counts
    assert counts is not None
    lengths = counts[first : first + many].tolist()
    if displs is not None:
        starts = np.asarray(displs)[first : first + many].tolist()
    else:
        starts = np.concatenate([[0], np.cumsum(lengths)])[:many].astype(int).tolist()
    return [Part(start, length) for start, length in zip(starts, lengths, strict=True)]
