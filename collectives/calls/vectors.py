"""The vector forms: collectives in which the ranks may have different numbers of elements.

The counts have an item for each rank. In collectives without a root, a caller who knows them passes
them on every rank; otherwise the ranks first exchange them by a small ordinary collective. In those
with a root, the root may be the only rank that knows them. In shared memory, blocks have their
lengths; elsewhere the root first broadcasts the counts, or that it has none
(`_core/calls/vectors.pxi`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectives import _core
from collectives._core import (
    ALLGATHER,
    ALLTOALL,
    GATHER,
    REDUCE_SCATTER,
    SCATTER,
)
from collectives.calls.base import Calls
from collectives.reductions import SUM, Reduction

if TYPE_CHECKING:
    from collectives.arrays.types import ArrayT, Counts, Number, OpName


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
        return self._vector(ALLGATHER, x, out, counts, None, None, displs, algorithm, timeout)

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
        parts = counts, None, None, displs
        return self._vector(ALLGATHER, x, out, *parts, algorithm, blocking=False)

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
            The number of elements of each rank. Only the root has to know them. If the root passes
            none, no other rank may, and the lengths of the arrays are the counts.
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
        return self._vector(GATHER, x, out, counts, None, None, displs, algorithm, timeout, root)

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
        """Start a `gatherv` and return at once. A root that passes no counts waits first until all
        ranks have called it, and unless they share memory, other ranks without counts until the
        root has.
        Collective.
        """
        parts = counts, None, None, displs
        return self._vector(GATHER, x, out, *parts, algorithm, None, root, blocking=False)

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
            The number of elements of each rank. Only the root has to know them. If the root passes
            none, no other rank may, and the counts are the sizes of the arrays `out`, if all
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
        return self._vector(SCATTER, x, out, counts, None, displs, None, algorithm, timeout, root)

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
        parts = counts, None, displs, None
        return self._vector(SCATTER, x, out, *parts, algorithm, None, root, blocking=False)

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
        return self._vector(
            REDUCE_SCATTER,
            x,
            out,
            counts,
            None,
            None,
            None,
            algorithm,
            timeout,
            0,
            op,
            prescale,
            postscale,
            True,
            bits,
        )

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
        parts, scales = (counts, None, None, None), (prescale, postscale)
        return self._vector(
            REDUCE_SCATTER, x, out, *parts, algorithm, None, 0, op, *scales, False, bits
        )

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
        return self._vector(
            ALLTOALL, x, out, counts, receive_counts, displs, receive_displs, algorithm, timeout
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
        parts = counts, receive_counts, displs, receive_displs
        return self._vector(ALLTOALL, x, out, *parts, algorithm, blocking=False)
