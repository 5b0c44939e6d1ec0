"""Collectives between neighbours: of a grid of ranks, or of a graph that the ranks name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from collectives import _core
from collectives._core import compare_counts, counts_of, places
from collectives.algorithms.registry import Algorithm
from collectives.calls.base import Calls
from collectives.calls.grouped import listed
from collectives.calls.neighborhood import Neighborhood, Slots
from collectives.errors import ArgumentError
from collectives.plans import schedule
from collectives.process import environment
from collectives.process.advice import alone
from collectives.process.agreement import refusing
from collectives.text.words import count, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

    from collectives.arrays.types import ArrayT, Counts, DTypeT, Integers, Number

ALLGATHER, ALLTOALL = _core.BETWEEN_NEIGHBORS


class Neighbors:
    """The neighbours of each rank of a communicator, and the collectives between them.

    `Communicator.cart` and `Communicator.graph` return it. All ranks of the communicator must make
    each call, even ranks without neighbours, and in the same order as its other collectives.

    Attributes
    ----------
    comm : Communicator
    sources, destinations : tuple of int or None
        The neighbours of this rank, in the order of the blocks of its arrays. None is a neighbour
        beyond the end of a grid: the block is not sent, or not written.
    """

    comm: Calls
    sources: Slots
    destinations: Slots
    _neighborhood: Neighborhood
    _engine: _core.Engine
    _allgather: _core.Neighbors
    _alltoall: _core.Neighbors

    @classmethod
    def _of(cls, comm: Calls, neighborhood: Neighborhood) -> Self:
        """Return the neighbours of this rank."""
        made = cls()
        made.comm = comm
        made.sources = neighborhood.sources[comm.rank]
        made.destinations = neighborhood.destinations[comm.rank]
        made._neighborhood = neighborhood
        made._engine = comm._engine
        ends = len(made.sources)
        made._allgather = made._ready(ALLGATHER, 1, ends)
        made._alltoall = made._ready(ALLTOALL, len(made.destinations), ends)
        return made

    @property
    def _has_equal_blocks(self) -> bool:
        """Return whether blocks are equal on all ranks if one rank sends as much as it receives."""
        return self._neighborhood.is_connected and self._neighborhood.is_symmetric

    @overload
    def neighbor_allgather(
        self,
        x: np.ndarray[Any, DTypeT],
        out: np.ndarray[Any, DTypeT] | None = None,
        *,
        timeout: float | None = None,
    ) -> np.ndarray[Any, DTypeT]: ...
    @overload
    def neighbor_allgather(
        self, x: ArrayT | Number, out: ArrayT | None = None, *, timeout: float | None = None
    ) -> ArrayT: ...
    def neighbor_allgather(
        self, x: ArrayT | Number, out: ArrayT | None = None, *, timeout: float | None = None
    ) -> ArrayT:
        """Give the array of each rank to all its destinations.
        Collective.

        Parameters
        ----------
        x : array
            This rank's contribution, in host memory. The number of elements and the dtype are the
            same on all ranks.
        out : array, optional
            The destination of the contributions of the sources, in their order: contiguous, with as
            many times the elements of `x` as there are `sources`. The block of a source that is
            None is not changed. A new array by default, in which such blocks are 0.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array
            `out`, or a new array of shape ``(len(sources), *x.shape)``.

        Raises
        ------
        CollectivesError
            As for `allreduce`.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> ring = cc.world().cart((0,), periods=True)
        >>> left, right = ring.neighbor_allgather(np.array([cc.rank()])).ravel()
        >>> int(right) == (cc.rank() + 1) % cc.size()
        True
        """
        return self._engine.neighbors(self._allgather, x, out, timeout)

    @overload
    def ineighbor_allgather(
        self, x: np.ndarray[Any, DTypeT], out: np.ndarray[Any, DTypeT] | None = None
    ) -> _core.Request[np.ndarray[Any, DTypeT]]: ...
    @overload
    def ineighbor_allgather(
        self, x: ArrayT | Number, out: ArrayT | None = None
    ) -> _core.Request[ArrayT]: ...
    def ineighbor_allgather(
        self, x: ArrayT | Number, out: ArrayT | None = None
    ) -> _core.Request[ArrayT]:
        """Start a `neighbor_allgather` and return at once; see `iallreduce`.
        Collective.
        """
        return self._engine.neighbors(self._allgather, x, out, None, False)

    def neighbor_alltoall(
        self, x: ArrayT | Number, out: ArrayT | None = None, *, timeout: float | None = None
    ) -> ArrayT:
        """Send each destination a block of its own, and receive one from each source.
        Collective.

        Parameters
        ----------
        x : array
            Blocks of equal length for the `destinations`, in their order. The length and the dtype
            are the same on all ranks.
        out : array, optional
            The destination of the blocks from the `sources`, as for `neighbor_allgather`. If it
            overlaps `x`, `x` is copied first. A rank that has sources and no destination has to
            pass it.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array
            `out`, or a new array: the blocks joined along the first axis.

        Raises
        ------
        CollectivesError
            As for `allreduce`.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> ring = cc.world().cart((0,), periods=True)
        >>> to_left, to_right = -1.0, 1.0
        >>> ring.neighbor_alltoall(np.array([to_left, to_right]))
        array([ 1., -1.])
        """
        return self._engine.neighbors(self._alltoall, x, out, timeout)

    def ineighbor_alltoall(
        self, x: ArrayT | Number, out: ArrayT | None = None
    ) -> _core.Request[ArrayT]:
        """Start a `neighbor_alltoall` and return at once; see `iallreduce`.
        Collective.
        """
        return self._engine.neighbors(self._alltoall, x, out, None, False)

    def neighbor_allgatherv(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        counts: Counts | None = None,
        displs: Counts | None = None,
        timeout: float | None = None,
    ) -> ArrayT:
        """Give the array of each rank, which may differ in length, to all its destinations.
        Collective.

        Parameters
        ----------
        x : array
            This rank's contribution, of any number of elements.
        out : array, optional
            As for `neighbor_allgather`, with ``sum(counts)`` elements.
        counts : sequence of int, optional
            The number of elements from each source. All ranks pass them, or none; if none does,
            neighbours exchange them first. They are always exchanged, and compared, under
            ``COLLECTIVES_VALIDATE=1``.
        displs : sequence of int, optional
            The beginning of the block of each source in `out`, in elements; blocks do not overlap,
            and elements between them are not changed. One after the other by default.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array
            `out`, or a new array: the contributions joined along the first axis.

        Raises
        ------
        CollectivesError
            As for `allreduce`.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> ring = cc.world().cart((0,), periods=True)
        >>> left, right = ring.shift(0)
        >>> joined = ring.neighbor_allgatherv(np.ones(cc.rank()))
        >>> len(joined) == left + right
        True
        """
        return self._allgatherv(x, out, counts, displs, timeout, True)

    def ineighbor_allgatherv(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        counts: Counts | None = None,
        displs: Counts | None = None,
    ) -> _core.Request[ArrayT]:
        """Start a `neighbor_allgatherv` and return at once, or after the exchange of the counts.
        Collective.
        """
        return self._allgatherv(x, out, counts, displs, None, False)

    def neighbor_alltoallv(
        self,
        x: ArrayT | Number,
        counts: Counts,
        out: ArrayT | None = None,
        *,
        receive_counts: Counts | None = None,
        displs: Counts | None = None,
        receive_displs: Counts | None = None,
        timeout: float | None = None,
    ) -> ArrayT:
        """Send each destination a block of its own; the blocks may differ in length.
        Collective.

        Parameters
        ----------
        x : array
            ``sum(counts)`` elements, those for the first destination first.
        counts : sequence of int
            The number of elements for each destination.
        out : array, optional
            The destination of the received blocks, as for `neighbor_alltoall`.
        receive_counts : sequence of int, optional
            The number of elements from each source, as `counts` of `neighbor_allgatherv`.
        displs, receive_displs : sequence of int, optional
            The beginning of the block for each destination in `x`, and of the one from each source
            in `out`, in elements, as for `alltoallv`.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array
            `out`, or a new array: the blocks joined along the first axis.

        Raises
        ------
        CollectivesError
            As for `allreduce`.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> ring = cc.world().cart((0,), periods=True)
        >>> ring.neighbor_alltoallv(np.array([1, 2, 2]), [1, 2])  # one to the left
        array([2, 2, 1])
        """
        every = counts, receive_counts, displs, receive_displs
        return self._alltoallv(x, out, every, timeout, True)

    def ineighbor_alltoallv(
        self,
        x: ArrayT | Number,
        counts: Counts,
        out: ArrayT | None = None,
        *,
        receive_counts: Counts | None = None,
        displs: Counts | None = None,
        receive_displs: Counts | None = None,
    ) -> _core.Request[ArrayT]:
        """Start a `neighbor_alltoallv` and return at once, or after the exchange of the counts.
        Collective.
        """
        every = counts, receive_counts, displs, receive_displs
        return self._alltoallv(x, out, every, None, False)

    def neighbor_alltoallw(
        self,
        arrays: Sequence[NDArray[Any] | None],
        out: Sequence[NDArray[Any] | None],
        *,
        timeout: float | None = None,
    ) -> list[NDArray[Any] | None]:
        """Send each destination an array of its own, of any shape and dtype.
        Collective.

        Parameters
        ----------
        arrays : sequence of numpy.ndarray or None
            One for each destination. They need not be contiguous: a column of a matrix can be sent.
            None is an array without elements.
        out : sequence of numpy.ndarray or None
            The destination of the array of each source: each has the bytes of the sent array. They
            may be views into one array, and need not be contiguous.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        list of numpy.ndarray or None
            `out`.

        Raises
        ------
        CollectivesError
            As for `allreduce`.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> ring = cc.world().cart((0,), periods=True)
        >>> halo = np.zeros((2, 4))
        >>> halo[:, 1:3] = 1 + cc.rank()
        >>> columns = halo[:, 1], halo[:, 2]
        >>> landed = ring.neighbor_alltoallw(columns, (halo[:, 0], halo[:, 3]))
        >>> left, right = ring.shift(0)
        >>> bool((halo[:, 0] == 1 + left).all())
        True
        """
        return self._alltoallw(arrays, out, timeout, True)

    def ineighbor_alltoallw(
        self, arrays: Sequence[NDArray[Any] | None], out: Sequence[NDArray[Any] | None]
    ) -> _core.Request[list[NDArray[Any] | None]]:
        """Start a `neighbor_alltoallw` and return at once. The arrays are copied first; the others
        are written by ``wait``, or by the ``test`` that returns True.
        Collective.
        """
        return self._alltoallw(arrays, out, None, False)

    def plan(
        self,
        collective: Literal["neighbor_allgather", "neighbor_alltoall"],
        x: ArrayT | Number,
        out: ArrayT | None = None,
    ) -> _core.PlannedCall[ArrayT]:
        """Prepare a collective that is run many times with the same arrays.
        Local.

        Parameters
        ----------
        collective : str
            ``"neighbor_allgather"`` or ``"neighbor_alltoall"``.
        x, out : array
            As for that method; contiguous, and without memory in common.

        Returns
        -------
        PlannedCall
            As of `Communicator.plan`.

        Raises
        ------
        ArgumentError
            As for the method. It is raised here, not by a run.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> ring = cc.world().cart((0,), periods=True)
        >>> planned = ring.plan("neighbor_alltoall", np.array([-1.0, 1.0]))
        >>> planned()
        array([ 1., -1.])
        """
        return self._engine.plan_neighbors(self._named(collective)[0], x, out)

    def algorithm(self, collective: str) -> Algorithm:
        """Return the algorithm of a collective, for `collectives.check.check` and drawings.
        Local.

        Parameters
        ----------
        collective : str
            ``"neighbor_allgather"`` or ``"neighbor_alltoall"``.

        Returns
        -------
        Algorithm
            It is no part of the registry, and is one of this number of ranks only.

        Examples
        --------
        >>> import collectives as cc
        >>> from collectives.check import check
        >>> grid = cc.world().cart((0,), periods=True)
        >>> proof = check(grid.algorithm("neighbor_alltoall"), p=grid.comm.size)
        """
        return self._named(collective)[1]

    def _named(self, collective: str) -> tuple[_core.Neighbors, Algorithm]:
        if collective == ALLGATHER:
            return self._allgather, self._neighborhood.allgather
        if collective == ALLTOALL:
            return self._alltoall, self._neighborhood.alltoall
        raise ArgumentError(
            f"collective is {shown(collective)}, and must be {ALLGATHER!r} or {ALLTOALL!r}"
        )

    def _ready(self, collective: str, inputs: int, outputs: int) -> _core.Neighbors:
        """Return the description of a collective for the core."""
        near = self._neighborhood
        return _core.Neighbors(
            collective,
            inputs,
            outputs,
            near.checksum,
            partial(self._choose, collective),
            has_gaps=None in self.sources,
            has_repeats=any(len({*each}) < len(each) for each in (self.sources, self.destinations)),
            is_connected=near.is_connected,
        )

    def _choose(self, collective: str, nbytes: int) -> _core.Choice:
        """Return the plan for blocks of `nbytes` bytes, or -1 if they differ in length.

        Blocks go through shared memory only if all ranks know their length.
        """
        row = self._named(collective)[1]
        source = schedule.compile(row, self.comm.size, self.comm.rank)
        shares = nbytes >= 0 and self._neighborhood.is_connected
        plan = self.comm._chooser.packed(source, nbytes, shares)
        return _core.Choice(plan, 0, "it is the only one")

    def _allgatherv(
        self,
        x: Any,
        out: Any,
        counts: Counts | None,
        displs: Counts | None,
        timeout: float | None,
        blocking: bool,
    ) -> Any:
        sources = self.sources
        with refusing(self._engine, f"{ALLGATHER}v"):
            mine = np.array([prod(_core.shape(x))], np.int64)
            given = None
            if counts is not None:
                given = counts_of(counts, len(sources), alone, "counts", "source")
                own = [source == self.comm.rank for source in sources]
                compare_counts(given, np.where(own, mine, given), "counts", sources)
        with self._engine:
            received = self._known(ALLGATHER, mine, given, "counts", timeout)
            with refusing(self._engine, f"{ALLGATHER}v"):
                for k, first in self._neighborhood.repeated(self.comm.rank).items():
                    if received[k] != received[first]:
                        raise ArgumentError(
                            f"counts is {received.tolist()}, and rank {sources[k]}, the source of "
                            f"blocks {first} and {k}, sends both the same"
                        )
                starts = self._places(displs, received, out, "displs")
            parts = _core.Parts(mine, received, None, starts)
            return self._engine.neighbors(self._allgather, x, out, timeout, blocking, parts)

    def _alltoallv(
        self,
        x: Any,
        out: Any,
        every: tuple[Counts, Counts | None, Counts | None, Counts | None],
        timeout: float | None,
        blocking: bool,
        place: Any = None,
    ) -> Any:
        counts, receive_counts, displs, receive_displs = every
        ends, given = len(self.sources), None
        with refusing(self._engine, f"{ALLTOALL}v"):
            _core.shape(x)
            sent = counts_of(counts, len(self.destinations), alone, "counts", "destination")
            starts = places(displs, sent, x, ("displs", "x"), False, alone)
            if receive_counts is not None:
                given = counts_of(receive_counts, ends, alone, "receive_counts", "source")
                own = given.copy()
                for k, goal in self._own():
                    own[goal] = sent[k]
                compare_counts(given, own, "receive_counts", self.sources)
        with self._engine:
            received = self._known(ALLTOALL, sent, given, "receive_counts", timeout)
            with refusing(self._engine, f"{ALLTOALL}v"):
                goals = self._places(receive_displs, received, out, "receive_displs")
            parts = _core.Parts(sent, received, starts, goals, after=place)
            return self._engine.neighbors(self._alltoall, x, out, timeout, blocking, parts)

    def _alltoallw(
        self, arrays: Sequence[Any], out: Sequence[Any], timeout: float | None, blocking: bool
    ) -> Any:
        with refusing(self._engine, f"{ALLTOALL}w"):
            given = _listed("arrays", arrays, len(self.destinations), "destination")
            goals = _listed("out", out, len(self.sources), "source")
            for k, goal in enumerate(goals):
                if goal is not None and not goal.flags.writeable:
                    raise ArgumentError(f"out[{k}] is read-only, and would be written")
            sent, received = (
                [0 if a is None else a.nbytes for a in each] for each in (given, goals)
            )
            for k, at in self._own():
                if sent[k] != received[at]:
                    raise ArgumentError(
                        f"arrays[{k}] has {sent[k]} bytes and goes to out[{at}] of the same rank, "
                        f"which has {received[at]}; they must be equal"
                    )
        parts = [_bytes(each) for each in given if each is not None]
        x = np.concatenate(parts) if parts else np.empty(0, np.uint8)
        landed = np.empty(sum(received), np.uint8)

        def place(_: Any) -> list[Any]:
            start = 0
            for source, goal, nbytes in zip(self.sources, goals, received, strict=True):
                if goal is not None and source is not None:
                    piece = landed[start : start + nbytes]
                    goal[...] = piece.view(goal.dtype).reshape(goal.shape)
                start += nbytes
            return goals

        every = sent, received, None, None
        return self._alltoallv(x, landed, every, timeout, blocking, place)

    def _own(self) -> list[tuple[int, int]]:
        """Return the blocks that this rank sends to itself, and their places in `out`. Local."""
        rank = self.comm.rank
        pairs = zip(self.destinations, self._neighborhood.arrivals[rank], strict=True)
        return [(k, goal) for k, (destination, goal) in enumerate(pairs) if destination == rank]

    def _known(
        self,
        collective: str,
        sent: Integers,
        given: Integers | None,
        name: str,
        timeout: float | None,
    ) -> Integers:
        """Return the number of elements from each source. Collective, if neighbours are asked."""
        if given is not None and self._engine.agree is None:
            return given
        said: Integers = np.zeros(len(self.sources), np.int64)
        self._engine.neighbors(self._named(collective)[0], sent, said, timeout)
        if given is not None:
            gaps = [s is None for s in self.sources]
            with refusing(self._engine, f"{collective}v"):
                compare_counts(given, np.where(gaps, given, said), name, self.sources)
            return given
        return said

    def _places(self, displs: Counts | None, counts: Integers, out: Any, name: str) -> Any:
        """Return the starts of blocks in `out`; counts of blocks that are not written become 0."""
        if displs is not None:
            counts[[s is None for s in self.sources]] = 0
        return places(displs, counts, out, (name, "out"), True, alone)


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _listed(name: str, arrays: Any, length: int, each: str) -> list[NDArray[Any] | None]:
    """Return the arrays that a caller gave, one for each neighbour."""
    given = listed(arrays, name)
    if len(given) != length:
        raise ArgumentError(
            f"{name} has {count(len(given), 'item')}, and must have {length}, one for each {each}"
        )
    for k, array in enumerate(given):
        if array is not None and (not isinstance(array, np.ndarray) or array.dtype.hasobject):
            raise ArgumentError(
                f"{name}[{k}] is {shown(array)}, and must be a NumPy array that holds no Python "
                f"objects, or None"
            )
    return given


if environment.IS_TRACED:
    from collectives.records import checksums

    checksums.wrap(Neighbors)
