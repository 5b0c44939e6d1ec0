"""Dissemination: in each round, every rank notifies a rank twice as far away as before."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.registry import Cost, algorithm


@algorithm(
    "barrier",
    cost=Cost(rounds="up", sent="up", folded="up"),
    source=(
        "Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, 1988, "
        "doi:10.1007/BF01379320"
    ),
    same_bits=False,
    cyclic=True,
)
def dissemination(r: int, p: int) -> Iterator[Exchange]:
    """Tell the rank at distance 1, 2, 4, ... to the right; hear from the same distance to the left.

    After the round at distance d, a rank has heard, directly or through others, of the 2d ranks up
    to itself. After ``up`` rounds it has heard of all. Hearing of a rank twice is harmless.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("barrier", "dissemination", p=4)))
            start | step 1 | step 2
    rank 0  0     | 03     | *
    rank 1  1     | 01     | *
    rank 2  2     | 12     | *
    rank 3  3     | 23     | *
    """
    distance = 1
    while distance < p:
        yield Exchange(send=((r + distance) % p, 0), recv=((r - distance) % p, 0), fold=True)
        distance *= 2
