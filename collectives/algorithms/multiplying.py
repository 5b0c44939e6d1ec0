"""Recursive multiplying: the butterfly with groups of several ranks instead of pairs."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.formulas import factors
from collectives.algorithms.registry import NOWHERE, Cost, algorithm

SOURCE = (
    "Ruefenacht, Bull, Booth: Generalisation of recursive doubling for AllReduce: now with "
    "simulation, 2017, doi:10.1016/j.parco.2017.08.004"
)


@algorithm(
    "allreduce",
    cost=Cost(
        rounds="factors(k)",
        sent="peers(k)",
        folded="peers(k)",
        alpha="peers(k)",
        gamma="factors(k)",
    ),
    source=SOURCE,
    keeps_order=True,
    parameters={"k": 4},
    chosen=NOWHERE,
)
def multiplying(r: int, p: int, k: int) -> Iterator[Exchange]:
    """Exchange the whole array in groups of up to k ranks, then between up to k groups, and fold.

    The number of ranks is split into factors: the largest up to k, or primes if there are none.
    After the round of a factor f, groups of f times as many neighbours hold the same sum. With k =
    2, it is the butterfly on powers of two. With k = p, every rank sends to all others at once.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "multiplying:3", p=6)))
            start | step 1 | step 2
    rank 0  0     | 012    | *
    rank 1  1     | 012    | *
    rank 2  2     | 012    | *
    rank 3  3     | 345    | *
    rank 4  4     | 345    | *
    rank 5  5     | 345    | *
    """
    d = 1
    for f in factors(p, k):
        place = r // d % f
        first = r - place * d
        targets = [first + (place + i) % f * d for i in range(1, f)]
        sources = [first + (place - i) % f * d for i in range(1, f)]
        yield Exchange(
            send=[(peer, 0) for peer in targets],
            recv=[(peer, 0) for peer in sources],
            fold=True,
        )
        d *= f
