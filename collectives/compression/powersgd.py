"""Low rank: a matrix as the product of two narrow ones, found by one step of a power iteration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives import _core
from collectives.compression.codec import POSITIVE, WORD, Codec, Floats, Piece, State, parameter
from collectives.compression.halves import dense


class _Matrix:
    """One array that is reduced by factors."""

    def __init__(self, x: Floats, rows: int, rank: int, state: State) -> None:
        self.x = x
        self.shape = rows, x.size // rows
        self.rank = min(rank, *self.shape)
        self.state = state
        self.whole: Floats = x.reshape(self.shape)  # with the error of earlier calls
        self.left: Floats = np.empty(0, np.float32)  # (rank, rows)
        self.right: Floats = np.empty(0, np.float32)  # (rank, columns)


class PowerSGD(Codec):
    """Send two narrow matrices, whose product approximates the sum of the matrices.

    Parameters
    ----------
    rank : int
        The rank of the product.
    error_feedback : bool
        Whether the error is added to the array in the next call with its name.
    seed : int
        Of the factors in the first call.

    Raises
    ------
    ArgumentError
        If `rank` is not positive, or `seed` is no integer of 64 bits.

    Notes
    -----
    An array with n rows, whose other dimensions have m elements together, is compressed if
    (n + m) rank < n m. Others, and all arrays with less than two dimensions, are summed without
    compression. With M the array of a rank, and Q the factor of its last call, or a random one:

    1. P is the sum of M Q over the ranks (an allreduce), made orthonormal on each rank.
    2. Q is the sum of M^T P (an allreduce).
    3. The result is P Q^T.

    With error feedback, a rank keeps the error of its own array, M - P (M^T P)^T. This is the
    projection of M on the space orthogonal to P, so it is never longer than M. If M has at most
    that rank, and is the same on all ranks, there is no error from the first call on. Each rank
    keeps 4 bytes for each element, and 4 for each of Q.

    All ranks compute the same orthonormal P and the same result, by kernels whose bits do not
    depend on the processor. A NaN or an infinity makes the whole matrix NaN on all ranks; its kept
    error is forgotten. float64 is rounded to float32 first.

    Source: T. Vogels, S. P. Karimireddy, M. Jaggi: "PowerSGD: Practical low-rank gradient
    compression for distributed optimization", NeurIPS 2019, arXiv:1905.13727. Their memory is that
    of a rank's own factors, as here.
    """

    needs_name = True  # for the factor, with or without error feedback

    def __init__(self, rank: int = 2, *, error_feedback: bool = True, seed: int = 0) -> None:
        self.rank: int = parameter(rank, "rank", POSITIVE)
        seed = parameter(seed, "seed", WORD)
        self._error_feedback = bool(error_feedback)
        plain = "" if error_feedback else ", error_feedback=False"
        seeded = f", seed={seed}" if seed else ""
        super().__init__(f"powersgd(rank={self.rank}{plain}{seeded})", seed)

    def _rows(self, shape: tuple[int, ...], count: int) -> int:
        """Return the rows of the matrix, or 0 if the array is summed without compression."""
        if len(shape) < 2 or count == 0:
            return 0
        columns = count // shape[0]
        return shape[0] if (shape[0] + columns) * self.rank < count else 0

    def _reduce(
        self, comm: Any, pieces: Sequence[Piece], floats: list[NDArray[Any]], states: list[State]
    ) -> Iterator[_core.Request]:
        matrices, others, factors = [], [], []
        for piece, x, state in zip(pieces, floats, states, strict=True):
            rows = self._rows(piece.shape, x.size)
            if not rows:
                others.append(x)
                continue
            matrix = _Matrix(x, rows, self.rank, state)
            if self._error_feedback:
                remains = state.remainder(np.float32)
                remains += x
                matrix.whole = remains.reshape(matrix.shape)
            right = self._start(piece.key, matrix)
            with np.errstate(all="ignore"):
                matrix.left = right @ matrix.whole.T
            matrices.append(matrix)
            factors.append(matrix.left.reshape(-1))
        yield from dense(comm, others + factors)

        for matrix in matrices:
            _core.orthonormalise(matrix.left)
            with np.errstate(all="ignore"):
                matrix.right = matrix.left @ matrix.whole
        factors = [matrix.right.reshape(-1).copy() for matrix in matrices]
        for matrix in matrices:
            if self._error_feedback:
                _core.low_rank(matrix.whole, matrix.left, matrix.right, True)
        yield from dense(comm, factors)
        for matrix, right in zip(matrices, factors, strict=True):
            self._finish(matrix, right)

    def _start(self, key: str, matrix: _Matrix) -> Floats:
        """Return orthonormal rows for the power iteration to start with, the same on all ranks."""
        rows = np.zeros((matrix.rank, matrix.shape[1]), np.float32)
        last = matrix.state.second
        if last is not None and last.size == rows.size:
            rows[:] = last.reshape(rows.shape)
        if _core.orthonormalise(rows) < matrix.rank:
            # Those of a matrix of a lower rank, which the next may not have, are chosen anew.
            empty = ~rows.any(axis=1)
            words = _core.random_words(self._random(key, matrix.state.calls), rows[empty].size)
            uniform = (words >> np.uint64(40)).astype(np.float32) - np.float32(1 << 23)
            rows[empty] = uniform.reshape(-1, rows.shape[1])
            _core.orthonormalise(rows)
        return rows

    def _finish(self, matrix: _Matrix, right: Floats) -> None:
        """Write the result, and keep the factor and the error for the next call."""
        _core.low_rank(matrix.x.reshape(matrix.shape), matrix.left, right.reshape(matrix.rank, -1))
        matrix.state.second = right if np.isfinite(right).all() else None
        if matrix.state.second is None:
            matrix.x[:] = np.nan
        if self._error_feedback and not np.isfinite(matrix.whole.sum()):
            matrix.whole[~np.isfinite(matrix.whole)] = 0
