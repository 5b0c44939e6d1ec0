"""PAT: trees of all ranks at the same time; the longest steps carry the fewest blocks."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.formulas import powers
from collectives.algorithms.registry import NOWHERE, Cost, algorithm

SOURCE = (
    "Jeaugey: PAT: a new algorithm for all-gather and reduce-scatter operations at scale, 2025, "
    "arXiv:2506.20252"
)


def every_second(r: int, d: int, p: int) -> list[int]:
    """Return the blocks that rank `r` sends to distance `d` in the allgather."""
    return [(r - j) % p for j in range(0, p - d, 2 * d)]


@algorithm(
    "allgather",
    name="pat",
    cost=Cost(rounds="up", sent="(p - 1)/p"),
    source=SOURCE,
    chosen=NOWHERE,
    cyclic=True,
)
def allgather_pat(r: int, p: int) -> Iterator[Exchange]:
    """Give all that you have to the rank at distance ..., 4, 2, 1 to the right.

    The first step is the longest, and carries one block. Half of all blocks take the last step, to
    a neighbour. So fewer bytes travel far than in `bruck`, whose last step is the longest.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allgather", "pat", p=4)))
            start   | step 1  | step 2
    block   0 1 2 3 | 0 1 2 3 | 0 1 2 3
    rank 0  * . . . | * . * . | * * * *
    rank 1  . * . . | . * . * | * * * *
    rank 2  . . * . | * . * . | * * * *
    rank 3  . . . * | . * . * | * * * *
    """
    for d in reversed(powers(2, p)):
        left, right = (r - d) % p, (r + d) % p
        yield Exchange(send=(right, every_second(r, d, p)), recv=(left, every_second(left, d, p)))


@algorithm(
    "reduce_scatter",
    name="pat",
    cost=Cost(rounds="up", sent="(p - 1)/p", folded="(p - 1)/p"),
    source=SOURCE,
    chosen=NOWHERE,
    cyclic=True,
)
def reduce_scatter_pat(r: int, p: int) -> Iterator[Exchange]:
    """The allgather backwards: sums go to the ranks at distance 1, 2, 4, ... to the left.

    At distance d, a rank sends every second of the sums that it still works on, and folds the sums
    from the right into the others. After the longest step, only its own block is left.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce_scatter", "pat", p=4)))
            start   | step 1      | step 2
    block   0 1 2 3 | 0  1  2  3  | 0  1  2  3
    rank 0  0 0 0 0 | 01 0  01 0  | *  0  01 0
    rank 1  1 1 1 1 | 1  12 1  12 | 1  *  1  12
    rank 2  2 2 2 2 | 23 2  23 2  | 23 2  *  2
    rank 3  3 3 3 3 | 3  03 3  03 | 3  03 3  *
    """
    for d in powers(2, p):
        left, right = (r - d) % p, (r + d) % p
        yield Exchange(
            send=(left, every_second(left, d, p)), recv=(right, every_second(r, d, p)), fold=True
        )


@algorithm(
    "allreduce",
    blocks=lambda p: p,
    cost=Cost(rounds="2*up", sent="2*(p - 1)/p", folded="(p - 1)/p"),
    source=SOURCE,
    chosen=NOWHERE,
    cyclic=True,
)
def pat(r: int, p: int) -> Iterator[Exchange]:
    """Reduce-scatter to distance 1, 2, 4, ..., then allgather from distance ..., 4, 2, 1.

    It has the rounds and bytes of `circulant` for any number of ranks, but half of the bytes go to
    neighbours, and the fewest to the farthest ranks.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "pat", p=3)))
            start | step 1   | step 2 | step 3 | step 4
    block   0 1 2 | 0  1  2  | 0 1 2  | 0 1 2  | 0 1 2
    rank 0  0 0 0 | 01 0  0  | * 0 0  | * * 0  | * * *
    rank 1  1 1 1 | 1  12 1  | 1 * 1  | 1 * *  | * * *
    rank 2  2 2 2 | 2  2  02 | 2 2 *  | * 2 *  | * * *
    """
    yield from reduce_scatter_pat(r, p)
    yield from allgather_pat(r, p)
