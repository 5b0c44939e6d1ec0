"""Memory for results that comes back when nobody uses it any more.

A program that takes a step after the other needs results of the same sizes each time. New memory
costs as much as a reduction, because the system clears it page by page.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64  # bytes: frameworks take over memory that begins at a multiple, without a copy
LEAST = 64 << 10  # bytes that are kept; malloc is fast for less

Array = NDArray[Any]


def aligned(nbytes: int) -> Array:
    """Return so many bytes of memory that a framework can take over without a copy. Local."""
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + nbytes]


class Memory:
    """Memory for the results of one place of a program. As much is kept as was in use at once."""

    def __init__(self) -> None:
        self._free: defaultdict[int, deque[Array]] = defaultdict(deque)

    def take(self, nbytes: int) -> Array:
        """Return so many bytes, as `aligned` does; they come back with the last array on them.
        Local.
        """
        if nbytes < LEAST:
            return aligned(nbytes)
        free = self._free[nbytes]
        try:
            block = free.pop()
        except IndexError:  # all are in use
            block = aligned(nbytes)
        return np.asarray(_Lease(block, free))


class _Lease:
    """What NumPy keeps alive as long as an array is on the memory of a block."""

    def __init__(self, block: Array, free: deque[Array]) -> None:
        self._block, self._free = block, free
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._block)
