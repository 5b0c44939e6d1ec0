"""Horovod's reduction operations, and their counterparts here."""

from __future__ import annotations

import ctypes
import warnings
from enum import IntEnum
from typing import Final, NamedTuple

from collectives import reductions
from collectives._core import Reduction
from collectives.compression.spelling import compressor
from collectives.horovod.compression import checked
from collectives.horovod.errors import HorovodArgumentError, translated
from collectives.text.words import shown


class ReduceOp(IntEnum):
    """A reduction operation, with Horovod's numbers."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average: Final = ReduceOp.Average
Sum: Final = ReduceOp.Sum
Adasum: Final = ReduceOp.Adasum
Min: Final = ReduceOp.Min
Max: Final = ReduceOp.Max
Product: Final = ReduceOp.Product

REDUCTIONS = {
    Average: reductions.AVG,
    Sum: reductions.SUM,
    Min: reductions.MIN,
    Max: reductions.MAX,
    Product: reductions.PROD,
}


class Scaling(NamedTuple):
    """A reduction of an array: the operation of the library, and the factors.

    Attributes
    ----------
    op : Reduction
    prescale, postscale : float
        The factor that the library applies.
    before, after : float
        The factors that the caller applies, because the library does not scale integers; products
        are truncated.
    divisor : int
        The divisor that the caller applies to the result, truncating.
    """

    op: Reduction
    prescale: float = 1.0
    postscale: float = 1.0
    before: float = 1.0
    after: float = 1.0
    divisor: int = 1

    @property
    def is_whole(self) -> bool:
        """True if the library does everything."""
        return self.before == self.after == 1.0 and self.divisor == 1


def chosen(op: ReduceOp | None, average: bool | None, depth: int = 3) -> ReduceOp:
    """Return the operation for the arguments of a call that is `depth` frames above. Local."""
    if average is None and type(op) is ReduceOp:
        return op
    if op is None and average is None:
        return Average
    if op is None:
        warnings.warn("average= is deprecated: pass op=", DeprecationWarning, stacklevel=depth)
        return Average if average else Sum
    if average is not None:
        raise HorovodArgumentError("op and average are both given, and op replaces average")
    try:
        return ReduceOp(op)
    except ValueError:
        raise HorovodArgumentError(
            f"op is {shown(op)}, and must be Average, Sum, Adasum, Min, Max or Product"
        ) from None


def check_compression(op: ReduceOp, compression: object) -> None:
    """Raise an error if the compression is wrong, or does not fit the operation. Local."""
    if op == Adasum and compression is not None and not isinstance(compression, type):
        raise HorovodArgumentError(
            f"op is Adasum, which no codec compresses, and compression is {shown(compression)}: "
            f"pass a class such as Compression.fp16"
        )
    if isinstance(compression, type):
        checked(compression)
    elif compression is not None:
        with translated():
            compressor(compression)


def check_gradient(call: str, op: ReduceOp) -> None:
    """Raise an error if a reduction has no gradient. Local."""
    if op not in (Average, Sum):
        raise HorovodArgumentError(
            f"{call} with op {op.name} has no gradient: Average and Sum have one"
        )


def scaling(
    op: ReduceOp,
    is_inexact: bool,
    prescale: float,
    postscale: float,
    size: int,
    is_double: bool = False,
) -> Scaling:
    """Return the scaling for the reduction of an array. Local."""
    if prescale == 1.0 == postscale and (is_inexact or op != Average):
        return _plain[op]
    if is_inexact:
        if not is_double:  # the factors have the array's dtype, as in Horovod
            prescale, postscale = (ctypes.c_float(each).value for each in (prescale, postscale))
        return Scaling(REDUCTIONS[op], float(prescale), float(postscale))
    if op == Average:
        return Scaling(reductions.SUM_FOR_AVG, 1.0, 1.0, prescale, postscale, size)
    return Scaling(REDUCTIONS[op], 1.0, 1.0, prescale, postscale)


# The reductions that most calls need, by the number of the operation.
_plain = [Scaling(REDUCTIONS.get(op, reductions.SUM)) for op in ReduceOp]
