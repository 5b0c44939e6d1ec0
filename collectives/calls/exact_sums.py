"""Sums that are rounded once, whose bits depend on the contributions only: ``SUM_REPRODUCIBLE``.

The contributions are sent unchanged, by an algorithm in which the rank that folds an element has
all contributions to it. The executor adds these exactly and rounds once, in one step
(`_core/kernels/exact.h`). The proof finds the algorithms with this property (`plans/order.py`).
Those of scans send many arrays. So a long blocking scan is an alltoall, the sums of all prefixes,
and another alltoall, which sends each rank its own prefix.

If contributions are added before they are sent, or by an algorithm that the caller names, or on
very many ranks, they are words: integers that have a place for every bit (`_core/kernels/words.h`),
which any algorithm adds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from collectives import _core
from collectives._core import (
    ALLTOALL,
    EXSCAN,
    REDUCE_SCATTER,
    SCAN,
    ExactCall,
    Reduction,
    equal_parts,
)
from collectives.algorithms.bits import ANY, MOST_AT_ONCE, checked
from collectives.arrays.buffers import summed
from collectives.arrays.frameworks import numpy_dtype
from collectives.errors import ArgumentError, BufferError, UnsupportedTypeError
from collectives.process.agreement import refusing
from collectives.reductions import SUM_REPRODUCIBLE, is_exact, name_of
from collectives.text.words import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collectives.arrays.types import Integers

SHORT = 32 << 10  # bytes of all contributions, up to which a scan is one collective
PIECE = 1 << 20  # bytes of a contribution in a piece of a longer scan
REFUSED = ArgumentError, BufferError, UnsupportedTypeError


def sum_local(x: Any, axis: int | None = None, *, op: Reduction | str = SUM_REPRODUCIBLE) -> Any:
    """Add the elements of an array exactly, for a sum over ranks that is rounded once.
    Local.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32, float64, complex64 or complex128, in host memory; or a result
        of this function, to continue the sum.
    axis : int, optional
        0 to add along the first axis, so that each column has a sum. All elements by default.
    op : Reduction
        ``SUM_REPRODUCIBLE``.

    Returns
    -------
    numpy.ndarray
        The exact sums, not rounded: an array of a structured dtype, whose one field has the name of
        the dtype of `x` and integers with a place for every bit. Its shape is ``()``, or with
        ``axis=0`` that of `x` without the first axis. Pass it to `allreduce` or another collective
        with ``op=SUM_REPRODUCIBLE``, on one rank as well: the result has the dtype of `x`.

    Raises
    ------
    ArgumentError
        If `axis` or `op` is another one.
    UnsupportedTypeError
        If `x` has another dtype.

    Notes
    -----
    The sum of float32 takes 64 bytes, that of float64 368, and twice as much for complex numbers.
    Up to 16 384 such sums can be added by one collective.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> a, b = np.array([1e16, 1.0, -1e16]), np.ones(3)
    >>> float(np.sum(a * b))
    0.0
    >>> dot = cc.allreduce(cc.sum_local(a * b), op=cc.SUM_REPRODUCIBLE)
    >>> float(dot) == cc.size()
    True
    """
    if not is_exact(op):
        raise ArgumentError(
            f"op is {name_of(op)}, and sum_local has only {SUM_REPRODUCIBLE.name}: what it returns "
            f"is for other ranks to add"
        )
    if not (axis is None or (type(axis) is int and axis == 0)):
        raise ArgumentError(f"axis is {shown(axis)}, and must be 0, or None to add all elements")
    shape = x.shape if isinstance(x, np.ndarray) else _core.shape(x)
    if axis == 0 and not shape:
        raise ArgumentError("axis is 0, and x has no axes")
    n, dtype = prod(shape), sums_of(x)
    rows, rest = (0, ()) if axis is None else (shape[0], tuple(shape[1:]))
    if not n:
        dtype = dtype or _core.exact_total(x, 0)[1]
        words = np.zeros(prod(rest) * _core.exact_words(dtype), np.int64)
    elif dtype is None:
        words, dtype = _core.exact_total(x, rows)
    else:
        words = _core.exact_joined(_words(x), dtype, rows or n)
    return _with_dtype(words, dtype, rest)


def _with_dtype(words: Integers, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return words as an array of sums, whose dtype has the dtype of the summed numbers."""
    structured = np.dtype([(dtype, np.int64, (_core.exact_words(dtype),))])
    return words.view(structured).reshape(shape)


def sums_of(x: Any) -> str | None:
    """Return the dtype of the numbers whose exact sums an array has, or None if it has none."""
    dtype = summed(x.dtype) if isinstance(x, np.ndarray | np.void) else None
    if dtype is None or x.dtype[0].shape != (_core.exact_words(dtype),):
        return None
    return dtype


def _words(x: Any) -> Integers:
    """Return the words of some sums, one after the other."""
    return np.ascontiguousarray(x).reshape(-1).view(np.int64)


