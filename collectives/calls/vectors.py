"""The vector forms: collectives in which the ranks may have different numbers of elements.

The counts have an item for each rank. In collectives without a root, a caller who knows them passes
them on every rank; otherwise the ranks first exchange them by a small ordinary collective. In those
with a root, the root may be the only rank that knows them, so it first broadcasts them, or that it
has none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from collectives import _core
from collectives._core import (
    ALLGATHER,
    ALLTOALL,
    GATHER,
    REDUCE_SCATTER,
    SCATTER,
)
from collectives.algorithms.bits import marked
from collectives.calls.base import Calls
from collectives.calls.counts import (
    checked,
    compare,
    equal_parts,
    places,
    wanted,
)
from collectives.errors import ArgumentError, MismatchError
from collectives.process.agreement import refusing
from collectives.reductions import SUM, Reduction

if TYPE_CHECKING:
    from collectives.arrays.types import ArrayT, Counts, Integers, Number, OpName

# algorithm, timeout, prescale, postscale, and whether the call blocks
Options = tuple[str | None, float | None, float, float, bool]


class VectorCalls(Calls):
    """The collectives with parts of different lengths."""

    def allgatherv(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        counts: Counts | None = None,
        displs: Counts | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> ArrayT:
        """Give the arrays of all ranks, which may differ in length, to every rank.
        Collective.

        Parameters
        ----------
        x : array
            This rank's contribution, as for `allreduce`: ``counts[rank]`` elements, which may be 0.
        out : array, optional
            The destination of the arrays, in the order of the ranks: ``sum(counts)`` elements. In
            place, `x` is this rank's part of `out`. A new array by default.
        counts : sequence of int, optional
            The number of elements of each rank, the same on all ranks. If no rank passes them, the
            ranks exchange them first.
        displs : sequence of int, optional
            The beginning of the part of each rank in `out`, in elements; parts do not overlap, and
            elements between them are not changed. This is local: ranks may have different ones, or
            none. The result is copied there. One part after the other by default.
        algorithm : str, optional
            One of ``collectives.algorithms.names("allgather")``.
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

        Notes
        -----
        Section 6.7 (Gather-to-all) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> joined = cc.allgatherv(np.full(cc.rank() + 1, cc.rank()))
        >>> len(joined) == sum(range(1, cc.size() + 1))
        True
        """
        return self._allgatherv(x, out, counts, displs, (algorithm, timeout, 1.0, 1.0, True))

    def iallgatherv(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        counts: Counts | None = None,
        displs: Counts | None = None,
        algorithm: str | None = None,
    ) -> _core.Request[ArrayT]:
        """Start an `allgatherv` and return at once, or after the exchange of the counts.
        Collective.
        """
        return self._allgatherv(x, out, counts, displs, (algorithm, None, 1.0, 1.0, False))

    def gatherv(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        counts: Counts | None = None,
        displs: Counts | None = None,
        root: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> ArrayT | None:
        """Give the arrays of all ranks, which may differ in length, to the root.
        Collective.

        Parameters
        ----------
        x : array
            As for `allgatherv`.
        out : array, optional
            The destination of the arrays on the root, as for `allgatherv`; ignored on other ranks.
        counts : sequence of int, optional
            The number of elements of each rank. Only the root has to know them; it tells the other
            ranks. If the root passes none, the ranks exchange them.
        displs : sequence of int, optional
            On the root, as for `allgatherv`; ignored on other ranks.
        root : int
            The rank that gets the arrays.
        algorithm : str, optional
            One of ``collectives.algorithms.names("gather")``.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array or None
            On the root, `out` or a new array: the contributions joined along the first axis. None
            on other ranks.

        Raises
        ------
        CollectivesError
            As for `allreduce`.

        Notes
        -----
        Section 6.5 (Gather) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> joined = cc.gatherv(np.full(cc.rank() + 1, cc.rank()))
        >>> joined is None or len(joined) == sum(range(1, cc.size() + 1))
        True
        """
        return self._gatherv(x, out, counts, displs, root, (algorithm, timeout, 1.0, 1.0, True))

    def igatherv(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        counts: Counts | None = None,
        displs: Counts | None = None,
        root: int = 0,
        algorithm: str | None = None,
    ) -> _core.Request[ArrayT | None]:
        """Start a `gatherv` and return at once. A rank that passes no counts waits first until the
        root has called it, and if the root passes none, the ranks exchange them first.
        Collective.
        """
        return self._gatherv(x, out, counts, displs, root, (algorithm, None, 1.0, 1.0, False))

    def scatterv(
        self,
        x: ArrayT | Number | None,
        out: ArrayT | None = None,
        *,
        counts: Counts | None = None,
        displs: Counts | None = None,
        root: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> ArrayT:
        """Give each rank a part of the root's array; the parts may differ in length.
        Collective.

        Parameters
        ----------
        x : array or None
            On the root, the data: ``sum(counts)`` elements, those for rank 0 first, or at the
            places in `displs`. On other ranks, an array with the root's dtype and the root's axes
            after the first, whose contents are not read, or None if `out` is given.
        out : array, optional
            The destination of this rank's part: ``counts[rank]`` elements. A new array by default.
        counts : sequence of int, optional
            The number of elements of each rank. Only the root has to know them; it tells the other
            ranks. If the root passes none, the counts are the sizes of the arrays `out`, if all
            ranks have one. Otherwise they are nearly equal: of n elements, the part of rank ``r``
            begins at ``n * r // size``.
        displs : sequence of int, optional
            On the root, the beginning of the part of each rank in `x`, in elements; parts may
            overlap. They are copied before they are sent. Ignored on other ranks. One part after
            the other by default.
        root : int
            The rank that has the data.
        algorithm : str, optional
            One of ``collectives.algorithms.names("scatter")``.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array
            `out`, or a new array.

        Raises
        ------
        CollectivesError
            As for `allreduce`.

        Notes
        -----
        Section 6.6 (Scatter) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> counts = [r + 1 for r in range(cc.size())]
        >>> part = cc.scatterv(np.arange(sum(counts)), counts=counts)
        >>> len(part) == cc.rank() + 1
        True
        """
        return self._scatterv(x, out, counts, displs, root, (algorithm, timeout, 1.0, 1.0, True))

    def iscatterv(
        self,
        x: ArrayT | Number | None,
        out: ArrayT | None = None,
        *,
        counts: Counts | None = None,
        displs: Counts | None = None,
        root: int = 0,
        algorithm: str | None = None,
    ) -> _core.Request[ArrayT]:
        """Start a `scatterv` and return at once. A rank that passes no counts waits first until the
        root has called it, and if the root passes none, the ranks exchange them first.
        Collective.
        """
        return self._scatterv(x, out, counts, displs, root, (algorithm, None, 1.0, 1.0, False))

    def reduce_scatterv(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        counts: Counts | None = None,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        timeout: float | None = None,
    ) -> ArrayT:
        """Fold the arrays of all ranks; each rank gets a part, and parts may differ in length.
        Collective.

        Parameters
        ----------
        x, op, algorithm, bits, prescale, postscale, timeout
            As for `reduce_scatter`; `x` has ``sum(counts)`` elements, those for rank 0 first.
        out : array, optional
            The destination of this rank's part: ``counts[rank]`` elements. A new array by default.
        counts : sequence of int, optional
            The number of elements of each rank, the same on all ranks; nearly equal by default, as
            for `scatterv`.

        Returns
        -------
        array
            `out`, or a new array.

        Raises
        ------
        CollectivesError
            As for `allreduce`.

        Notes
        -----
        Section 6.10.2 (MPI_REDUCE_SCATTER) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> counts = [r + 1 for r in range(cc.size())]
        >>> part = cc.reduce_scatterv(np.ones(sum(counts)), counts=counts)
        >>> len(part) == cc.rank() + 1
        True
        """
        options = marked(algorithm, bits), timeout, prescale, postscale, True
        return self._reduce_scatterv(x, out, counts, op, options)

    def ireduce_scatterv(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        counts: Counts | None = None,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> _core.Request[ArrayT]:
        """Start a `reduce_scatterv` and return at once; see `iallreduce`.
        Collective.
        """
        options = marked(algorithm, bits), None, prescale, postscale, False
        return self._reduce_scatterv(x, out, counts, op, options)

    def alltoallv(
        self,
        x: ArrayT | Number,
        counts: Counts,
        out: ArrayT | None = None,
        *,
        receive_counts: Counts | None = None,
        displs: Counts | None = None,
        receive_displs: Counts | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> ArrayT:
        """Send a part of each rank's array to each rank; the parts may differ in length.
        Collective.

        Parameters
        ----------
        x : array
            ``sum(counts)`` elements, those for rank 0 first.
        counts : sequence of int
            The number of elements for each rank.
        out : array, optional
            The destination of the received parts, the one from rank 0 first. If it is `x` itself,
            `x` is copied first. A new array by default.
        receive_counts : sequence of int, optional
            The number of elements from each rank. All ranks pass them, or none; if none does, the
            ranks exchange them first. Under ``COLLECTIVES_VALIDATE=1`` they are always exchanged,
            and compared.
        displs, receive_displs : sequence of int, optional
            The beginning of the part for each rank in `x`, and of the one from each rank in `out`,
            in elements. The parts in `out` do not overlap. They are local, and cost copies. One
            part after the other by default.
        algorithm : str, optional
            One of ``collectives.algorithms.names("alltoall")`` in which no block passes through a
            third rank: ``"direct"`` or ``"pairwise"``.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array
            `out`, or a new array: the received parts, joined along the first axis.

        Raises
        ------
        CollectivesError
            As for `allreduce`.

        Notes
        -----
        Section 6.8 (All-to-All Scatter/Gather) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> counts = [r + 1 for r in range(cc.size())]
        >>> got = cc.alltoallv(np.full(sum(counts), cc.rank()), counts)
        >>> len(got) == cc.size() * (cc.rank() + 1)
        True
        """
        return self._alltoallv(
            x,
            counts,
            out,
            receive_counts,
            displs,
            receive_displs,
            (algorithm, timeout, 1.0, 1.0, True),
        )

    def ialltoallv(
        self,
        x: ArrayT | Number,
        counts: Counts,
        out: ArrayT | None = None,
        *,
        receive_counts: Counts | None = None,
        displs: Counts | None = None,
        receive_displs: Counts | None = None,
        algorithm: str | None = None,
    ) -> _core.Request[ArrayT]:
        """Start an `alltoallv` and return at once, or after the exchange of the counts.
        Collective.
        """
        return self._alltoallv(
            x,
            counts,
            out,
            receive_counts,
            displs,
            receive_displs,
            (algorithm, None, 1.0, 1.0, False),
        )

    def _allgatherv(
        self, x: Any, out: Any, counts: Counts | None, displs: Counts | None, options: Options
    ) -> Any:
        with refusing(self._engine, "allgatherv"):
            every = self._counts(x, counts)
        if every is None:
            every = self._exchanged(x, options)
        with refusing(self._engine, "allgatherv"):
            starts = places(displs, every, out, ("displs", "out"), True)
        parts = every, every, None, starts, None
        return self._engine.call_vector(ALLGATHER, x, out, None, 0, *options, parts)

    def _gatherv(
        self,
        x: Any,
        out: Any,
        counts: Counts | None,
        displs: Counts | None,
        root: int,
        options: Options,
    ) -> Any:
        with refusing(self._engine, "gatherv"):
            root = self._engine.check_root(root)
            given = self._counts(x, counts)
        every, before = self._told(GATHER, given, root, options)
        if every is None:
            every = self._exchanged(x, options)
        starts = None
        if self.rank == root:
            with refusing(self._engine, "gatherv"):
                starts = places(displs, every, out, ("displs", "out"), True)
        parts = every, every, None, starts, before
        return self._engine.call_vector(GATHER, x, out, None, root, *options, parts)

    def _scatterv(
        self,
        x: Any,
        out: Any,
        counts: Counts | None,
        displs: Counts | None,
        root: int,
        options: Options,
    ) -> Any:
        with refusing(self._engine, "scatterv"):
            root = self._engine.check_root(root)
            if x is None and (out is None or self.rank == root):
                raise ArgumentError(
                    "x is None, and must be an array on the root and where out is None"
                )
            whole = 0 if x is None else prod(_core.shape(x))
            mine = -1 if out is None else prod(_core.shape(out, "out"))
            given = None if counts is None else checked(counts, self.size)
        every, before = self._told(SCATTER, given, root, options)
        if every is None:
            said = self._gathered(np.array([mine, whole], np.int64), options)
            with refusing(self._engine, "scatterv"):
                every = wanted(said[:, 0], int(said[root, 1]))
        starts = None
        if self.rank == root:
            with refusing(self._engine, "scatterv"):
                starts = places(displs, every, x, ("displs", "x"), False)
        parts = every, every, starts, None, before
        return self._engine.call_vector(SCATTER, x, out, None, root, *options, parts)

    def _reduce_scatterv(
        self,
        x: Any,
        out: Any,
        counts: Counts | None,
        op: Reduction | str,
        options: Options,
    ) -> Any:
        with refusing(self._engine, "reduce_scatterv"):
            shape = _core.shape(x, structures=True)
            every = equal_parts(prod(shape), self.size)
            if counts is not None:
                every = checked(counts, self.size)
        parts = every, every, None, None, None
        return self._engine.call_vector(REDUCE_SCATTER, x, out, op, 0, *options, parts)

    def _alltoallv(
        self,
        x: Any,
        counts: Counts,
        out: Any,
        receive_counts: Counts | None,
        displs: Counts | None,
        receive_displs: Counts | None,
        options: Options,
    ) -> Any:
        with refusing(self._engine, "alltoallv"):
            _core.shape(x)
            sent = checked(counts, self.size)
            starts = places(displs, sent, x, ("displs", "x"), False)
            given = None
            if receive_counts is not None:
                given = checked(receive_counts, self.size, "receive_counts")
                own = given.copy()
                own[self.rank] = sent[self.rank]
                compare(given, own)  # its own count, without asking another rank
        if given is None or self._engine.agree is not None:
            received = self._call(ALLTOALL, sent, None, None, 0, None, options[1])
            if given is not None:
                with refusing(self._engine, "alltoallv"):
                    compare(given, received)
        else:
            received = given
        with refusing(self._engine, "alltoallv"):
            ends = places(receive_displs, received, out, ("receive_displs", "out"), True)
        parts = sent, received, starts, ends, None
        return self._engine.call_vector(ALLTOALL, x, out, None, 0, *options, parts)

    def _counts(self, x: Any, counts: Counts | None) -> Integers | None:
        """Return the counts that were given, if any; raise an error unless `x` is an array."""
        _core.shape(x)
        return None if counts is None else checked(counts, self.size)

    def _exchanged(self, x: Any, options: Options) -> Integers:
        """Return the numbers of elements of `x` on all ranks. Collective."""
        every: Integers = self._gathered(np.array([prod(_core.shape(x))]), options).reshape(-1)
        return every

    def _gathered(self, mine: Integers, options: Options) -> Integers:
        """Return a row of numbers of each rank. Collective."""
        every: Integers = self._call(ALLGATHER, mine, None, None, 0, None, options[1])
        return every

    def _told(
        self, kind: int, given: Integers | None, root: int, options: Options
    ) -> tuple[Integers | None, tuple[_core.Request, Callable[[Any], Any]] | None]:
        """Return the counts, or None if the root has none. For a call that does not wait for the
        root, also return another request that has to be complete, and a function that returns the
        result. Collective.
        """
        timeout, blocking = options[1], options[4]
        if self.size == 1:
            return given, None
        told = np.full(self.size, -1, np.int64)
        if given is not None and self.rank == root:
            told = given
        request = self._engine.tell_counts(kind, told, root)
        # If this rank continues with other counts, the comparison of calls finds the difference.
        engine = self._engine
        compares = engine.agree is not None or (engine.segment is not None and self.nodes == 1)
        if given is not None and (compares or not blocking):
            return given, (request, partial(self._after, request, given, told, root, timeout))
        request.wait(timeout)
        if given is not None:
            self._compare(given, told, root)
            return given, None
        return (None if told[0] < 0 else told), None

    def _after(
        self,
        request: _core.Request,
        given: Integers,
        told: Integers,
        root: int,
        timeout: float | None,
        result: Any,
    ) -> Any:
        """Return a result when the root has told its counts."""
        request.wait(timeout)
        self._compare(given, told, root)
        return result

    def _compare(self, given: Integers, told: Integers, root: int) -> None:
        """Raise an error if this rank was given other counts than the root."""
        if given is not told and (given != told).any():
            theirs = "none" if told[0] < 0 else told.tolist()
            raise MismatchError(
                f"the ranks do not agree: counts is {given.tolist()} on rank {self.rank}, and "
                f"{theirs} on rank {root}, the root; pass the same on all ranks, or pass them on "
                f"the root only, or on no rank"
            )
