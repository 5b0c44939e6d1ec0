"""Memory that the ranks of a communicator share, for the arrays of one size after another.

With ``--buffers shared``, the library's calls in the benchmark use such arrays, and the calls of
the peers use private ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from collectives import Communicator

LINE = 128  # the alignment of arrays, in bytes


class Room:
    """Shared memory of a communicator. Collective."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._bytes: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._used = 0

    def clear(self, arrays: int, nbytes: int) -> None:
        """Discard all arrays, and make room for new ones. Collective."""
        wanted = arrays * (nbytes + LINE)
        self._used = 0
        if wanted > len(self._bytes):
            self._bytes = self.comm.empty(wanted, np.uint8)

    def empty(self, n: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of n elements. Local."""
        nbytes = n * np.dtype(dtype).itemsize
        array = self._bytes[self._used : self._used + nbytes].view(dtype)
        assert len(array) == n, "there is room for all arrays of a size"
        self._used += -(-nbytes // LINE) * LINE
        return array
