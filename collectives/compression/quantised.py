"""Codes of 8, 4 and 1 bits: encode, add up the parts of all ranks, encode the sums.

Each array is cut into blocks, and the blocks into parts, one for each rank. A call goes in two
phases, like the reduce-scatter and the allgather of a ring:

1. Each rank encodes all parts and sends each to its owner (an alltoall). The owner decodes what it
   gets, and adds it up in the order of the ranks, in float32.
2. The owner encodes the sum, and all ranks get all sums (an allgather), and decode them.

All ranks decode the same codes, so all have the same bits. The owner of each part depends only on
the name and the length of the array. So the result does not depend on other arrays in the same
call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from collectives import _core
from collectives.compression.codec import POSITIVE, WORD, Codec, Floats, Piece, State, parameter

Codes = NDArray[np.uint8]


class _Part(NamedTuple):
    """A part of an array: its elements, and the bytes of their codes."""

    start: int
    stop: int
    nbytes: int

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        return values[self.start : self.stop]


class _Quantised(Codec):
    """Codes of a fixed number of bits, with a scale for each block."""

    _bits = 0
    _error_feedback = False

    def __init__(self, name: str, block: int, seed: int = 0) -> None:
        super().__init__(name, seed)
        self.block = block

    def _parts(self, key: str, count: int, ranks: int) -> list[_Part]:
        """Return the part of each rank. The parts of short arrays are on ranks that depend on the
        name, because only few ranks have one.
        """
        blocks, shift = -(-count // self.block), crc32(key.encode(errors="replace")) % ranks
        parts = []
        for rank in range(ranks):
            place = (rank + shift) % ranks
            start = min(count, blocks * place // ranks * self.block)
            stop = min(count, blocks * (place + 1) // ranks * self.block)
            nbytes = _core.encoded_bytes(self._bits, stop - start, self.block)
            parts.append(_Part(start, stop, nbytes))
        return parts

    def _reduce(
        self, comm: Any, pieces: Sequence[Piece], floats: list[NDArray[Any]], states: list[State]
    ) -> Iterator[_core.Request]:
        ranks, me = comm.size, comm.rank
        keys = [each.key for each in pieces]
        cut = [self._parts(each.key, each.x.size, ranks) for each in pieces]
        sizes = [sum(parts[rank].nbytes for parts in cut) for rank in range(ranks)]
        mine = [parts[me] for parts in cut]
        codes = np.empty(sum(sizes), np.uint8)
        places = _places(cut, codes)
        for rank in range(ranks):
            for key, parts, values, state in zip(keys, cut, floats, states, strict=True):
                part = parts[rank]
                kept = part.of(state.remainder(np.float32)) if self._error_feedback else None
                seed = self._random(key, state.calls, 1 + me)
                self._encode(next(places), part, values, kept, seed)
        came = np.empty(ranks * sizes[me], np.uint8)
        yield comm.ialltoallv(codes, sizes, out=came, receive_counts=[sizes[me]] * ranks)
        self._decode([[part] * ranks for part in mine], came, floats, True)

        sums = np.empty(sizes[me], np.uint8)
        places = _places([[part] for part in mine], sums)
        for key, part, values, state in zip(keys, mine, floats, states, strict=True):
            if self._error_feedback and state.second is None:
                state.second = np.zeros(part.stop - part.start, np.float32)
            seed = self._random(key, state.calls, 0)
            self._encode(next(places), part, values, state.second, seed)
        yield comm.iallgatherv(sums, out=codes, counts=sizes)
        self._decode(cut, codes, floats, False)

    def _message_bytes(self, count: int, itemsize: int) -> int:
        return _core.encoded_bytes(self._bits, count, self.block)

    def _pack(self, codes: Codes, x: Floats, key: str, state: State, rank: int) -> None:
        kept = state.remainder(np.float32) if self._error_feedback else None
        seed = self._random(key, state.calls, 1 + rank)
        _core.encode(self._bits, codes, x, kept, self.block, seed)

    def _unpack(self, x: Floats, codes: Codes, key: str, call: int) -> None:
        _core.decode(self._bits, x, codes, self.block)

    def _encode(
        self, codes: Codes, part: _Part, values: Floats, kept: Floats | None, seed: int
    ) -> None:
        """Encode a part of an array, and its `kept` error."""
        first = part.start // self.block
        _core.encode(self._bits, codes, part.of(values), kept, self.block, seed, first)

    def _decode(
        self, cut: Sequence[Sequence[_Part]], codes: Codes, floats: list[NDArray[Any]], adds: bool
    ) -> None:
        """Decode the codes from all ranks, one after the other: side by side, or added up."""
        places = _places(cut, codes)
        for rank in range(len(cut[0]) if cut else 0):
            for parts, values in zip(cut, floats, strict=True):
                part = parts[rank].of(values)
                _core.decode(self._bits, part, next(places), self.block, adds and rank > 0)


def _places(cut: Sequence[Sequence[_Part]], codes: Codes) -> Iterator[Codes]:
    """Yield the codes of each array's part, those of one rank after the other."""
    at = 0
    for each in zip(*cut, strict=True):
        for part in each:
            yield codes[at : at + part.nbytes]
            at += part.nbytes


