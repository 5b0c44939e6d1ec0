"""The collectives in which all ranks give, or get, equally much: blocking, nonblocking, planned."""

from __future__ import annotations

from typing import Any

from collectives import _core
from collectives.errors import ArgumentError
from collectives.reductions import SUM, Reduction

__all__ = ["Calls"]

(
    ALLREDUCE,
    REDUCE,
    BROADCAST,
    BARRIER,
    ALLGATHER,
    REDUCE_SCATTER,
    ALLTOALL,
    GATHER,
    SCATTER,
    SCAN,
    EXSCAN,
) = range(len(_core.COLLECTIVES))

SCALED = ("allreduce", "reduce", "reduce_scatter")  # those that take prescale and postscale


class Calls:
    """What a communicator does with arrays that are cut equally, or not at all."""

    _call: Any
    _engine: _core.Engine

    def allreduce(
        self,
        x: Any,
        out: Any = None,
        *,
        op: Reduction = SUM,
        algorithm: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        timeout: float | None = None,
    ) -> Any:
        """Fold the arrays of all ranks; every rank gets the result.
        Collective.

        Parameters
        ----------
        x : array
            This rank's contribution: same number of elements and dtype on all ranks. Host memory.
            If it is not contiguous, a packed copy is sent.
        out : array, optional
            Where the result goes: contiguous, writable, as many elements and the dtype of `x`;
            `x` itself (in place) or memory apart from it. A new array by default.
        op : Reduction
            ``SUM``, ``PROD``, ``MIN``, ``MAX``, ``AVG``, ``LAND``, ``LOR``, ``LXOR``, ``BAND``,
            ``BOR``, ``BXOR``, or one made by `reduction`.
        algorithm : str, optional
            One of ``collectives.algorithms.names("allreduce")``; chosen by size and number of ranks
            by default.
        prescale, postscale : float
            What each contribution, and the result, is multiplied by.
        timeout : float, optional
            Seconds after which a wait in this call raises `StallError`; by default the
            communicator's.

        Returns
        -------
        array
            `out`, or a new array with the shape of `x`.

        Raises
        ------
        ArgumentError
            If an argument cannot be accepted (`BufferError`: `x` or `out`). Nothing was sent. The
            other ranks wait for this one, and those of its host raise `MismatchError` if it calls
            something else next; under ``COLLECTIVES_VALIDATE=1`` all of them do at once.
        UnsupportedTypeError
            If there is no kernel for this operation and dtype. It is as for an `ArgumentError`.
        MismatchError
            If the ranks called different things. Where they share memory, all of them raise it, and
            it says what each called; else a rank that got a message of an unexpected length does.
        StallError, PeerLostError, PeerAbortedError, MPIError
            If the deadline passes, another rank has ended or has given up, or MPI fails. After
            these and a `MismatchError`, the communicator is broken.
        """
        return self._call(ALLREDUCE, x, out, op, 0, algorithm, timeout, prescale, postscale)

    def iallreduce(
        self,
        x: Any,
        out: Any = None,
        *,
        op: Reduction = SUM,
        algorithm: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> _core.Request:
        """Start an `allreduce` and return at once.
        Collective: all ranks start their operations in the same order, and complete them in any.

        Parameters
        ----------
        x, out, op, algorithm, prescale, postscale
            As for `allreduce`; the deadline is that of ``wait(timeout=...)``. Neither `x` nor `out`
            may be touched until the request is complete.

        Returns
        -------
        Request
            ``test()`` moves it on and says whether it is complete; ``wait()`` returns the result.
            Messages move only inside calls of the library. Under ``COLLECTIVES_VALIDATE=1`` the
            start waits until all ranks have come to it.
        """
        request: _core.Request = self._call(
            ALLREDUCE, x, out, op, 0, algorithm, None, prescale, postscale, False
        )
        return request

    def reduce(
        self,
        x: Any,
        out: Any = None,
        *,
        root: int = 0,
        op: Reduction = SUM,
        algorithm: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        timeout: float | None = None,
    ) -> Any:
        """Fold the arrays of all ranks; the root gets the result.
        Collective.

        Parameters
        ----------
        x, op, algorithm, prescale, postscale, timeout
            As for `allreduce`.
        out : array, optional
            Where the root's result goes; ignored on other ranks.
        root : int
            The rank that gets the result.

        Returns
        -------
        array or None
            The result on the root, None elsewhere.

        Raises
        ------
        CollectivesError
            As for `allreduce`.
        """
        return self._call(REDUCE, x, out, op, root, algorithm, timeout, prescale, postscale)

    def ireduce(
        self,
        x: Any,
        out: Any = None,
        *,
        root: int = 0,
        op: Reduction = SUM,
        algorithm: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> _core.Request:
        """Start a `reduce` and return at once; see `iallreduce`.
        Collective.
        """
        request: _core.Request = self._call(
            REDUCE, x, out, op, root, algorithm, None, prescale, postscale, False
        )
        return request

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

    def reduce_scatter(
        self,
        x: Any,
        out: Any = None,
        *,
        op: Reduction = SUM,
        algorithm: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        timeout: float | None = None,
    ) -> Any:
        """Fold the arrays of all ranks; each rank gets an equal part of the result.
        Collective.

        Parameters
        ----------
        x, op, algorithm, prescale, postscale, timeout
            As for `allreduce`; the number of elements of `x` is a multiple of ``size``, and its
            first ``x.size // size`` are the part of rank 0.
        out : array, optional
            Where this rank's part goes: ``x.size // size`` elements. In place, it is that part of
            `x`; what is in the other parts of `x` stays. A new array by default.

        Returns
        -------
        array
            `out`, or a new array with the shape of the parts of `x` along its first axis; flat, if
            that axis cannot be cut equally.

        Raises
        ------
        CollectivesError
            As for `allreduce`. `reduce_scatterv` takes arrays that cannot be cut equally.
        """
        return self._call(REDUCE_SCATTER, x, out, op, 0, algorithm, timeout, prescale, postscale)

    def ireduce_scatter(
        self,
        x: Any,
        out: Any = None,
        *,
        op: Reduction = SUM,
        algorithm: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> _core.Request:
        """Start a `reduce_scatter` and return at once; see `iallreduce`.
        Collective.
        """
        request: _core.Request = self._call(
            REDUCE_SCATTER, x, out, op, 0, algorithm, None, prescale, postscale, False
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

    def scan(
        self,
        x: Any,
        out: Any = None,
        *,
        op: Reduction = SUM,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Fold the arrays of the ranks up to this one, it included.
        Collective.

        Parameters
        ----------
        x, out, op, algorithm, timeout
            As for `allreduce`; `op` cannot be ``AVG``.

        Returns
        -------
        array
            `out`, or a new array with the shape of `x`.

        Raises
        ------
        CollectivesError
            As for `allreduce`.
        """
        return self._call(SCAN, x, out, op, 0, algorithm, timeout)

    def iscan(
        self, x: Any, out: Any = None, *, op: Reduction = SUM, algorithm: str | None = None
    ) -> _core.Request:
        """Start a `scan` and return at once; see `iallreduce`.
        Collective.
        """
        request: _core.Request = self._call(SCAN, x, out, op, 0, algorithm, None, 1.0, 1.0, False)
        return request

    def exscan(
        self,
        x: Any,
        out: Any = None,
        *,
        op: Reduction = SUM,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Fold the arrays of the ranks before this one.
        Collective.

        Parameters
        ----------
        x, out, op, algorithm, timeout
            As for `scan`.

        Returns
        -------
        array or None
            `out`, or a new array with the shape of `x`; None on rank 0, which has none before it
            and whose `out` stays as it is.

        Raises
        ------
        CollectivesError
            As for `allreduce`.
        """
        return self._call(EXSCAN, x, out, op, 0, algorithm, timeout)

    def iexscan(
        self, x: Any, out: Any = None, *, op: Reduction = SUM, algorithm: str | None = None
    ) -> _core.Request:
        """Start an `exscan` and return at once; see `iallreduce`.
        Collective.
        """
        request: _core.Request = self._call(EXSCAN, x, out, op, 0, algorithm, None, 1.0, 1.0, False)
        return request

    def plan(
        self,
        collective: str,
        x: Any = None,
        out: Any = None,
        *,
        root: int = 0,
        op: Reduction = SUM,
        algorithm: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> _core.PlannedCall:
        """Prepare a collective that will be run again and again with the same arrays.
        Local.

        Parameters
        ----------
        collective : str
            The name of a method above: ``"allreduce"``, ``"barrier"``, ...
        x, out, root, op, algorithm, prescale, postscale
            As for that method. The arrays are held, and may be changed between runs: they are
            contiguous, and those of an alltoall share no memory.

        Returns
        -------
        PlannedCall
            ``planned()`` runs it and returns the result; so do ``planned.start()`` and then
            ``planned.wait()``; both take a `timeout`. Every run writes the same result array.

        Raises
        ------
        ArgumentError, UnsupportedTypeError
            As for the method, at once.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> x = np.ones(3)
        >>> planned = cc.world().plan("allreduce", x, op=cc.MAX)
        >>> x[0] = 5
        >>> planned()
        array([5., 1., 1.])
        """
        if collective not in _core.COLLECTIVES:
            raise ArgumentError(
                f"collective is {collective!r}, and must be one of {', '.join(_core.COLLECTIVES)}"
            )
        if (prescale, postscale) != (1.0, 1.0) and collective not in SCALED:
            raise ArgumentError(
                f"prescale is {prescale!r} and postscale {postscale!r}, and {collective} has "
                f"none; {', '.join(SCALED)} have"
            )
        kind = _core.COLLECTIVES.index(collective)
        return self._engine.plan(kind, x, out, op, root, algorithm, prescale, postscale)
