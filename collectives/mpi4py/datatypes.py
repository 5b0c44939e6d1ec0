"""Datatypes and operations of MPI: what they are here, and which lie in memory without gaps."""

from __future__ import annotations

import functools
from typing import NamedTuple

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
OPERATIONS = ("SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR")
LOGICAL = ("LAND", "LOR", "LXOR")


class Fold(NamedTuple):
    """The operation of the library for one of MPI, and the dtypes for which MPI defines it, too."""

    reduction: Reduction
    dtypes: frozenset[str]


@functools.cache
def learn() -> None:
    """Find out whose elements a kernel may fold, when MPI is initialised. Local."""
    found = []
    for name in (*INTEGERS, *FLOATS, *COMPLEX, *BOOLS):
        datatype = getattr(MPI, name, MPI.DATATYPE_NULL)
        if datatype != MPI.DATATYPE_NULL and datatype.Get_size():
            found.append((datatype, np.dtype(datatype.typestr).name))
    DTYPES.update((datatype.handle, dtype) for datatype, dtype in found)
    _core.know_datatypes(found)


def _fold(name: str) -> Fold:
    reduction: Reduction = getattr(reductions, name)
    on_bool = {"bool"} if name in LOGICAL else set()
    return Fold(reduction, frozenset(reduction.dtypes()) - {"bool"} | on_bool)


# By handles of MPI, which predefined objects keep.
DTYPES: dict[int, str] = {}
FOLDS = {getattr(MPI, name).handle: _fold(name) for name in OPERATIONS}


def is_contiguous(datatype: MPI.Datatype) -> bool:
    """Say whether elements of a datatype are bytes in a row, in the order of its signature. Local.

    Of derived ones, only those are recognised that repeat another.
    """
    if datatype.is_predefined:
        return datatype.Get_extent() == (0, datatype.Get_size())
    if datatype.combiner in (MPI.COMBINER_DUP, MPI.COMBINER_CONTIGUOUS):
        return is_contiguous(datatype.Get_contents()[3][0])
    return False
