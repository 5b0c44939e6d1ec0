"""The collectives that move: broadcast, allgather, alltoall, gather, scatter; and the barrier."""

from __future__ import annotations

from typing import Any

from collectives import _core
from collectives.calls.kinds import (
    ALLGATHER,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    GATHER,
    SCATTER,
)

__all__ = ["MovingCalls"]


class MovingCalls:
    """What a communicator does with arrays that go from rank to rank as they are."""

    _call: Any

    def broadcast(
        self,
        x: Any,
        out: Any = None,
        *,
        root: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Give the root's array to every rank.
        Collective.

        Parameters
        ----------
        x : array
            The data on the root. On other ranks it says the number of elements and the dtype, which
            are the root's; its contents are not read.
        out : array, optional
            Where the data goes, as for `allreduce`; ``out=x`` broadcasts in place. A new array by
            default.
        root : int
            The rank whose data everybody gets.
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
        """
        return self._call(BROADCAST, x, out, None, root, algorithm, timeout)

    def ibroadcast(
        self, x: Any, out: Any = None, *, root: int = 0, algorithm: str | None = None
    ) -> _core.Request:
        """Start a `broadcast` and return at once; see `iallreduce`.
        Collective.
        """
        request: _core.Request = self._call(
            BROADCAST, x, out, None, root, algorithm, None, 1.0, 1.0, False
        )
        return request

    def barrier(self, *, algorithm: str | None = None, timeout: float | None = None) -> None:
        """Wait until every rank has come here.
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
            As for `allreduce`; a `StallError` if a rank does not come within the deadline.
        """
        self._call(BARRIER, None, None, None, 0, algorithm, timeout)

    def ibarrier(self, *, algorithm: str | None = None) -> _core.Request:
        """Start a `barrier` and return at once; see `iallreduce`.
        Collective.
        """
        request: _core.Request = self._call(
            BARRIER, None, None, None, 0, algorithm, None, 1.0, 1.0, False
        )
        return request

    def allgather(
        self, x: Any, out: Any = None, *, algorithm: str | None = None, timeout: float | None = None
    ) -> Any:
        """Give the arrays of all ranks to every rank.
        Collective.

        Parameters
        ----------
        x : array
            This rank's contribution, as for `allreduce`.
        out : array, optional
            Where they go, one after the other: ``size`` times as many elements as `x`. In place,
            `x` is ``out[rank]``, with ranks along the first axis of `out`. A new array by default.
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
        """
        return self._call(ALLGATHER, x, out, None, 0, algorithm, timeout)

    def iallgather(self, x: Any, out: Any = None, *, algorithm: str | None = None) -> _core.Request:
        """Start an `allgather` and return at once; see `iallreduce`.
        Collective.
        """
        request: _core.Request = self._call(
            ALLGATHER, x, out, None, 0, algorithm, None, 1.0, 1.0, False
        )
        return request

    def alltoall(
        self, x: Any, out: Any = None, *, algorithm: str | None = None, timeout: float | None = None
    ) -> Any:
        """Send a part of each rank's array to each rank: a transpose over the ranks.
        Collective.

        Parameters
        ----------
        x : array
            Its first ``x.size // size`` elements go to rank 0, the next to rank 1, and so on.
        out : array, optional
            Where the parts come together, that from rank 0 first: as many elements as `x`. It may
            be `x`, which is copied then. A new array by default.
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
            As for `allreduce`. `alltoallv` takes arrays that cannot be cut equally.
        """
        return self._call(ALLTOALL, x, out, None, 0, algorithm, timeout)

    def ialltoall(self, x: Any, out: Any = None, *, algorithm: str | None = None) -> _core.Request:
        """Start an `alltoall` and return at once; see `iallreduce`.
        Collective.
        """
        request: _core.Request = self._call(
            ALLTOALL, x, out, None, 0, algorithm, None, 1.0, 1.0, False
        )
        return request

    def gather(
        self,
        x: Any,
        out: Any = None,
        *,
        root: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Give the arrays of all ranks to the root.
        Collective.

        Parameters
        ----------
        x : array
            This rank's contribution, as for `allreduce`.
        out : array, optional
            Where they go on the root, as for `allgather`; ignored on other ranks.
        root : int
            The rank that gets them.
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
        """
        return self._call(GATHER, x, out, None, root, algorithm, timeout)

    def igather(
        self, x: Any, out: Any = None, *, root: int = 0, algorithm: str | None = None
    ) -> _core.Request:
        """Start a `gather` and return at once; see `iallreduce`.
        Collective.
        """
        request: _core.Request = self._call(
            GATHER, x, out, None, root, algorithm, None, 1.0, 1.0, False
        )
        return request

    def scatter(
        self,
        x: Any,
        out: Any = None,
        *,
        root: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Give each rank an equal part of the root's array.
        Collective.

        Parameters
        ----------
        x : array or None
            On the root the data, whose first ``x.size // size`` elements go to rank 0. On other
            ranks an array with the root's shape and dtype, whose contents are not read, or None if
            there is an `out`.
        out : array, optional
            Where this rank's part goes: ``x.size // size`` elements. In place on the root, it is
            that part of `x`. A new array by default.
        root : int
            The rank that has the data.
        algorithm : str, optional
            One of ``collectives.algorithms.names("scatter")``.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array
            `out`, or a new array with the shape of the parts of `x` along its first axis; flat, if
            that axis cannot be cut equally.

        Raises
        ------
        CollectivesError
            As for `allreduce`. `scatterv` takes arrays that cannot be cut equally.
        """
        return self._call(SCATTER, x, out, None, root, algorithm, timeout)

    def iscatter(
        self, x: Any, out: Any = None, *, root: int = 0, algorithm: str | None = None
    ) -> _core.Request:
        """Start a `scatter` and return at once; see `iallreduce`.
        Collective.
        """
        request: _core.Request = self._call(
            SCATTER, x, out, None, root, algorithm, None, 1.0, 1.0, False
        )
        return request
