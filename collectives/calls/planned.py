"""Planned calls: collectives whose arguments are checked once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from collectives import _core
from collectives.calls.base import Calls
from collectives.errors import ArgumentError
from collectives.reductions import SUM, Reduction
from collectives.text.words import shown

if TYPE_CHECKING:
    from collectives.arrays.types import Array, ArrayT, Number, OpName

    # The collectives whose result all ranks get, and those whose result only some get.
    OnAllRanks = Literal[
        "allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "scatter", "scan"
    ]
    OnSomeRanks = Literal["reduce", "gather", "exscan"]

SCALED = ("allreduce", "reduce", "reduce_scatter")  # those that take prescale and postscale


class PlannedCalls(Calls):
    """Collectives that are prepared once and run many times."""

    @overload
    def plan(
        self, collective: Literal["barrier"], *, algorithm: str | None = None
    ) -> _core.PlannedCall[None]: ...
    @overload
    def plan(
        self,
        collective: OnAllRanks,
        x: ArrayT | Number | None = None,
        out: ArrayT | None = None,
        *,
        root: int = 0,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> _core.PlannedCall[ArrayT]: ...
    @overload
    def plan(
        self,
        collective: OnSomeRanks,
        x: ArrayT | Number | None = None,
        out: ArrayT | None = None,
        *,
        root: int = 0,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> _core.PlannedCall[ArrayT | None]: ...
    def plan(
        self,
        collective: str,
        x: Array | Number | None = None,
        out: Array | None = None,
        *,
        root: int = 0,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> _core.PlannedCall[Any]:
        """Prepare a collective that is run many times with the same arrays.
        Local.

        Parameters
        ----------
        collective : str
            The name of the method: ``"allreduce"``, ``"barrier"``, ...
        x, out, root, op, algorithm, bits, prescale, postscale
            As for that method. The arrays must be contiguous; those of an alltoall must not share
            memory. The planned call keeps a reference to them. Their contents may be changed
            between runs.

        Returns
        -------
        PlannedCall
            ``planned()`` runs the collective and returns the result. ``planned.start()`` and
            ``planned.wait()`` do the same in two steps. ``planned()`` and ``planned.wait()`` take a
            `timeout`. Every run writes to the same result array. For arrays on a device, it is a
            `DevicePlan`, which is used in the same way.

        Raises
        ------
        ArgumentError, UnsupportedTypeError
            As for the method. They are raised here, not by a run.

        Notes
        -----
        Persistent collectives are in section 6.13 of the MPI standard, version 4.1.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> x = np.ones(3)
        >>> planned = cc.world().plan("allreduce", x, op=cc.MAX)
        >>> x[0] = 5
        >>> planned()
        array([5., 1., 1.])
        """
        if not isinstance(collective, str) or collective not in _core.COLLECTIVES:
            raise ArgumentError(
                f"collective is {shown(collective)}, and must be one of "
                f"{', '.join(_core.COLLECTIVES)}"
            )
        if (prescale, postscale) != (1.0, 1.0) and collective not in SCALED:
            raise ArgumentError(
                f"prescale is {shown(prescale)} and postscale {shown(postscale)}, and {collective} "
                f"has none; {', '.join(SCALED)} have"
            )
        kind = _core.COLLECTIVES.index(collective)
        return self._engine.plan(kind, x, out, op, root, algorithm, bits, prescale, postscale)
