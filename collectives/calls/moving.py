"""The collectives that only move data: broadcast, allgather, alltoall, gather, scatter, barrier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from collectives import _core
from collectives._core import ALLGATHER, ALLTOALL, BARRIER, BROADCAST, GATHER, SCATTER
from collectives.calls.base import Calls

if TYPE_CHECKING:
    import numpy as np

    from collectives.arrays.types import ArrayT, DTypeT, Number


class MovingCalls(Calls):
    """The collectives that send arrays from rank to rank without combining them."""

    def broadcast(
        self,
        x: ArrayT | Number | None,
        out: ArrayT | None = None,
        *,
        root: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> ArrayT:
        """Give the root's array to every rank.
        Collective.

        Parameters
        ----------
        x : array or None
            The data on the root. On other ranks, an array with the root's number of elements and
            dtype, whose contents are not read, or None if `out` is given.
        out : array, optional
            The destination of the data, as for `allreduce`; ``out=x`` broadcasts in place. A new
            array by default.
        root : int
            The rank that has the data.
        algorithm : str, optional
            One of ``collectives.algorithms.names("broadcast")``.
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
        Section 6.4 (Broadcast) of the MPI standard, version 4.1. On tensors, `collectives.torch`,
        `collectives.tensorflow` and `collectives.jax` have this collective with a gradient
        (:doc:`/reference/collectives`).

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> x = np.arange(3) if cc.rank() == 0 else np.empty(3, int)
        >>> cc.broadcast(x)
        array([0, 1, 2])
        """
        return self._call(BROADCAST, x, out, None, root, algorithm, timeout)

    def ibroadcast(
        self,
        x: ArrayT | Number | None,
        out: ArrayT | None = None,
        *,
        root: int = 0,
        algorithm: str | None = None,
    ) -> _core.Request[ArrayT]:
        """Start a `broadcast` and return at once; see `iallreduce`.
        Collective.
        """
        return self._start(BROADCAST, x, out, None, root, algorithm, None, 1.0, 1.0, False)

    def barrier(self, *, algorithm: str | None = None, timeout: float | None = None) -> None:
        """Wait until all ranks have called it.
        Collective.

        Parameters
        ----------
        algorithm : str, optional
            One of ``collectives.algorithms.names("barrier")``.
        timeout : float, optional
            As for `allreduce`.

        Raises
        ------
        CollectivesError
            As for `allreduce`; a `StallError` if a rank does not call it before the deadline.

        Notes
        -----
        Section 6.3 (Barrier Synchronization) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import collectives as cc
        >>> cc.barrier(timeout=60)
        """
        self._barrier(algorithm, timeout)

    def ibarrier(self, *, algorithm: str | None = None) -> _core.Request[None]:
        """Start a `barrier` and return at once; see `iallreduce`.
        Collective.
        """
        return self._start(BARRIER, None, None, None, 0, algorithm, None, 1.0, 1.0, False)

    @overload
    def allgather(
        self,
        x: np.ndarray[Any, DTypeT],
        out: np.ndarray[Any, DTypeT] | None = None,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> np.ndarray[Any, DTypeT]: ...
    @overload
    def allgather(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> ArrayT: ...
    def allgather(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> ArrayT:
        """Give the arrays of all ranks to every rank.
        Collective.

        Parameters
        ----------
        x : array
            This rank's contribution, as for `allreduce`.
        out : array, optional
            The destination of the arrays, in the order of the ranks: ``size`` times as many
            elements as `x`. In place, `x` is ``out[rank]``, with ranks along the first axis of
            `out`. A new array by default.
        algorithm : str, optional
            One of ``collectives.algorithms.names("allgather")``.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array
            `out`, or a new array of shape ``(size, *x.shape)``.

        Raises
        ------
        CollectivesError
            As for `allreduce`.

        Notes
        -----
        Section 6.7 (Gather-to-all) of the MPI standard, version 4.1. On tensors,
        `collectives.torch`, `collectives.tensorflow` and `collectives.jax` have this collective
        with a gradient (:doc:`/reference/collectives`).

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> rows = cc.allgather(np.array([cc.rank(), 7]))
        >>> rows.shape == (cc.size(), 2)
        True
        """
        return self._call(ALLGATHER, x, out, None, 0, algorithm, timeout)

    @overload
    def iallgather(
        self,
        x: np.ndarray[Any, DTypeT],
        out: np.ndarray[Any, DTypeT] | None = None,
        *,
        algorithm: str | None = None,
    ) -> _core.Request[np.ndarray[Any, DTypeT]]: ...
    @overload
    def iallgather(
        self, x: ArrayT | Number, out: ArrayT | None = None, *, algorithm: str | None = None
    ) -> _core.Request[ArrayT]: ...
    def iallgather(
        self, x: ArrayT | Number, out: ArrayT | None = None, *, algorithm: str | None = None
    ) -> _core.Request[ArrayT]:
        """Start an `allgather` and return at once; see `iallreduce`.
        Collective.
        """
        return self._start(ALLGATHER, x, out, None, 0, algorithm, None, 1.0, 1.0, False)

    def alltoall(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> ArrayT:
        """Send a part of each rank's array to each rank: a transpose over the ranks.
        Collective.

        Parameters
        ----------
        x : array
            Its first ``x.size // size`` elements go to rank 0, the next to rank 1, and so on.
        out : array, optional
            The destination of the received parts, the one from rank 0 first: as many elements as
            `x`. If it is `x` itself, `x` is copied first. A new array by default.
        algorithm : str, optional
            One of ``collectives.algorithms.names("alltoall")``.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array
            `out`, or a new array with the shape of `x`.

        Raises
        ------
        CollectivesError
            As for `allreduce`. Use `alltoallv` if `x` cannot be cut into equal parts.

        Notes
        -----
        Section 6.8 (All-to-All Scatter/Gather) of the MPI standard, version 4.1. On tensors,
        `collectives.torch`, `collectives.tensorflow` and `collectives.jax` have this collective
        with a gradient (:doc:`/reference/collectives`).

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> got = cc.alltoall(np.full(cc.size(), cc.rank()))
        >>> got.tolist() == list(range(cc.size()))
        True
        """
        return self._call(ALLTOALL, x, out, None, 0, algorithm, timeout)

    def ialltoall(
        self, x: ArrayT | Number, out: ArrayT | None = None, *, algorithm: str | None = None
    ) -> _core.Request[ArrayT]:
        """Start an `alltoall` and return at once; see `iallreduce`.
        Collective.
        """
        return self._start(ALLTOALL, x, out, None, 0, algorithm, None, 1.0, 1.0, False)

    @overload
    def gather(
        self,
        x: np.ndarray[Any, DTypeT],
        out: np.ndarray[Any, DTypeT] | None = None,
        *,
        root: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> np.ndarray[Any, DTypeT] | None: ...
    @overload
    def gather(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        root: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> ArrayT | None: ...
    def gather(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        root: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> ArrayT | None:
        """Give the arrays of all ranks to the root.
        Collective.

        Parameters
        ----------
        x : array
            This rank's contribution, as for `allreduce`.
        out : array, optional
            The destination of the arrays on the root, as for `allgather`; ignored on other ranks.
        root : int
            The rank that gets the arrays.
        algorithm : str, optional
            One of ``collectives.algorithms.names("gather")``.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array or None
            On the root `out`, or a new array of shape ``(size, *x.shape)``; None elsewhere.

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
        >>> rows = cc.gather(np.array([cc.rank(), 7]))
        >>> rows is None or rows.shape == (cc.size(), 2)
        True
        """
        return self._call(GATHER, x, out, None, root, algorithm, timeout)

    @overload
    def igather(
        self,
        x: np.ndarray[Any, DTypeT],
        out: np.ndarray[Any, DTypeT] | None = None,
        *,
        root: int = 0,
        algorithm: str | None = None,
    ) -> _core.Request[np.ndarray[Any, DTypeT] | None]: ...
    @overload
    def igather(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        root: int = 0,
        algorithm: str | None = None,
    ) -> _core.Request[ArrayT | None]: ...
    def igather(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        root: int = 0,
        algorithm: str | None = None,
    ) -> _core.Request[ArrayT | None]:
        """Start a `gather` and return at once; see `iallreduce`.
        Collective.
        """
        return self._start(GATHER, x, out, None, root, algorithm, None, 1.0, 1.0, False)

    def scatter(
        self,
        x: ArrayT | Number | None,
        out: ArrayT | None = None,
        *,
        root: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> ArrayT:
        """Give each rank an equal part of the root's array.
        Collective.

        Parameters
        ----------
        x : array or None
            On the root, the data: the first ``x.size // size`` elements go to rank 0, the next to
            rank 1, and so on. On other ranks, an array with the root's shape and dtype, whose
            contents are not read, or None if `out` is given.
        out : array, optional
            The destination of this rank's part: ``x.size // size`` elements. In place on the root,
            `out` is that part of `x`. A new array by default.
        root : int
            The rank that has the data.
        algorithm : str, optional
            One of ``collectives.algorithms.names("scatter")``.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array
            `out`, or a new array with the shape of one part, if `x` can be cut into equal parts
            along its first axis; otherwise a one-dimensional array.

        Raises
        ------
        CollectivesError
            As for `allreduce`. Use `scatterv` if `x` cannot be cut into equal parts.

        Notes
        -----
        Section 6.6 (Scatter) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> x = np.arange(2 * cc.size())
        >>> part = cc.scatter(x)
        >>> part.tolist() == [2 * cc.rank(), 2 * cc.rank() + 1]
        True
        """
        return self._call(SCATTER, x, out, None, root, algorithm, timeout)

    def iscatter(
        self,
        x: ArrayT | Number | None,
        out: ArrayT | None = None,
        *,
        root: int = 0,
        algorithm: str | None = None,
    ) -> _core.Request[ArrayT]:
        """Start a `scatter` and return at once; see `iallreduce`.
        Collective.
        """
        return self._start(SCATTER, x, out, None, root, algorithm, None, 1.0, 1.0, False)
