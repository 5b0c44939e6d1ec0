"""No compression, and 16 bits: dense arrays, summed by one allreduce."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives import _core
from collectives.compression.codec import Codec, Codes, Piece, State


def dense(comm: Any, floats: Sequence[NDArray[Any]]) -> Iterator[_core.Request]:
    """Replace arrays by their sums, which are exact up to rounding. Collective."""
    for dtype in (np.float32, np.float64):
        alike = [each for each in floats if each.dtype == dtype]
        if len(alike) == 1:
            yield comm.iallreduce(alike[0], out=alike[0])
        elif alike:
            packed = np.concatenate(alike)
            yield comm.iallreduce(packed, out=packed)
            ends = np.cumsum([each.size for each in alike])
            for each, end in zip(alike, ends.tolist(), strict=True):
                each[:] = packed[end - each.size : end]


class NoCompression(Codec):
    """Send all bits: the sum of an ordinary allreduce.

    It is for comparisons, and for programs with a parameter that selects the codec.
    """

    _keeps_double = True
    is_elementwise = True

    def __init__(self) -> None:
        super().__init__("none")

    def _reduce(
        self, comm: Any, pieces: Sequence[Piece], floats: list[NDArray[Any]], states: list[State]
    ) -> Iterator[_core.Request]:
        yield from dense(comm, floats)

    def _message_bytes(self, count: int, itemsize: int) -> int:
        return count * itemsize

    def _pack(self, codes: Codes, x: NDArray[Any], key: str, state: State, rank: int) -> None:
        codes.view(x.dtype)[:] = x

    def _unpack(self, x: NDArray[Any], codes: Codes, key: str, call: int) -> None:
        x[:] = codes.view(x.dtype)


class _Half(Codec):
    """Convert to 16 bits, and sum these."""

    def __init__(self) -> None:
        super().__init__(self._dtype)

    _dtype = ""
    is_elementwise = True

    def _reduce(
        self, comm: Any, pieces: Sequence[Piece], floats: list[NDArray[Any]], states: list[State]
    ) -> Iterator[_core.Request]:
        memory = np.empty(sum(each.size for each in floats), np.uint16)
        spans, at = [], 0
        for each in floats:
            spans.append(self._span(memory[at : at + each.size]))
            _core.convert(spans[-1], each)
            at += each.size
        whole = self._span(memory)
        yield comm.iallreduce(whole, out=whole)
        for span, each in zip(spans, floats, strict=True):
            _core.convert(each, span)

    def _message_bytes(self, count: int, itemsize: int) -> int:
        return 2 * count

    def _pack(self, codes: Codes, x: NDArray[Any], key: str, state: State, rank: int) -> None:
        _core.convert(self._span(codes.view(np.uint16)), x)

    def _unpack(self, x: NDArray[Any], codes: Codes, key: str, call: int) -> None:
        _core.convert(x, self._span(codes.view(np.uint16)))

    def _span(self, memory: NDArray[np.uint16]) -> _core.Span:
        # NumPy has no bfloat16 of its own.
        return _core.Span(memory.ctypes.data, (memory.size,), self._dtype, 2, memory)


class Float16(_Half):
    """Convert to float16, and sum in that: half the bytes of float32.

    Notes
    -----
    An element has a relative error of at most 2^-11 from the conversion, and of at most 2^-11 for
    each fold, which is computed in float32 and rounded once. Magnitudes below 6.1e-5 lose bits,
    those below 3e-8 become zero, and those from 65520 on become infinite, which holds for the sums
    as well: scale the arrays with ``prescale=`` and ``postscale=``, or use `BFloat16`. A NaN stays
    one. float64 is rounded to float32 first.
    """

    _dtype = "float16"


class BFloat16(_Half):
    """Convert to bfloat16, and sum in that: half the bytes of float32, with its range.

    Notes
    -----
    As for `Float16`, but with relative errors of at most 2^-8, and with the range of float32, so
    that no values of float32 need to be scaled.
    """

    _dtype = "bfloat16"
