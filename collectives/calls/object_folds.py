"""Collectives that fold Python objects, in the order of the ranks.

One rank folds for all: it gathers the objects, and sends the result to the others. So the operation
gets every object once, in the order of the ranks, and all ranks get the same result with any
operation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar, overload

from collectives import _core
from collectives.calls import parcels
from collectives.calls.objects import ObjectCalls
from collectives.errors import ArgumentError
from collectives.process.agreement import refusing
from collectives.reductions import SUM, Reduction
from collectives.text.words import error_text, shown

if TYPE_CHECKING:
    from collectives.arrays.types import OpName

T = TypeVar("T")
Fold = Callable[[Any, Any], Any]

# The named operations on two objects, the first of a lower rank; as in mpi4py.
FOLDS: dict[str, Fold] = {
    "SUM": operator.add,
    "AVG": operator.add,
    "PROD": operator.mul,
    "MIN": lambda x, y: y if y < x else x,
    "MAX": lambda x, y: y if y > x else x,
    "MINLOC": lambda x, y: y if y[0] < x[0] or (y[0] == x[0] and y[1] < x[1]) else x,
    "MAXLOC": lambda x, y: y if y[0] > x[0] or (y[0] == x[0] and y[1] < x[1]) else x,
    "LAND": lambda x, y: bool(x) and bool(y),
    "LOR": lambda x, y: bool(x) or bool(y),
    "LXOR": lambda x, y: bool(x) != bool(y),
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
}


class ObjectFoldingCalls(ObjectCalls):
    """The collectives that combine Python objects."""

    @overload
    def reduce_object(
        self, obj: T, op: Callable[[T, T], T], root: int = 0, *, timeout: float | None = None
    ) -> T | None: ...
    @overload
    def reduce_object(
        self, obj: Any, op: Reduction | OpName = SUM, root: int = 0, *, timeout: float | None = None
    ) -> Any: ...
    def reduce_object(
        self,
        obj: Any,
        op: Reduction | str | Fold = SUM,
        root: int = 0,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Fold the objects of all ranks, in the order of the ranks; the root gets the result.
        Collective.

        Parameters
        ----------
        obj : object
            This rank's contribution, as for `broadcast_object`. Like that method, use this one only
            between ranks that trust each other.
        op : Reduction, str or callable
            ``SUM``, which adds the objects, another of the operations of `allreduce`, or its name;
            or a function of two objects, the first from lower ranks, that returns the result. It
            is called on the root only, with copies of the objects.
        root : int
            The rank that gets the result.
        timeout : float, optional
            As for `broadcast_object`.

        Returns
        -------
        object or None
            On the root ``op(op(obj of rank 0, obj of rank 1), obj of rank 2)`` and so on. None on
            other ranks.

        Raises
        ------
        ArgumentError
            On every rank, if `op` is no operation, or the object of any rank cannot be pickled. On
            the root alone, if an object cannot be loaded there, or `op` raises an error: all data
            has arrived by then, and the communicator is usable afterwards.
        CollectivesError
            Otherwise, as for `allreduce`.

        Examples
        --------
        >>> import collectives as cc
        >>> found = cc.reduce_object({cc.rank()}, lambda x, y: x | y)
        >>> found is None or found == set(range(cc.size()))
        True
        """
        name = "reduce_object"
        with self._engine:
            root, op, fold, got = self._contributions(name, obj, op, root, timeout)
        if got is None:
            return None
        result, error = parcels.tried(lambda: _folded(got, op, fold))
        if error is not None:
            raise ArgumentError(f"{name}: rank {root}: {error}") from error.__cause__
        return result

    @overload
    def allreduce_object(
        self, obj: T, op: Callable[[T, T], T], *, timeout: float | None = None
    ) -> T: ...
    @overload
    def allreduce_object(
        self, obj: Any, op: Reduction | OpName = SUM, *, timeout: float | None = None
    ) -> Any: ...
    def allreduce_object(
        self, obj: Any, op: Reduction | str | Fold = SUM, *, timeout: float | None = None
    ) -> Any:
        """Fold the objects of all ranks, in the order of the ranks; every rank gets the result.
        Collective.

        Parameters
        ----------
        obj, op, timeout
            As for `reduce_object`; rank 0 calls `op`.

        Returns
        -------
        object
            The result, as for `reduce_object`; on other ranks than 0 a copy.

        Raises
        ------
        ArgumentError
            On every rank, if `op` is no operation or raises an error, or the object of any rank
            cannot be pickled, or not be loaded on rank 0. The communicator is usable afterwards.
        CollectivesError
            Otherwise, as for `allreduce`.

        Examples
        --------
        >>> import collectives as cc
        >>> cc.allreduce_object(("a", cc.rank()), cc.MAX) == ("a", cc.size() - 1)
        True
        """
        name = "allreduce_object"
        results = []

        def result() -> parcels.Parcel:
            results.append(_folded(got or [], op, fold))
            return parcels.pack(results[0], "the result of op")

        with self._engine:
            _, op, fold, got = self._contributions(name, obj, op, 0, timeout)
            copied = self._to_all(name, result, 0, timeout)
        return results[0] if results else copied

    @overload
    def scan_object(
        self, obj: T, op: Callable[[T, T], T], *, timeout: float | None = None
    ) -> T: ...
    @overload
    def scan_object(
        self, obj: Any, op: Reduction | OpName = SUM, *, timeout: float | None = None
    ) -> Any: ...
    def scan_object(
        self, obj: Any, op: Reduction | str | Fold = SUM, *, timeout: float | None = None
    ) -> Any:
        """Fold the objects of the ranks up to and including this one, in their order.
        Collective.

        Parameters
        ----------
        obj, op, timeout
            As for `allreduce_object`; `op` cannot be ``AVG``.

        Returns
        -------
        object
            A copy of the result for this rank.

        Raises
        ------
        CollectivesError
            As for `allreduce_object`.

        Examples
        --------
        >>> import collectives as cc
        >>> cc.scan_object([cc.rank()]) == list(range(cc.rank() + 1))
        True
        """
        return self._scan("scan_object", obj, op, timeout)

    @overload
    def exscan_object(
        self, obj: T, op: Callable[[T, T], T], *, timeout: float | None = None
    ) -> T | None: ...
    @overload
    def exscan_object(
        self, obj: Any, op: Reduction | OpName = SUM, *, timeout: float | None = None
    ) -> Any: ...
    def exscan_object(
        self, obj: Any, op: Reduction | str | Fold = SUM, *, timeout: float | None = None
    ) -> Any:
        """Fold the objects of the ranks before this one, in their order.
        Collective.

        Parameters
        ----------
        obj, op, timeout
            As for `scan_object`.

        Returns
        -------
        object or None
            A copy of the result for this rank; None on rank 0, which has no rank before it.

        Raises
        ------
        CollectivesError
            As for `allreduce_object`.

        Examples
        --------
        >>> import collectives as cc
        >>> before = cc.exscan_object([cc.rank()])
        >>> before == (list(range(cc.rank())) or None)
        True
        """
        return self._scan("exscan_object", obj, op, timeout)

    def _scan(self, name: str, obj: Any, op: Reduction | str | Fold, timeout: float | None) -> Any:
        def results() -> list[parcels.Parcel]:
            # Packed at once: an operation may change its first object and return it.
            each = [
                parcels.pack(result, "the result of op").copied()
                for result in accumulate(parcels.unpack_each(got or []), _guarded(fold))
            ]
            if name == "scan_object":
                return each
            return [parcels.pack(None, "obj"), *each[:-1]]

        with self._engine:
            _, _, fold, got = self._contributions(name, obj, op, 0, timeout)
            return self._from_root(name, results, 0, timeout)

    def _contributions(
        self, name: str, obj: Any, op: Any, root: int, timeout: float | None
    ) -> tuple[int, Any, Fold, list[parcels.Parcel] | None]:
        """Begin a call; return the root, the operation and its function, and on the root the
        parcels of all ranks. Collective.
        """
        op = _resolved(op)
        fold = self._fold(name, op)
        root = self._begin(name, root, timeout, _label(op))
        return root, op, fold, self._to_root(name, obj, root, timeout)

    def _fold(self, name: str, op: Any) -> Fold:
        """Return the function that folds two objects."""
        with refusing(self._engine, name):
            if isinstance(op, Reduction):
                if op.function is not None:
                    raise ArgumentError(
                        f"op is {shown(op)}, which folds arrays in place; pass a function of two "
                        f"objects that returns the result"
                    )
                if op.average and name.endswith("scan_object"):
                    raise ArgumentError(
                        f"op is AVG, and a {name} has a number of contributions of its own on each "
                        f"rank; divide the result of SUM"
                    )
                if op.name not in FOLDS:
                    raise ArgumentError(
                        f"op is {op.name}, which adds arrays of numbers; pass SUM, or a function "
                        f"of two objects that returns the result"
                    )
                return FOLDS[op.name]
            if not callable(op):
                raise ArgumentError(
                    f"op is {shown(op)}, and must be one of collectives.{', '.join(FOLDS)}, its "
                    f"name, or a function of two objects that returns the result"
                )
        fold: Fold = op
        return fold


def _resolved(op: Any) -> Any:
    """Return the operation that a name stands for, in any case, or `op` itself."""
    named = isinstance(op, str) and op.upper() in FOLDS
    return _core.reduction_named(op.upper()) if named else op


def _label(op: Any) -> str:
    """Return the name of an operation, which the ranks compare: functions may be other objects."""
    return str(getattr(op, "name", None) or getattr(op, "__name__", type(op).__name__))


def _guarded(fold: Fold) -> Fold:
    """Return a fold whose errors are sent to the other ranks."""

    def guarded(x: Any, y: Any) -> Any:
        try:
            return fold(x, y)
        except BaseException as error:  # the others wait for the result
            raise ArgumentError(f"op raised {error_text(error)}") from error

    return guarded


def _folded(got: list[parcels.Parcel], op: Any, fold: Fold) -> Any:
    """Return the fold of the objects in all parcels."""
    result = reduce(_guarded(fold), parcels.unpack_each(got))
    if isinstance(op, Reduction) and op.average:
        return _guarded(operator.truediv)(result, len(got))
    return result