class Int8(_Quantised):
    """Send 8 bits for an element, rounded at random so that the error is zero on average.

    Parameters
    ----------
    block : int
        Number of elements that share a scale.
    seed : int
        Of the random numbers.

    Raises
    ------
    ArgumentError
        If `block` is not positive, or `seed` is no integer of 64 bits.

    Notes
    -----
    The scale of a block is its largest magnitude divided by 127, the *step*. An element is rounded
    to the multiple of the step above it or below it, with the probabilities for which the expected
    value is the element, but for at most 2^-13 steps (the random numbers have 15 bits, and a step
    is rounded). So one encoding changes an element by less than one step. Each element is encoded
    twice, by this rank and as a part of the sum. The sum over p ranks has an expected square error
    of at most a quarter of the sum of the squares of the p + 1 steps.

    A step is at least 2^-112 (1.9e-34), so smaller magnitudes are rounded to zero or to that. A
    block with an infinity or a NaN is NaN on all ranks afterwards; no other block changes. float64
    is rounded to float32 first.

    The random number of an element is a hash of `seed`, the name of the array, the number of the
    call, the rank, and the number of the element. Two runs of a program have the same results.

    Source: D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic: "QSGD: Communication-efficient
    SGD via gradient quantization and encoding", NeurIPS 2017, arXiv:1610.02132. The scale is the
    largest magnitude of a block, not the norm of the array.
    """

    _bits = 8

    def __init__(self, block: int = 512, *, seed: int = 0) -> None:
        block, seed = parameter(block, "block", POSITIVE), parameter(seed, "seed", WORD)
        super().__init__(f"int8(block={block}{_seeded(seed)})", block, seed)


class Int4(_Quantised):
    """Send 4 bits for an element, rounded at random so that the error is zero on average.

    Parameters
    ----------
    block : int
        Number of elements that share a scale.
    seed : int
        Of the random numbers.

    Raises
    ------
    ArgumentError
        As for `Int8`.

    Notes
    -----
    As `Int8`, with steps of a seventh of the largest magnitude of the block.
    """

    _bits = 4

    def __init__(self, block: int = 256, *, seed: int = 0) -> None:
        block, seed = parameter(block, "block", POSITIVE), parameter(seed, "seed", WORD)
        super().__init__(f"int4(block={block}{_seeded(seed)})", block, seed)


class Sign(_Quantised):
    """Send the sign of each element, and the mean magnitude of each block.

    Parameters
    ----------
    block : int
        Number of elements that share a scale.
    error_feedback : bool
        Whether the error is added to the array in the next call with its name.

    Raises
    ------
    ArgumentError
        If `block` is not positive.

    Notes
    -----
    The error is large and not zero on average. With error feedback, both encodings keep their
    errors: this rank's for its array, and the owner's for the sum of its part. That takes 4 bytes
    for each element, and 4 bytes for each element of the part.

    Of the square of the Euclidean norm of a block x, one encoding leaves the part
    ``1 - sum(abs(x))**2 / (n * sum(x**2))``, with n elements. A block with an infinity or a NaN is
    NaN on all ranks afterwards, and its kept error is forgotten. The sign of a zero is that of
    its bit.

    Sources: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu: "1-bit stochastic gradient descent and its
    application to data-parallel distributed training of speech DNNs", Interspeech 2014,
    doi:10.21437/Interspeech.2014-274; S. P. Karimireddy, Q. Rebjock, S. Stich, M. Jaggi: "Error
    feedback fixes SignSGD and other gradient compression schemes", ICML 2019, arXiv:1901.09847;
    the second error feedback is that of H. Tang, C. Yu, X. Lian, T. Zhang, J. Liu: "DoubleSqueeze:
    Parallel stochastic gradient descent with double-pass error-compensated compression", ICML 2019,
    arXiv:1905.05957.
    """

    needs_name: bool

    _bits = 1

    def __init__(self, block: int = 512, *, error_feedback: bool = True) -> None:
        block = parameter(block, "block", POSITIVE)
        self._error_feedback = self.needs_name = bool(error_feedback)
        plain = "" if error_feedback else ", error_feedback=False"
        super().__init__(f"sign(block={block}{plain})", block)


def _seeded(seed: int) -> str:
    return f", seed={seed}" if seed else ""
