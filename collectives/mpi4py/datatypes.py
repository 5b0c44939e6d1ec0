"""Datatypes and operations of MPI: their counterparts here, and the datatypes without gaps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from collectives import _core, reductions
from collectives.reductions import Reduction

INTEGERS = (
    *("SIGNED_CHAR", "SHORT", "INT", "LONG", "LONG_LONG", "AINT", "COUNT", "OFFSET", "BYTE"),
    *("UNSIGNED_CHAR", "UNSIGNED_SHORT", "UNSIGNED", "UNSIGNED_LONG", "UNSIGNED_LONG_LONG"),
    *("INT8_T", "INT16_T", "INT32_T", "INT64_T", "UINT8_T", "UINT16_T", "UINT32_T", "UINT64_T"),
    *("INTEGER", "INTEGER1", "INTEGER2", "INTEGER4", "INTEGER8"),
)
FLOATS = (
    *("FLOAT16_T", "FLOAT", "DOUBLE", "LONG_DOUBLE"),
    *("REAL", "DOUBLE_PRECISION", "REAL4", "REAL8", "REAL16"),
)
COMPLEX = (
    *("C_FLOAT_COMPLEX", "C_DOUBLE_COMPLEX", "CXX_FLOAT_COMPLEX", "CXX_DOUBLE_COMPLEX"),
    *("COMPLEX", "DOUBLE_COMPLEX", "COMPLEX8", "COMPLEX16"),
)
BOOLS = ("C_BOOL", "CXX_BOOL")
PAIRS = {  # of a value and an index, which is a C int; they may have gaps
    "SHORT_INT": np.dtype(np.short),
    "TWOINT": np.dtype(np.intc),
    "LONG_INT": np.dtype("l"),
    "FLOAT_INT": np.dtype(np.float32),
    "DOUBLE_INT": np.dtype(np.float64),
    "LONG_DOUBLE_INT": np.dtype(np.longdouble),
}
OPERATIONS = ("SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR")
PLACES = ("MINLOC", "MAXLOC")
LOGICAL = ("LAND", "LOR", "LXOR")

Dtype = str | np.dtype[Any]  # a name, or a dtype of pairs


class Fold(NamedTuple):
    """The operation of the library for one of MPI, and the dtypes for which MPI defines it, too."""

    reduction: Reduction
    dtypes: frozenset[Dtype]


@functools.cache
def learn() -> None:
    """Find the datatypes whose elements a kernel may fold, when MPI is initialised. Local."""
    found: list[tuple[MPI.Datatype, Dtype]] = []
    for name in (*INTEGERS, *FLOATS, *COMPLEX, *BOOLS):
        datatype = getattr(MPI, name, MPI.DATATYPE_NULL)
        if datatype != MPI.DATATYPE_NULL and datatype.Get_size():
            found.append((datatype, np.dtype(datatype.typestr).name))
    found += [(getattr(MPI, name), dtype) for name, dtype in PAIR_DTYPES.items()]
    DTYPES.update((datatype.handle, dtype) for datatype, dtype in found)
    _core.know_datatypes(found)


def _fold(name: str) -> Fold:
    reduction: Reduction = getattr(reductions, name)
    on_bool = {"bool"} if name in LOGICAL else set()
    return Fold(reduction, frozenset(reduction.dtypes()) - {"bool"} | on_bool)


PAIR_DTYPES = {
    name: np.dtype([("value", value), ("index", np.intc)], align=True)
    for name, value in PAIRS.items()
}

# By handles of MPI, which are constant for predefined objects.
DTYPES: dict[int, Dtype] = {}
FOLDS = {getattr(MPI, name).handle: _fold(name) for name in OPERATIONS}
FOLDS |= {
    getattr(MPI, name).handle: Fold(getattr(reductions, name), frozenset(PAIR_DTYPES.values()))
    for name in PLACES
}


def fold_of(op: MPI.Op, datatype: MPI.Datatype) -> tuple[Reduction, Dtype] | None:
    """Return the operation of this library for a predefined one of MPI, and the dtype that it
    folds; None if MPI has to run it. Local.

    The result is the same on all ranks, because MPI requires equal operations and datatypes.
    """
    fold, dtype = FOLDS.get(op.handle), DTYPES.get(datatype.handle)
    if fold is None or dtype is None or dtype not in fold.dtypes:
        return None
    return fold.reduction, dtype


def function_of(
    op: MPI.Op, datatype: MPI.Datatype, count: int
) -> Callable[[MPI.memory, MPI.memory], object]:
    """Return the function that folds one buffer into another: a program's, or one of C. Local."""
    made: Any
    try:
        made = op.__reduce__()
    except ValueError:  # it was not made by Python
        return lambda x, y: op.Reduce_local([x, count, datatype], [y, count, datatype])
    function = made[1][0]
    return lambda x, y: function(x, y, datatype)


def is_contiguous(datatype: MPI.Datatype) -> bool:
    """Return whether elements of a datatype are contiguous, in the order of its signature. Local.

    Of derived datatypes, only those that repeat another one are recognised.
    """
    if datatype.is_predefined:
        return datatype.Get_extent() == (0, datatype.Get_size())
    if datatype.combiner in (MPI.COMBINER_DUP, MPI.COMBINER_CONTIGUOUS):
        return is_contiguous(datatype.Get_contents()[3][0])
    return False
