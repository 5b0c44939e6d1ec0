"""Swing: partners to the left and to the right in turns, the nearest first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from collectives.algorithms.butterfly import around_core, core, core_size, rank_of
from collectives.algorithms.exchange import Exchange
from collectives.algorithms.registry import NOWHERE, Cost, algorithm

SOURCE = (
    "De Sensi, Bonato, Saam, Hoefler: Swing: short-cutting rings for higher bandwidth allreduce, "
    "2024, arXiv:2401.09356"
)


def swung(v: int, s: int, q: int) -> int:
    """Return the partner of number `v` in step `s`; partners are 1, -1, 3, -5, 11, ... away."""
    away: int = (1 - (-2) ** (s + 1)) // 3
    return (v - away if v % 2 else v + away) % q


def reach(v: int, s: int, q: int) -> list[int]:
    """Return `v` and the numbers that it reaches in step `s` and later, in rising order."""
    found = [v]
    while 1 << s < q:
        found += [swung(w, s, q) for w in found]
        s += 1
    return sorted(found)


def reduce_scatter_swing(v: int, p: int) -> Iterator[Exchange]:
    """Reduce-scatter: partners each keep the blocks of the numbers that they reach later."""
    q = core_size(p)
    for s in range(q.bit_length() - 1):
        other = swung(v, s, q)
        peer = rank_of(other, p)
        kept, given = reach(v, s + 1, q), reach(other, s + 1, q)
        yield Exchange(send=(peer, given), recv=(peer, kept), fold=True)


def allgather_swing(v: int, p: int) -> Iterator[Exchange]:
    """Allgather: the same partners, the farthest first, exchange all blocks that they have."""
    q = core_size(p)
    for s in reversed(range(q.bit_length() - 1)):
        other = swung(v, s, q)
        peer = rank_of(other, p)
        mine, theirs = reach(v, s + 1, q), reach(other, s + 1, q)
        yield Exchange(send=(peer, mine), recv=(peer, theirs))


def mirrored(q: int, r: int, p: int) -> int:
    """Return the rank that is for rank 0 what `q` is for `r`, which looks the other way if odd."""
    return (r - q if r % 2 else q - r) % p


@algorithm(
    "allreduce",
    blocks=core_size,
    cost=Cost(
        rounds="2*lg + 2*rest",
        sent="2*(q - 1)/q + rest",
        folded="(q - 1)/q + rest",
        beta="2*(q - 1)/q + 2*rest",
    ),
    source=SOURCE,
    chosen=NOWHERE,
    alike=mirrored,
)
def swing(r: int, p: int) -> Iterator[Exchange]:
    """Reduce-scatter, then allgather, with partners 1, -1, 3, -5, 11, ... ranks away on a circle.

    This is `halving_doubling` with other partners. Half of the array goes to a neighbour, a quarter
    to the neighbour on the other side, an eighth to a rank three away. (The partners of
    `halving_doubling` are about 1.5 times as far away.) On a ring or a torus, where messages share
    links, bytes cross fewer of them. If p is not a power of two, the ranks outside the core send
    their array to a neighbour before, and receive the result after.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "swing", p=4)))
            start   | step 1      | step 2      | step 3  | step 4
    block   0 1 2 3 | 0  1  2  3  | 0  1  2  3  | 0 1 2 3 | 0 1 2 3
    rank 0  0 0 0 0 | 01 0  0  01 | *  0  0  01 | * 0 0 * | * * * *
    rank 1  1 1 1 1 | 1  01 01 1  | 1  *  01 1  | 1 * * 1 | * * * *
    rank 2  2 2 2 2 | 2  23 23 2  | 2  23 *  2  | 2 * * 2 | * * * *
    rank 3  3 3 3 3 | 23 3  3  23 | 23 3  3  *  | * 3 3 * | * * * *
    """
    q, v, partner = core(r, p)
    yield from around_core(
        r,
        partner,
        chain(reduce_scatter_swing(v, p), allgather_swing(v, p)),
        given=range(q),
        taken=range(q),
    )