def call(
    engine: _core.Engine,
    kind: int,
    x: Any,
    out: Any,
    op: Any,
    root: Any,
    algorithm: str | None,
    bits: str | None,
    timeout: float | None,
    prescale: float,
    postscale: float,
    blocking: bool,
    parts: _core.Parts | None,
) -> Any:
    """Run a collective, or its vector form, whose operation is ``SUM_REPRODUCIBLE``. Collective."""
    engine.check_usable()
    name = _core.COLLECTIVES[kind] + "v" * (parts is not None)
    with refusing(engine, name, REFUSED):
        if bits is not None:
            checked(bits)
        dtype = sums_of(x)
        if dtype is not None:
            run = _of_sums(engine, kind, x, out, root, algorithm, prescale, postscale, dtype)
        else:
            job = ExactCall(
                engine, kind, x, out, op, root, timeout, prescale, postscale, blocking, parts
            )
            run = None
            if not job.is_whole and (algorithm or engine.size > MOST_AT_ONCE):
                run = partial(_by_words, job, algorithm)
            elif blocking and kind in (SCAN, EXSCAN) and _is_long(job):
                run = partial(_scanned, job)
            if run is None:
                return job.run(algorithm, bits)
            job.scale()
    return run(timeout, blocking)


def check_numbers(x: Any) -> None:
    """Refuse sums that are not rounded as the input of a planned call. Local."""
    if sums_of(x) is not None:
        raise ArgumentError(
            "x has sums that are not rounded, and a planned call takes numbers; call the collective"
        )


def _of_sums(
    engine: _core.Engine,
    kind: int,
    x: Any,
    out: Any,
    root: Any,
    named: str | None,
    prescale: float,
    postscale: float,
    dtype: str,
) -> Any:
    """Return a function that adds exact sums of the ranks, and rounds them. Local."""
    if prescale != 1.0:
        raise ArgumentError(
            f"prescale is {shown(prescale)}, and x has sums that are not rounded; scale the "
            f"numbers before they are added, or pass postscale"
        )
    x = np.asarray(x)
    shape, size = x.shape, x.size
    if kind == REDUCE_SCATTER:
        if size % engine.size:
            raise ArgumentError(
                f"x has {size} sums, which {engine.size} ranks cannot share equally"
            )
        size //= engine.size
        shape = (size, *shape[1:]) if len(shape) == 1 else (size,)
    if out is not None:
        _, count, _, found, _ = _core.examine(out, "out", True)
        if (found, count) != (dtype, size):
            raise BufferError(
                f"out has {count} elements of {found}, and the result has {size} of {dtype}; they "
                f"must be equal"
            )
    words = _words(x)

    def rounded(result: Integers | None) -> Any:
        if result is None:
            return None
        made = np.empty(shape, numpy_dtype(dtype, "x")) if out is None else out
        _core.exact_rounded(result, dtype, made)
        return made if postscale == 1.0 else _scaled(made, postscale)

    return partial(_added, engine, kind, words, root, None, named, rounded)


def _added(
    engine: _core.Engine,
    kind: int,
    words: Integers,
    root: Any,
    parts: _core.Parts | None,
    named: str | None,
    rounded: Callable[[Integers | None], Any],
    timeout: float | None,
    blocking: bool,
) -> Any:
    """Add words by an algorithm, and return them rounded. Collective."""
    scales = 1.0, 1.0
    job = ExactCall(
        engine, kind, words, None, SUM_REPRODUCIBLE, root, timeout, *scales, blocking, parts
    )
    return job.run(named, ANY, rounded)


def _scaled(made: Any, factor: float) -> Any:
    _core.scale(made, made, factor)
    return made


def _by_words(job: ExactCall, named: str | None, timeout: float | None, blocking: bool) -> Any:
    """Run a call by an algorithm, which adds words. Collective."""
    parts = None
    if job.counts is not None:
        parts = _core.Parts(job.counts * _core.exact_words(job.dtype))

    def rounded(result: Integers | None) -> Any:
        if result is not None:
            job.round(result)
        return job.finish()

    arguments = job.engine, job.kind, job.words(), job.root, parts, named
    return _added(*arguments, rounded, timeout, blocking)


def _is_long(job: ExactCall) -> bool:
    """Return whether a scan of floats sends less by parts. Local."""
    p = job.engine.size
    return p > 2 and not job.is_whole and job.count * job.itemsize * p > SHORT


def _scanned(job: ExactCall, timeout: float | None, blocking: bool) -> Any:
    """Run a scan or exscan by pieces, of which each rank adds a part. Collective."""
    rank, p = job.engine.rank, job.engine.size
    own = job.kind == SCAN
    piece = max(PIECE // job.itemsize // p, 1) * p
    longest = -(-min(piece, job.count) // p)
    rows, sums, unused = (job.scratch(longest * p) for _ in range(3))
    with job.engine:
        for first in range(0, job.count, piece):
            n = min(piece, job.count - first)
            sent = equal_parts(n, p)
            mine = int(sent[rank])
            received = np.full(p, mine)
            part = job.cut(rows, 0, p * mine)
            job.move(ALLTOALL, job.span(False, first, n), part, sent, received)
            for k in range(0 if own else 1, p):
                job.add(job.cut(sums, k * mine, mine), part, k + own)
            out = job.span(True, first, n) if own or rank else job.cut(unused, 0, n)
            job.move(ALLTOALL, job.cut(sums, 0, p * mine), out, received, sent)
    return job.finish()
