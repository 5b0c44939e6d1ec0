"""Butterfly, or recursive doubling: partners at distance 1, 2, 4, ... exchange everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from collectives.algorithms.exchange import Blocks, Exchange
from collectives.algorithms.registry import Cost, algorithm


def core(r: int, p: int) -> tuple[int, int, int | None]:
    """Pair off the ranks beyond a power of two: who takes part in the middle of the algorithm.

    With ``q`` the largest power of two up to ``p``, the first ``2(p - q)`` ranks form pairs of
    an even rank, which is in the core, and its odd neighbour, which is not.

    Returns
    -------
    (q, v, partner) : (int, int, int or None)
        The size of the core, this rank's (or its partner's) number in it, and its partner if it
        is in a pair; a rank above its partner is outside of the core.
    """
    q = 1 << (p.bit_length() - 1)
    paired = 2 * (p - q)
    if r >= paired:
        return q, r - (p - q), None
    return q, r // 2, r ^ 1


def rank_of(v: int, p: int) -> int:
    """Return the rank whose number in the core is `v`; the inverse of `core`."""
    q = 1 << (p.bit_length() - 1)
    return 2 * v if v < p - q else v + (p - q)


def around_core(
    r: int,
    partner: int | None,
    rounds: Iterable[Exchange],
    given: Blocks,
    taken: Blocks,
    fold: bool = True,
) -> Iterator[Exchange]:
    """Run the rounds of the core; before, `given` comes in from those outside, after, `taken` goes.

    A rank outside of the core takes no part in the rounds: its partner speaks for both.
    """
    if partner is not None and partner < r:
        yield Exchange(send=(partner, given))
        yield Exchange(recv=(partner, taken))
        return
    if partner is not None:
        yield Exchange(recv=(partner, given), fold=fold)
    yield from rounds
    if partner is not None:
        yield Exchange(send=(partner, taken))


def doubling(v: int, p: int) -> Iterator[Exchange]:
    """The butterfly proper: partners at distance 1, 2, 4, ... in the core exchange and fold."""
    q, _, _ = core(0, p)
    distance = 1
    while distance < q:
        other = rank_of(v ^ distance, p)
        yield Exchange(send=(other, 0), recv=(other, 0), fold=True)
        distance *= 2


@algorithm(
    "allreduce",
    cost=Cost(rounds="lg + 2*rest", sent="lg + rest", folded="lg + rest"),
    source=(
        "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in "
        "MPICH, 2005, doi:10.1177/1094342005051521"
    ),
    keeps_order=True,
)
def butterfly(r: int, p: int) -> Iterator[Exchange]:
    """Exchange the whole array with partners at distance 1, 2, 4, ... and fold.

    After the round at distance d, groups of 2d neighbours hold the same sum. If p is not a power
    of two, the odd rank of each of the first pairs gives its array to the even one before, and
    gets the result after.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "butterfly", p=4)))
            start | step 1 | step 2
    rank 0  0     | 01     | *
    rank 1  1     | 01     | *
    rank 2  2     | 23     | *
    rank 3  3     | 23     | *
    """
    _, v, partner = core(r, p)
    yield from around_core(r, partner, doubling(v, p), given=0, taken=0)
