"""Topologies of a communicator: grids, and graphs of neighbours.

`making` loads this module for the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from collectives.calls.base import LARGEST, Calls, integer
from collectives.calls.neighborhood import Grid, balanced
from collectives.calls.neighbors import Neighbors
from collectives.errors import ArgumentError
from collectives.text.words import shown

if TYPE_CHECKING:
    from typing_extensions import Self


class Cart(Neighbors):
    """The ranks of a communicator as a grid, in which the last dimension runs fastest.

    The neighbours of a rank are, for each dimension, the rank before it and the rank after it. A
    block that is sent to the rank before arrives there as the block from the rank after, even if
    both are one rank, as in a periodic dimension of two places.

    Attributes
    ----------
    comm : Communicator
    dims : tuple of int
    periods : tuple of bool
        Whether each dimension is a ring.
    coords : tuple of int
        The place of this rank.
    sources, destinations : tuple of int or None
        The neighbours: two for each dimension, None beyond its ends.
    """

    dims: tuple[int, ...]
    periods: tuple[bool, ...]
    coords: tuple[int, ...]
    _grid: Grid

    @classmethod
    def _on(cls, comm: Calls, grid: Grid) -> Self:
        """Return a communicator's ranks as a grid."""
        made = cls._of(comm, grid.neighborhood())
        made._grid = grid
        made.dims, made.periods = grid.dims, grid.periods
        made.coords = grid.coords(comm.rank)
        return made

    def coords_of(self, rank: int) -> tuple[int, ...]:
        """Return the place of a `rank`.
        Local.

        Raises
        ------
        ArgumentError
            If there is no such rank.

        Examples
        --------
        >>> import collectives as cc
        >>> grid = cc.world().cart((0, 1))
        >>> grid.coords_of(0)
        (0, 0)
        """
        return self._grid.coords(integer("rank", rank, 0, self.comm.size - 1))

    def rank_of(self, coords: Sequence[int]) -> int | None:
        """Return the rank of a place.
        Local.

        Parameters
        ----------
        coords : sequence of int
            One number for each dimension. Those of a periodic one may be any integers.

        Returns
        -------
        int or None
            None beyond the end of a dimension that is not periodic.

        Raises
        ------
        ArgumentError
            If `coords` are no such numbers.

        Examples
        --------
        >>> import collectives as cc
        >>> grid = cc.world().cart((0, 1))
        >>> grid.rank_of((0, 0))
        0
        """
        return self._grid.rank(_integers("coords", coords, len(self.dims)))

    def shift(self, dim: int, by: int = 1) -> tuple[int | None, int | None]:
        """Return the source and the destination of this rank if all send in one direction.
        Local.

        Parameters
        ----------
        dim : int
            The number of the dimension.
        by : int
            The number of places.

        Returns
        -------
        (int or None, int or None)
            The source and the destination, as `Communicator.sendrecv` takes them: None beyond an
            end.

        Raises
        ------
        ArgumentError
            If there is no such dimension, or `by` is no integer.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> row = cc.world().cart((0,))
        >>> before, after = row.shift(0)
        >>> got = row.comm.sendrecv(np.ones(1), after, np.zeros(1), before)
        >>> float(got[0]) == (cc.rank() > 0)
        True
        """
        dim = integer("dim", dim, 0, len(self.dims) - 1)
        by = integer("by", by, -LARGEST, LARGEST)
        rank = self.comm.rank
        return self._grid.shifted(rank, dim, -by), self._grid.shifted(rank, dim, by)

    def __repr__(self) -> str:
        return f"<Cart of dims {self.dims} and periods {self.periods}, {self.comm!r}>"


class Graph(Neighbors):
    """The ranks of a communicator as a graph, in which each has named its neighbours.

    Attributes
    ----------
    comm : Communicator
    sources, destinations : tuple of int
        The neighbours of this rank, as it has named them.
    """

    def __repr__(self) -> str:
        return f"<Graph of {self.comm!r}: from {self.sources}, to {self.destinations}>"


def checked_grid(size: int, dims: Any, periods: Any) -> Grid:
    """Return the grid that a caller asks for."""
    given = _integers("dims", dims if np.iterable(dims) else (dims,))
    if min(given, default=0) < 0:
        raise ArgumentError(f"dims is {shown(dims)}, and must have no negative number")
    rings = list(periods) if np.iterable(periods) else [periods] * len(given)
    if len(rings) != len(given) or not all(each in (True, False) for each in rings):
        raise ArgumentError(
            f"periods is {shown(periods)}, and must be a bool, or {len(given)}, one for each "
            f"dimension"
        )
    return Grid(balanced(size, given), tuple(map(bool, rings)))


def _integers(name: str, values: Any, length: int | None = None) -> tuple[int, ...]:
    try:
        found = tuple(map(index, values))
    except TypeError:
        raise ArgumentError(
            f"{name} is {shown(values)}, and must be a sequence of integers"
        ) from None
    if length is not None and len(found) != length:
        raise ArgumentError(
            f"{name} is {shown(values)}, and must have {length} numbers, one for each dimension"
        )
    return found
