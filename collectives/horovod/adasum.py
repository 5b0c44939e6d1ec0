"""Adasum: a sum of gradients that counts their common direction once.

Two gradients a and b become ``(1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b``: their sum if they are
orthogonal, and their mean if they are equal. More gradients are combined in pairs, then the results
in pairs, and so on, so the number of ranks is a power of 2.

S. Maleki et al., Scaling distributed training with adaptive summation, MLSys 2021.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives import _core
from collectives._core import ALLREDUCE
from collectives.background.steps import Steps
from collectives.communicator import Communicator
from collectives.reductions import SUM

SMALLEST = math.sqrt(sys.float_info.min)  # of a square; smaller gradients are added, as in Horovod
PIECE = 1 << 16  # elements that are converted to float64 at a time

Floats = NDArray[np.floating[Any]]


def steps(x: Floats) -> Steps:
    """Return the steps that combine the gradients of all ranks, a power of 2 of them. Local.

    Each rank sends its whole array in each of ``log2(size)`` rounds. All ranks have the same bits.
    """
    text = f"allreduce of {x.dtype} {x.shape}, op Adasum"
    return Steps(ALLREDUCE, x.reshape(-1)[:0], SUM, text, lambda comm: _combine(comm, x))


def _combine(comm: Communicator, x: Floats) -> Generator[_core.Request, None, Floats]:
    mine, distance = x.copy(), 1
    while distance < comm.size:
        peer = comm.rank ^ distance
        other = np.empty_like(mine)
        yield comm.isendrecv(mine, peer, other, peer)
        # Only one rank of a pair computes the factors, because the order of a sum may depend on
        # addresses.
        if comm.rank < peer:
            factors = np.array(combined(mine, other))
            yield comm.isend(factors, peer)
            _add(mine, other, *factors)
        else:
            factors = np.empty(2)
            yield comm.irecv(factors, peer)
            _add(other, mine, *factors)
            mine = other
        distance *= 2
    return mine


def combined(a: Floats, b: Floats) -> tuple[float, float]:
    """Return the factors of two gradients in their combination. Local."""
    product, first, second = np.sum([(x @ y, x @ x, y @ y) for _, x, y in _pieces(a, b)], axis=0)
    left, right = (1.0 - product / (2 * n) if n >= SMALLEST else 1.0 for n in (first, second))
    return float(left), float(right)


def _add(a: Floats, b: Floats, left: float, right: float) -> None:
    """Replace `a` by ``left * a + right * b``; a factor need not be a float32."""
    for place, x, y in _pieces(a, b):
        a.reshape(-1)[place] = left * x + right * y


def _pieces(a: Floats, b: Floats) -> Iterator[tuple[slice, Floats, Floats]]:
    """Yield parts of two arrays as float64, and their slices."""
    for start in range(0, max(a.size, 1), PIECE):
        place = slice(start, start + PIECE)
        x, y = (each.reshape(-1)[place].astype(np.float64) for each in (a, b))
        yield place, x, y
