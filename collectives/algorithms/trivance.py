"""Trivance: each round triples the ranks whose data a rank holds, on both sides of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.formulas import powers
from collectives.algorithms.registry import NOWHERE, Cost, algorithm

SOURCE = (
    "Jürß, Addanki, Schmid: Trivance: latency-optimal AllReduce by shortcutting multiport "
    "networks, 2026, arXiv:2602.17254"
)


class Side(NamedTuple):
    """A partner in an allgather, with the blocks that go to it and those that come from it."""

    peer: int
    given: list[int]
    taken: list[int]


def sides(r: int, d: int, p: int) -> list[Side]:
    """Return the partners of rank `r` when all ranks have the blocks of the d ranks around them."""
    missing = p - d
    above = min(d, missing if missing <= d else (missing + 1) // 2)
    below = min(d, missing - above)

    def lowest(v: int) -> list[int]:
        return [(v - d // 2 + i) % p for i in range(above)]

    def highest(v: int) -> list[int]:
        return [(v + d // 2 - i) % p for i in reversed(range(below))]

    left, right = (r - d) % p, (r + d) % p
    return [Side(left, lowest(r), highest(left)), Side(right, highest(r), lowest(right))]


def messages(pairs: list[tuple[int, list[int]]]) -> list[tuple[int, list[int]]]:
    """Return the messages that have blocks."""
    return [(peer, blocks) for peer, blocks in pairs if blocks]


@algorithm(
    "allgather",
    name="trivance",
    cost=Cost(rounds="digits(3)", sent="(p - 1)/p", alpha="steps(3)"),
    source=SOURCE,
    chosen=NOWHERE,
    cyclic=True,
)
def allgather_trivance(r: int, p: int) -> Iterator[Exchange]:
    """Give all that you have to the ranks at distance 1, 3, 9, ... on both sides.

    Before the round at distance d, a rank has the blocks of the d ranks around it. In this round it
    gets the blocks of the next d ranks on either side. The last round moves only the blocks that
    are still missing, from one side if that has enough. A ring of links is used both ways.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allgather", "trivance", p=5)))
            start     | step 1    | step 2
    block   0 1 2 3 4 | 0 1 2 3 4 | 0 1 2 3 4
    rank 0  * . . . . | * * . . * | * * * * *
    rank 1  . * . . . | * * * . . | * * * * *
    rank 2  . . * . . | . * * * . | * * * * *
    rank 3  . . . * . | . . * * * | * * * * *
    rank 4  . . . . * | * . . * * | * * * * *
    """
    for d in powers(3, p):
        both = sides(r, d, p)
        yield Exchange(
            send=messages([(each.peer, each.given) for each in both]),
            recv=messages([(each.peer, each.taken) for each in both]),
        )


@algorithm(
    "reduce_scatter",
    name="trivance",
    cost=Cost(rounds="digits(3)", sent="(p - 1)/p", folded="(p - 1)/p", alpha="steps(3)"),
    source=SOURCE,
    chosen=NOWHERE,
    cyclic=True,
)
def reduce_scatter_trivance(r: int, p: int) -> Iterator[Exchange]:
    """The allgather backwards: sums for the ranks around them go to both sides, the farthest first.

    Before the round at distance d, a rank has sums for the up to 3 d ranks around it. It keeps the
    sums for the d nearest, sends the others to the left and to the right, and folds the sums from
    both sides into those that it keeps.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce_scatter", "trivance", p=5)))
            start     | step 1         | step 2
    block   0 1 2 3 4 | 0  1  2  3  4  | 0  1  2  3  4
    rank 0  0 0 0 0 0 | 02 0  0  0  02 | *  0  0  0  02
    rank 1  1 1 1 1 1 | 13 13 1  1  1  | 13 *  1  1  1
    rank 2  2 2 2 2 2 | 2  24 24 2  2  | 2  24 *  2  2
    rank 3  3 3 3 3 3 | 3  3  03 03 3  | 3  3  03 *  3
    rank 4  4 4 4 4 4 | 4  4  4  14 14 | 4  4  4  14 *
    """
    for d in reversed(powers(3, p)):
        both = sides(r, d, p)
        yield Exchange(
            send=messages([(each.peer, each.taken) for each in both]),
            recv=messages([(each.peer, each.given) for each in both]),
            fold=True,
        )


@algorithm(
    "allreduce",
    blocks=lambda p: p,
    cost=Cost(rounds="2*digits(3)", sent="2*(p - 1)/p", folded="(p - 1)/p", alpha="2*steps(3)"),
    source=SOURCE,
    chosen=NOWHERE,
    cyclic=True,
)
def trivance(r: int, p: int) -> Iterator[Exchange]:
    """Reduce-scatter, then allgather, each with two partners at distance 1, 3, 9, ... on a circle.

    For any number of ranks, it moves as few bytes as `circulant`. It has 0.63 times the rounds, but
    a rank sends two messages in a round.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "trivance", p=3)))
            start | step 1 | step 2
    block   0 1 2 | 0 1 2  | 0 1 2
    rank 0  0 0 0 | * 0 0  | * * *
    rank 1  1 1 1 | 1 * 1  | * * *
    rank 2  2 2 2 | 2 2 *  | * * *
    """
    yield from reduce_scatter_trivance(r, p)
    yield from allgather_trivance(r, p)
