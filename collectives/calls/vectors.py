"""The vector forms: collectives in which the ranks may have different numbers of elements.

The counts have an item for each rank. A caller who knows them passes them on every rank; otherwise
the ranks first exchange them, by a small ordinary collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives import _core
from collectives.calls.kinds import ALLGATHER, ALLTOALL, GATHER, REDUCE_SCATTER, SCATTER
from collectives.errors import ArgumentError
from collectives.process.agreement import refusing
from collectives.reductions import SUM, Reduction
from collectives.text.words import shown

__all__ = ["Counts", "VectorCalls"]

Counts = Sequence[int] | NDArray[np.integer[Any]]

MOST = 2**63 - 1  # elements, of all ranks together


class VectorCalls:
    """The collectives with parts of different lengths."""

    rank: int
    size: int
    _call: Any
    _engine: _core.Engine

    def allgatherv(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Counts | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Give the arrays of all ranks, which may differ in length, to every rank.
        Collective.

        Parameters
        ----------
        x : array
            This rank's contribution, as for `allreduce`: ``counts[rank]`` elements, which may be 0.
        out : array, optional
            Where the arrays go, in the order of the ranks: ``sum(counts)`` elements. In place, `x`
            is this rank's part of `out`. A new array by default.
        counts : sequence of int, optional
            The number of elements of each rank, the same on all ranks. If no rank passes them, the
            ranks exchange them first.
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
        """
        return self._allgatherv(x, out, counts, algorithm, timeout, True)

    def iallgatherv(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Counts | None = None,
        algorithm: str | None = None,
    ) -> _core.Request:
        """Start an `allgatherv` and return at once, or after the exchange of the counts.
        Collective.
        """
        request: _core.Request = self._allgatherv(x, out, counts, algorithm, None, False)
        return request

    def gatherv(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Counts | None = None,
        root: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Give the arrays of all ranks, which may differ in length, to the root.
        Collective.

        Parameters
        ----------
        x, counts
            As for `allgatherv`.
        out : array, optional
            Where the arrays go on the root, as for `allgatherv`; ignored on other ranks.
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
        """
        return self._gatherv(x, out, counts, root, algorithm, timeout, True)

    def igatherv(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Counts | None = None,
        root: int = 0,
        algorithm: str | None = None,
    ) -> _core.Request:
        """Start a `gatherv` and return at once, or after the exchange of the counts.
        Collective.
        """
        request: _core.Request = self._gatherv(x, out, counts, root, algorithm, None, False)
        return request

    def scatterv(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Counts | None = None,
        root: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Give each rank a part of the root's array; the parts may differ in length.
        Collective.

        Parameters
        ----------
        x : array or None
            On the root, the data: ``sum(counts)`` elements, those for rank 0 first. On other ranks,
            an array with the root's dtype and the root's axes after the first, whose contents are
            not read, or None if `out` is given.
        out : array, optional
            Where this rank's part goes: ``counts[rank]`` elements. A new array by default.
        counts : sequence of int, optional
            The number of elements of each rank, the same on all ranks. If no rank passes them, the
            counts are the sizes of the arrays `out`, if all ranks have one. Otherwise they are
            nearly equal: of n elements, the part of rank ``r`` begins at ``n * r // size``.
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
        """
        return self._scatterv(x, out, counts, root, algorithm, timeout, True)

    def iscatterv(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Counts | None = None,
        root: int = 0,
        algorithm: str | None = None,
    ) -> _core.Request:
        """Start a `scatterv` and return at once, or after the exchange of the counts.
        Collective.
        """
        request: _core.Request = self._scatterv(x, out, counts, root, algorithm, None, False)
        return request

    def reduce_scatterv(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Counts | None = None,
        op: Reduction = SUM,
        algorithm: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        timeout: float | None = None,
    ) -> Any:
        """Fold the arrays of all ranks; each rank gets a part, and parts may differ in length.
        Collective.

        Parameters
        ----------
        x, op, algorithm, prescale, postscale, timeout
            As for `reduce_scatter`; `x` has ``sum(counts)`` elements, those for rank 0 first.
        out : array, optional
            Where this rank's part goes: ``counts[rank]`` elements. A new array by default.
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
        """
        return self._reduce_scatterv(
            x, out, counts, op, algorithm, timeout, prescale, postscale, True
        )

    def ireduce_scatterv(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Counts | None = None,
        op: Reduction = SUM,
        algorithm: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> _core.Request:
        """Start a `reduce_scatterv` and return at once; see `iallreduce`.
        Collective.
        """
        request: _core.Request = self._reduce_scatterv(
            x, out, counts, op, algorithm, None, prescale, postscale, False
        )
        return request

    def alltoallv(
        self,
        x: Any,
        counts: Counts,
        out: Any = None,
        *,
        receive_counts: Counts | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Send a part of each rank's array to each rank; the parts may differ in length.
        Collective.

        Parameters
        ----------
        x : array
            ``sum(counts)`` elements, those for rank 0 first.
        counts : sequence of int
            How many elements go to each rank.
        out : array, optional
            Where the received parts go, the one from rank 0 first. If it is `x` itself, `x` is
            copied first. A new array by default.
        receive_counts : sequence of int, optional
            How many elements come from each rank. All ranks pass them, or none; if none does, the
            ranks exchange them first. Under ``COLLECTIVES_VALIDATE=1`` they are always exchanged,
            and compared.
        algorithm : str, optional
            One of ``collectives.algorithms.names("alltoall")`` in which no block passes through a
            third rank: ``"direct"`` or ``"pairwise"``.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array
            `out`, or a new array: what was received, joined along the first axis.

        Raises
        ------
        CollectivesError
            As for `allreduce`.
        """
        return self._alltoallv(x, counts, out, receive_counts, algorithm, timeout, True)

    def ialltoallv(
        self,
        x: Any,
        counts: Counts,
        out: Any = None,
        *,
        receive_counts: Counts | None = None,
        algorithm: str | None = None,
    ) -> _core.Request:
        """Start an `alltoallv` and return at once, or after the exchange of the counts.
        Collective.
        """
        request: _core.Request = self._alltoallv(
            x, counts, out, receive_counts, algorithm, None, False
        )
        return request

    def _allgatherv(
        self,
        x: Any,
        out: Any,
        counts: Counts | None,
        algorithm: str | None,
        timeout: float | None,
        blocking: bool,
    ) -> Any:
        with refusing(self._engine, "allgatherv"):
            shape = _core.shape(x)
            every = None if counts is None else self._given(counts)
        if every is None:
            every = self._exchanged(prod(shape), timeout)
        joined = _joined(shape, int(every.sum()))
        return self._engine.call_vector(
            ALLGATHER, x, out, None, 0, algorithm, timeout, 1.0, 1.0, blocking, every, every, joined
        )

    def _gatherv(
        self,
        x: Any,
        out: Any,
        counts: Counts | None,
        root: int,
        algorithm: str | None,
        timeout: float | None,
        blocking: bool,
    ) -> Any:
        with refusing(self._engine, "gatherv"):
            shape = _core.shape(x)
            every = None if counts is None else self._given(counts)
        if every is None:
            every = self._exchanged(prod(shape), timeout)
        joined = _joined(shape, int(every.sum()))
        return self._engine.call_vector(
            GATHER, x, out, None, root, algorithm, timeout, 1.0, 1.0, blocking, every, every, joined
        )

    def _scatterv(
        self,
        x: Any,
        out: Any,
        counts: Counts | None,
        root: int,
        algorithm: str | None,
        timeout: float | None,
        blocking: bool,
    ) -> Any:
        with refusing(self._engine, "scatterv"):
            root = self._engine.check_root(root)
            if x is None and (out is None or self.rank == root):
                raise ArgumentError(
                    "x is None, and must be an array on the root and where out is None"
                )
            shape = () if x is None else _core.shape(x)
            mine = -1 if out is None else prod(_core.shape(out, "out"))
            every = None if counts is None else self._given(counts)
        if every is None:
            told = np.array([mine, prod(shape)], np.int64)
            said = self._call(ALLGATHER, told, None, None, 0, None, timeout)
            with refusing(self._engine, "scatterv"):
                every = _wanted(said[:, 0], int(said[root, 1]))
        part = _joined(shape, int(every[self.rank]))
        return self._engine.call_vector(
            SCATTER, x, out, None, root, algorithm, timeout, 1.0, 1.0, blocking, every, every, part
        )

    def _reduce_scatterv(
        self,
        x: Any,
        out: Any,
        counts: Counts | None,
        op: Reduction,
        algorithm: str | None,
        timeout: float | None,
        prescale: float,
        postscale: float,
        blocking: bool,
    ) -> Any:
        with refusing(self._engine, "reduce_scatterv"):
            shape = _core.shape(x)
            every = _equal_parts(prod(shape), self.size) if counts is None else self._given(counts)
        part = _joined(shape, int(every[self.rank]))
        return self._engine.call_vector(
            REDUCE_SCATTER,
            x,
            out,
            op,
            0,
            algorithm,
            timeout,
            prescale,
            postscale,
            blocking,
            every,
            every,
            part,
        )

    def _alltoallv(
        self,
        x: Any,
        counts: Counts,
        out: Any,
        receive_counts: Counts | None,
        algorithm: str | None,
        timeout: float | None,
        blocking: bool,
    ) -> Any:
        with refusing(self._engine, "alltoallv"):
            shape = _core.shape(x)
            sent = self._given(counts)
            given = None
            if receive_counts is not None:
                given = self._given(receive_counts, "receive_counts")
        if given is None or self._engine.agree is not None:
            received = self._call(ALLTOALL, sent, None, None, 0, None, timeout)
            if given is not None:
                with refusing(self._engine, "alltoallv"):
                    _compare(given, received)
        else:
            received = given
        joined = _joined(shape, int(received.sum()))
        return self._engine.call_vector(
            ALLTOALL,
            x,
            out,
            None,
            0,
            algorithm,
            timeout,
            1.0,
            1.0,
            blocking,
            sent,
            received,
            joined,
        )

    def _exchanged(self, mine: int, timeout: float | None) -> NDArray[np.int64]:
        """Return the counts of all ranks; `mine` is that of this rank. Collective."""
        said = self._call(ALLGATHER, np.array([mine], np.int64), None, None, 0, None, timeout)
        every: NDArray[np.int64] = said.reshape(-1)
        return every

    def _given(self, counts: Counts, name: str = "counts") -> NDArray[np.int64]:
        """Check the counts that a caller gave."""
        try:
            listed = [index(each) for each in counts]
        except TypeError:
            raise ArgumentError(
                f"{name} is {shown(counts)}, and must be a sequence of {self.size} integers"
            ) from None
        if len(listed) != self.size or min(listed) < 0:
            raise ArgumentError(
                f"{name} is {shown(counts)}, and must be {self.size} numbers of elements, one for "
                f"each rank, none of them negative"
            )
        if sum(listed) > MOST:
            raise ArgumentError(
                f"{name} is {shown(counts)}, and must be {self.size} numbers of elements, no more "
                f"than {MOST} in all"
            )
        return np.array(listed, np.int64)


def _equal_parts(n: int, p: int) -> NDArray[np.int64]:
    """Return the sizes of `p` nearly equal parts of `n` elements."""
    edges = [n * r // p for r in range(p + 1)]
    sizes = [after - before for before, after in pairwise(edges)]
    return np.array(sizes, np.int64)


def _wanted(sizes: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return the counts of a scatterv from what all ranks sent, the same on all ranks."""
    if (sizes < 0).all():
        return _equal_parts(n, len(sizes))
    if (sizes < 0).any():
        absent = ", ".join(str(r) for r in np.flatnonzero(sizes < 0))
        raise ArgumentError(
            f"out is given on some ranks and not on others ({absent}); give it on all, or counts"
        )
    return np.ascontiguousarray(sizes)


def _compare(given: NDArray[np.int64], sent: NDArray[np.int64]) -> None:
    """Raise an error unless the receive counts are equal to what the ranks send."""
    wrong = np.flatnonzero(given != sent)
    if len(wrong):
        r = wrong[0]
        raise ArgumentError(
            f"receive_counts is {given.tolist()}, and rank {r} sends {sent[r]} elements here, not "
            f"{given[r]}"
        )


def _joined(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the shape of `count` elements that have the axes of `shape` after the first."""
    rest = shape[1:]
    row = prod(rest)
    return (count // row, *rest) if row and count % row == 0 else (count,)
