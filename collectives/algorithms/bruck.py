"""Bruck: the number of blocks that travel together, or their distance, doubles in each round.

Each phase takes ``up`` rounds for any number of ranks, with partners at distance 1, 2, 4, ...
"""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.formulas import powers
from collectives.algorithms.registry import NOWHERE, Cost, algorithm

SOURCE = (
    "Bruck, Ho, Kipnis, Upfal, Weathersby: Efficient algorithms for all-to-all communications in "
    "multiport message-passing systems, 1997, doi:10.1109/71.642949"
)

TRAEFF = (
    "Träff: Optimal, non-pipelined reduce-scatter and allreduce algorithms, 2024, arXiv:2410.14234"
)


def following(r: int, count: int, p: int) -> list[int]:
    """Return the blocks of `count` ranks: `r`, and those to its right."""
    return [(r + i) % p for i in range(count)]


@algorithm(
    "allgather", name="bruck", cost=Cost(rounds="up", sent="(p - 1)/p"), source=SOURCE, cyclic=True
)
def allgather_bruck(r: int, p: int) -> Iterator[Exchange]:
    """Give all that you have to the rank at distance 1, 2, 4, ... to the left.

    Before the round at distance d, a rank holds its own block and those of the next d - 1 ranks to
    the right. In this round it receives the d blocks after these from the rank d to the right. The
    last round moves only the blocks that are still missing.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allgather", "bruck", p=3)))
            start | step 1 | step 2
    block   0 1 2 | 0 1 2  | 0 1 2
    rank 0  * . . | * * .  | * * *
    rank 1  . * . | . * *  | * * *
    rank 2  . . * | * . *  | * * *
    """
    for d in powers(2, p):
        left, right = (r - d) % p, (r + d) % p
        count = min(d, p - d)
        yield Exchange(
            send=(left, following(r, count, p)), recv=(right, following(right, count, p))
        )


@algorithm(
    "reduce_scatter",
    name="bruck",
    cost=Cost(rounds="up", sent="(p - 1)/p", folded="(p - 1)/p"),
    source=TRAEFF,
    cyclic=True,
)
def reduce_scatter_bruck(r: int, p: int) -> Iterator[Exchange]:
    """The allgather backwards: sums for the ranks d and more to the right go d to the right.

    The distances d go down from the largest power of two below p to 1. At distance d, a rank sends
    its sums of the blocks from ``r + d`` on, and folds what it receives from the rank d to the left
    into its sums of the blocks from its own on. After the round at distance 1 only its own block is
    left, and it is complete.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce_scatter", "bruck", p=3)))
            start | step 1   | step 2
    block   0 1 2 | 0  1  2  | 0 1 2
    rank 0  0 0 0 | 01 0  0  | * 0 0
    rank 1  1 1 1 | 1  12 1  | 1 * 1
    rank 2  2 2 2 | 2  2  02 | 2 2 *
    """
    for d in reversed(powers(2, p)):
        left, right = (r - d) % p, (r + d) % p
        count = min(d, p - d)
        yield Exchange(
            send=(right, following(right, count, p)),
            recv=(left, following(r, count, p)),
            fold=True,
        )


@algorithm(
    "allreduce",
    blocks=lambda p: p,
    cost=Cost(rounds="2*up", sent="2*(p - 1)/p", folded="(p - 1)/p"),
    source=TRAEFF,
    chosen=NOWHERE,
    cyclic=True,
)
def circulant(r: int, p: int) -> Iterator[Exchange]:
    """Reduce-scatter, then allgather, each with partners at distance 1, 2, 4, ... on a circle.

    For any number of ranks, each rank sends the fewest bytes, and all ranks take part in all
    rounds, unlike in `halving_doubling`. (The paper's distances are p/2, p/4, ..., rounded up. With
    powers of two, there are as many rounds and bytes, and fewer bytes travel far.)

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "circulant", p=3)))
            start | step 1   | step 2 | step 3 | step 4
    block   0 1 2 | 0  1  2  | 0 1 2  | 0 1 2  | 0 1 2
    rank 0  0 0 0 | 01 0  0  | * 0 0  | * * 0  | * * *
    rank 1  1 1 1 | 1  12 1  | 1 * 1  | 1 * *  | * * *
    rank 2  2 2 2 | 2  2  02 | 2 2 *  | * 2 *  | * * *
    """
    yield from reduce_scatter_bruck(r, p)
    yield from allgather_bruck(r, p)


def passing(r: int, d: int, z: int, p: int, k: int) -> list[int]:
    """Return the blocks that rank `r` passes on to the rank ``z * d`` to its right.

    A block whose destination is j ranks away takes this step if z is the digit of j at the place of
    d to the base k. At rank `r` it has already taken the steps of the lower places.
    """
    ways = [(j, (r - j % d) % p) for j in range(p) if j // d % k == z]
    return [source * p + (source + j) % p for j, source in ways]


@algorithm(
    "alltoall",
    name="bruck",
    cost=Cost(rounds="digits(k)", sent="moves(k)/p", alpha="steps(k)"),
    source=SOURCE,
    parameters={"k": 2},
    cyclic=True,
)
def alltoall_bruck(r: int, p: int, k: int) -> Iterator[Exchange]:
    """A block whose destination is j ranks away takes a step for each digit of j to the base k.

    In the round at distance d, every rank sends one message to each of the ranks at distance d, 2
    d, ..., (k - 1) d to its right, with all blocks whose way contains this step. Many small blocks
    travel in few messages, but each block travels several times, less often for a larger k. Block
    ``s * p + d`` goes from rank s to rank d.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("alltoall", "bruck", p=4)))
            start
    block   00 01 02 03 10 11 12 13 20 21 22 23 30 31 32 33
    rank 0  *  *  *  *  .  .  .  .  .  .  .  .  .  .  .  .
    rank 1  .  .  .  .  *  *  *  *  .  .  .  .  .  .  .  .
    rank 2  .  .  .  .  .  .  .  .  *  *  *  *  .  .  .  .
    rank 3  .  .  .  .  .  .  .  .  .  .  .  .  *  *  *  *
    <BLANKLINE>
            step 1
    block   00 01 02 03 10 11 12 13 20 21 22 23 30 31 32 33
    rank 0  *  *  *  *  .  .  .  .  .  .  .  .  *  .  *  .
    rank 1  .  *  .  *  *  *  *  *  .  .  .  .  .  .  .  .
    rank 2  .  .  .  .  *  .  *  .  *  *  *  *  .  .  .  .
    rank 3  .  .  .  .  .  .  .  .  .  *  .  *  *  *  *  *
    <BLANKLINE>
            step 2
    block   00 01 02 03 10 11 12 13 20 21 22 23 30 31 32 33
    rank 0  *  *  *  *  *  .  .  .  *  .  .  .  *  .  *  .
    rank 1  .  *  .  *  *  *  *  *  .  *  .  .  .  *  .  .
    rank 2  .  .  *  .  *  .  *  .  *  *  *  *  .  .  *  .
    rank 3  .  .  .  *  .  .  .  *  .  *  .  *  *  *  *  *
    """
    for d in powers(k, p):
        steps = [z for z in range(1, k) if z * d < p]
        yield Exchange(
            send=[((r + z * d) % p, passing(r, d, z, p, k)) for z in steps],
            recv=[((r - z * d) % p, passing((r - z * d) % p, d, z, p, k)) for z in steps],
        )
