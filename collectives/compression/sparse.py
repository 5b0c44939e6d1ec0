"""Sparse codes: a few elements of each array, the largest or some at random."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives import _core
from collectives.compression.codec import PROPORTION, WORD, Codec, Codes, Piece, State, parameter
from collectives.compression.halves import dense
from collectives.errors import ArgumentError

INDEX = np.dtype(np.uint32)  # of an element on the wire


class _Sparse(Codec):
    """Codecs that send a fraction of the elements."""

    _keeps_double = True

    def __init__(self, kind: str, fraction: float, error_feedback: bool, seed: int = 0) -> None:
        self.fraction: float = parameter(fraction, "fraction", PROPORTION)
        self.needs_name = self._error_feedback = bool(error_feedback)
        plain = "" if error_feedback else ", error_feedback=False"
        seeded = f", seed={seed}" if seed else ""
        super().__init__(f"{kind}({self.fraction:g}{plain}{seeded})", seed)

    def chosen(self, count: int) -> int:
        """Return the number of sent elements of `count`: at least one. Local."""
        return min(count, max(1, math.ceil(self.fraction * count)))

    def _remains(self, x: NDArray[Any], state: State) -> NDArray[Any]:
        """Return the values to send: the array, and with error feedback those not sent before."""
        if not self._error_feedback:
            return x
        remains = state.remainder(x.dtype)
        if remains.dtype != x.dtype:  # an array of another dtype has had this name
            remains = state.residual = remains.astype(x.dtype)
        remains += x
        return remains


class TopK(_Sparse):
    """Send the elements with the largest magnitudes.

    Parameters
    ----------
    fraction : float
        Of the elements of each array; at least one is sent.
    error_feedback : bool
        Whether elements that were not sent are added to the array in the next call with its name.

    Raises
    ------
    ArgumentError
        If `fraction` is not above 0 and at most 1, or an array has 2^32 elements or more.

    Notes
    -----
    Each rank chooses by itself, and all ranks get the indices and values of all (an allgather). So
    the bytes grow with the number of ranks: if ``fraction * ranks`` is above about a half, an
    allreduce without compression sends fewer. The elements that no rank has sent are zero in the
    result. With error feedback, each rank keeps an array of the dtype of its own.

    One choice of k among n elements leaves at most ``1 - k / n`` of the square of the array's
    Euclidean norm. A NaN is chosen first, then infinities; each makes its own element of the result
    NaN or infinite, and is not kept.

    Sources: A. F. Aji, K. Heafield: "Sparse communication for distributed gradient descent", EMNLP
    2017, doi:10.18653/v1/D17-1045; S. U. Stich, J.-B. Cordonnier, M. Jaggi: "Sparsified SGD with
    memory", NeurIPS 2018, arXiv:1809.07599.
    """

    def __init__(self, fraction: float = 0.01, *, error_feedback: bool = True) -> None:
        super().__init__("topk", fraction, error_feedback)

    def _reduce(
        self, comm: Any, pieces: Sequence[Piece], floats: list[NDArray[Any]], states: list[State]
    ) -> Iterator[_core.Request]:
        sizes = []
        for x in floats:
            sizes.append(self._message_bytes(x.size, x.itemsize))
        mine = np.empty(sum(sizes), np.uint8)
        at = 0
        for x, state, size in zip(floats, states, sizes, strict=True):
            remains = self._remains(x, state)
            self._choose(mine[at : at + size], remains)
            at += size
        everybody = np.empty((comm.size, mine.size), np.uint8)
        yield comm.iallgather(mine, out=everybody)
        at = 0
        for x, size in zip(floats, sizes, strict=True):
            x[:] = 0
            for row in everybody:
                indices, values = _unpacked(row[at : at + size], x.dtype)
                x[indices] += values
            at += size

    def _choose(self, codes: Codes, remains: NDArray[Any]) -> None:
        """Write the largest of the elements to send, with their indices."""
        indices, values = _unpacked(codes, remains.dtype)
        indices[:] = _largest(remains, indices.size)
        values[:] = remains[indices]
        if self._error_feedback:
            remains[indices] = 0

    def _message_bytes(self, count: int, itemsize: int) -> int:
        if count > np.iinfo(INDEX).max:
            raise ArgumentError(f"x has {count} elements, and topk takes fewer than 2**32")
        return self.chosen(count) * (INDEX.itemsize + itemsize)

    def _pack(self, codes: Codes, x: NDArray[Any], key: str, state: State, rank: int) -> None:
        self._choose(codes, self._remains(x, state))

    def _unpack(self, x: NDArray[Any], codes: Codes, key: str, call: int) -> None:
        indices, values = _unpacked(codes, x.dtype)
        x[:] = 0
        x[indices] = values


def _unpacked(codes: Codes, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the indices and the values in the codes of one rank for an array."""
    count = codes.size // (INDEX.itemsize + dtype.itemsize)
    end = count * INDEX.itemsize
    return codes[:end].view(INDEX), codes[end:].view(dtype)


