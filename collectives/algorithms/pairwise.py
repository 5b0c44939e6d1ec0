"""Pairwise exchange: in each round, every rank sends to one rank and receives from another."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.papers import THAKUR
from collectives.algorithms.registry import Cost, algorithm


@algorithm(
    "alltoall",
    cost=Cost(rounds="p - 1", sent="(p - 1)/p"),
    source=THAKUR,
    cyclic=True,
)
def pairwise(r: int, p: int) -> Iterator[Exchange]:
    """In round t, send to the rank t places to the right, and receive from t places to the left.

    Each block goes directly to its destination. In each round, every rank sends one block and
    receives one, so that no rank gets many messages at once. Block ``s * p + d`` goes from rank s
    to rank d.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("alltoall", "pairwise", p=3)))
            start                      | step 1                     | step 2
    block   00 01 02 10 11 12 20 21 22 | 00 01 02 10 11 12 20 21 22 | 00 01 02 10 11 12 20 21 22
    rank 0  *  *  *  .  .  .  .  .  .  | *  *  *  .  .  .  *  .  .  | *  *  *  *  .  .  *  .  .
    rank 1  .  .  .  *  *  *  .  .  .  | .  *  .  *  *  *  .  .  .  | .  *  .  *  *  *  .  *  .
    rank 2  .  .  .  .  .  .  *  *  *  | .  .  .  .  .  *  *  *  *  | .  .  *  .  .  *  *  *  *
    """
    for t in range(1, p):
        to, source = (r + t) % p, (r - t) % p
        yield Exchange(send=(to, r * p + to), recv=(source, source * p + r))
