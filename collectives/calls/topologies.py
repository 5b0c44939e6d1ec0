"""Topologies of a communicator: grids, and graphs of neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import index
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from collectives.algorithms.neighbors import Grid, balanced, of_lists
from collectives.calls.base import LARGEST, Calls, integer
from collectives.calls.making import MakingCalls
from collectives.calls.neighbors import Neighbors
from collectives.calls.vectors import VectorCalls
from collectives.errors import ArgumentError
from collectives.text.words import shown

if TYPE_CHECKING:
    from typing_extensions import Self


class Cart(Neighbors):
    """The ranks of a communicator as a grid, in which the last dimension runs fastest.

    The neighbours of a rank are, for each dimension, the rank before it and the rank after it. A
    block that is sent to the rank before arrives there as the block from the rank after, also where
    both are one rank, as in a dimension of two places that is periodic.

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
            By how many places.

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


class TopologyCalls(MakingCalls):
    """Calls that make topologies."""

    def cart(self, dims: Sequence[int] | int, periods: Sequence[bool] | bool = False) -> Cart:
        """Arrange the ranks as a grid, for collectives between neighbours.
        Collective.

        Parameters
        ----------
        dims : sequence of int, or int
            Number of ranks in each dimension; the product is the number of ranks of the
            communicator. The library replaces each 0, so that these dimensions are nearly equal.
        periods : sequence of bool, or bool
            Whether each dimension is a ring, or all of them.

        Returns
        -------
        Cart
            It runs its collectives on this communicator.

        Raises
        ------
        ArgumentError
            If there is no such grid; raised on this rank.
        MismatchError
            If another rank makes another call, or passes something else, or its arguments are
            wrong.
        StallError, PeerLostError, PeerAbortedError
            If another rank does not come before the deadline, has ended, or has given up.
        CommunicatorError
            If the communicator is freed or broken.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> ring = cc.world().cart((0,), periods=True)
        >>> left, right = ring.neighbor_allgather(np.array([ring.comm.rank])).ravel()
        >>> bool((left, right) == ring.shift(0))
        True
        """
        grid: Any = None

        def check() -> tuple[int, int]:
            nonlocal grid
            grid = _checked_grid(self.size, dims, periods)
            return 0, 0

        def describe() -> str:
            return f"dims={grid.dims}, periods={grid.periods}"

        with self._together("cart", check, describe):
            return Cart._on(self, grid)

    def graph(self, sources: Iterable[int], destinations: Iterable[int]) -> Graph:
        """Name the neighbours of this rank, for collectives between neighbours.
        Collective.

        Parameters
        ----------
        sources, destinations : sequence of int
            The ranks from which this one receives, and those to which it sends, in the order of the
            blocks of arrays. A rank may be its own neighbour. If it names another several times,
            that one has to name it as often, and blocks arrive in the order in which they are sent.

        Returns
        -------
        Graph
            It runs its collectives on this communicator.

        Raises
        ------
        ArgumentError
            If a neighbour is no rank; raised on this rank.
        MismatchError
            If a rank names a neighbour that does not name it as often: raised on all ranks. If
            another rank makes another call, or its arguments are wrong.
        StallError, PeerLostError, PeerAbortedError
            If another rank does not come before the deadline, has ended, or has given up.
        CommunicatorError
            If the communicator is freed or broken.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> comm = cc.world()
        >>> others = [r for r in range(comm.size) if r != comm.rank]
        >>> everybody = comm.graph(others, others)
        >>> everybody.neighbor_allgather(np.ones(3)).shape == (comm.size - 1, 3)
        True
        """
        lists: list[list[int]] = []

        def check() -> tuple[int, int]:
            for name, ranks in (("sources", sources), ("destinations", destinations)):
                try:
                    given = list(ranks)
                except TypeError:
                    raise ArgumentError(
                        f"{name} is {shown(ranks)}, and must be a sequence of ranks"
                    ) from None
                lists.append([
                    integer(f"{name}[{k}]", rank, 0, self.size - 1) for k, rank in enumerate(given)
                ])  # fmt: skip
            return len(lists[0]), len(lists[1])

        with self._together("graph", check) as said:
            mine = np.array([*lists[0], *lists[1]], np.int64)
            vectors = cast(VectorCalls, self)
            every = vectors.allgatherv(mine, counts=[sum(each) for each in said]).tolist()
            starts = pairwise(accumulate((n for each in said for n in each), initial=0))
            pieces = [every[start:end] for start, end in starts]
            return Graph._of(self, of_lists(pieces[0::2], pieces[1::2]))


def _checked_grid(size: int, dims: Any, periods: Any) -> Grid:
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