def _largest(x: NDArray[Any], count: int) -> NDArray[np.intp]:
    """Return the indices of the largest magnitudes, in their order. NaN is larger than any."""
    if count == x.size:
        return np.arange(count)
    found: NDArray[np.intp] = np.argpartition(np.abs(x), x.size - count)[x.size - count :]
    found.sort()
    return found


class RandomK(_Sparse):
    """Send elements that are chosen at random, the same on all ranks.

    Parameters
    ----------
    fraction : float
        Of the elements of each array; at least one is sent.
    error_feedback : bool
        Whether elements that were not sent are added to the array in the next call with its name.
        If not, a sent element is multiplied by the number of elements from which it was chosen, so
        that the error is zero on average.
    seed : int
        Of the choices.

    Raises
    ------
    ArgumentError
        If `fraction` is not above 0 and at most 1, or `seed` is no integer of 64 bits.

    Notes
    -----
    The n elements of an array are cut into k nearly equal rows, and one element of each is chosen.
    So memory is read in its order, and no index is sent: the values go through one allreduce. The
    choice is a hash of `seed`, the name of the array, and the number of the call. All ranks must
    therefore have made the same number of calls since they called `reset`; `Communicator.allreduce`
    compares these numbers.

    One choice leaves on average ``1 - k / n`` of the square of the array's Euclidean norm, if k
    divides n. A NaN or an infinity that is chosen makes its own element of the result NaN or
    infinite. One that is not chosen is forgotten.

    Source: S. U. Stich, J.-B. Cordonnier, M. Jaggi: "Sparsified SGD with memory", NeurIPS 2018,
    arXiv:1809.07599, who choose any k elements.
    """

    def __init__(
        self, fraction: float = 0.01, *, error_feedback: bool = True, seed: int = 0
    ) -> None:
        super().__init__("randomk", fraction, error_feedback, parameter(seed, "seed", WORD))

    def _reduce(
        self, comm: Any, pieces: Sequence[Piece], floats: list[NDArray[Any]], states: list[State]
    ) -> Iterator[_core.Request]:
        indices, values = [], []
        for piece, x, state in zip(pieces, floats, states, strict=True):
            which, sent = self._chosen_values(piece.key, x, state)
            indices.append(which)
            values.append(sent)
        yield from dense(comm, values)
        for x, which, total in zip(floats, indices, values, strict=True):
            x[:] = 0
            x[which] = total

    def _chosen_values(
        self, key: str, x: NDArray[Any], state: State
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the indices of this call, and the sent elements of the array."""
        remains = self._remains(x, state)
        which, widths = self._choice(key, x.size, state.calls)
        sent = remains[which]
        if self._error_feedback:
            remains[which] = 0
            if not np.isfinite(remains.sum()):
                remains[~np.isfinite(remains)] = 0
        else:
            sent *= widths.astype(x.dtype)
        return which, sent

    def _message_bytes(self, count: int, itemsize: int) -> int:
        return self.chosen(count) * itemsize

    def _pack(self, codes: Codes, x: NDArray[Any], key: str, state: State, rank: int) -> None:
        codes.view(x.dtype)[:] = self._chosen_values(key, x, state)[1]

    def _unpack(self, x: NDArray[Any], codes: Codes, key: str, call: int) -> None:
        x[:] = 0
        x[self._choice(key, x.size, call)[0]] = codes.view(x.dtype)

    def _choice(
        self, key: str, count: int, call: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return one index of each row, and the lengths of the rows."""
        rows = self.chosen(count)
        bounds = np.arange(rows + 1, dtype=np.int64) * count // max(1, rows)
        widths = np.diff(bounds)
        words = _core.random_words(self._random(key, call), rows)
        return bounds[:-1] + (words % widths.astype(np.uint64)).astype(np.int64), widths
