"""The reductions: the operations of folds on two elements.

``SUM PROD MIN MAX`` on integers, floats and bool (``SUM PROD`` on complex too), ``AVG`` on floats
and complex, ``LAND LOR LXOR`` (logical) and ``BAND BOR BXOR`` (bitwise) on integers and bool.
Integers wrap around. float16 and bfloat16 are folded in float32 and rounded once for each fold.
On bool, ``SUM`` and ``MAX`` are ``LOR``, ``PROD`` and ``MIN`` are ``LAND``, as in NumPy.
``AVG`` is a sum that is scaled once, at the end. ``SUM_REPRODUCIBLE`` is the exact sum, rounded
once (:doc:`/research/same_bits`), of complex numbers and floats, but not of float128; of integers
it is ``SUM``.

``MINLOC`` and ``MAXLOC`` fold pairs: elements of a structured dtype with a value, which is an
integer, float32, float64 or float128, and an index, which is int32 or int64. The result is the pair
with the smallest or largest value; of equal values, that with the lowest index. The fields may be
aligned as in C, or packed.

If an element is NaN, the result is NaN, with the bits of `numpy.nan` for every NaN. For
``MIN`` and ``MAX``, -0.0 is less than 0.0 (the minimum and maximum of IEEE 754-2019). A NaN wins in
``MINLOC`` and ``MAXLOC``, as in `numpy.argmin`, and zeros of either sign are equal. So all ranks
have the same bits, of NaN and of zeros as well. Elements that are not folded keep their bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from collectives._core import Reduction
from collectives.errors import ArgumentError
from collectives.text.words import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["AVG", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR", "MAX", "MIN", "PROD", "SUM"]
__all__ += ["ALL", "MAXLOC", "MINLOC", "SUM_REPRODUCIBLE", "Reduction", "name_of", "reduction"]

SUM = Reduction("SUM", 0)
PROD = Reduction("PROD", 1)
MIN = Reduction("MIN", 2)
MAX = Reduction("MAX", 3)
LAND = Reduction("LAND", 4)
LOR = Reduction("LOR", 5)
LXOR = Reduction("LXOR", 6)
BAND = Reduction("BAND", 7)
BOR = Reduction("BOR", 8)
BXOR = Reduction("BXOR", 9)
AVG = Reduction("AVG", 0, True)
SUM_REPRODUCIBLE = Reduction("SUM_REPRODUCIBLE", 0, exact=True)
MINLOC = Reduction("MINLOC", 10)
MAXLOC = Reduction("MAXLOC", 11)

# The sum of which a front end makes the mean of integers; ranks compare it as another operation.
SUM_FOR_AVG = Reduction("SUM", 0, said="AVG")

# Those of numbers.
ALL = (SUM, PROD, MIN, MAX, LAND, LOR, LXOR, BAND, BOR, BXOR, AVG, SUM_REPRODUCIBLE)


def reduction(
    fn: Callable[[NDArray[Any], NDArray[Any]], object],
    commutative: bool = True,
    name: str | None = None,
) -> Reduction:
    """Make a reduction from a function, to be passed as ``op``.
    Local.

    Parameters
    ----------
    fn : callable
        ``fn(incoming, accumulator)`` combines two one-dimensional arrays of equal length, element
        by element, and writes the result ``incoming op accumulator`` into `accumulator`. `incoming`
        has the contributions of lower ranks, and is read-only. The arrays are pieces of the
        callers' arrays, of any length. The operation must be associative. Copy what you need after
        the call: an array that is kept stays readable, but later calls change what it contains.
    commutative : bool
        Whether the operands may be exchanged. If not, only algorithms that fold in rank order are
        used, and asking for another one by name is an error.
    name : str, optional
        The name in error messages, which the ranks compare; by default that of the function.

    Returns
    -------
    Reduction
        Works on every dtype that the library folds, and on structured dtypes. Pass the same
        function on all ranks. If the function raises an error, the call raises that error on this
        rank, and the communicator is broken.

    Raises
    ------
    ArgumentError
        If `fn` is not callable, or `name` is no text.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> def larger(incoming, accumulator):
    ...     further = abs(incoming) > abs(accumulator)
    ...     accumulator[further] = incoming[further]
    >>> float(cc.allreduce(np.array([-3.0]), op=cc.reduction(larger))[0])
    -3.0
    """
    if not callable(fn):
        raise ArgumentError(f"fn is {shown(fn)}, and must be a function of two arrays")
    if not isinstance(name, (str, type(None))):
        raise ArgumentError(f"name is {shown(name)}, and must be text")
    title = name or str(getattr(fn, "__name__", "function"))
    return Reduction(title, -1, False, fn, commutative)


def is_exact(op: Any) -> bool:
    """Return whether an operation or a name is ``SUM_REPRODUCIBLE``. Local."""
    return op is SUM_REPRODUCIBLE or (isinstance(op, str) and op.upper() == SUM_REPRODUCIBLE.name)


def name_of(op: Reduction | str) -> str:
    """Return the name of an operation, or of its name, in capital letters. Local."""
    return str(op.name if isinstance(op, Reduction) else op).upper()


def said(op: Reduction | str) -> str:
    """Return the name of an operation in texts that ranks compare. Local."""
    return str(op.said if isinstance(op, Reduction) else op).upper()
