"""Chains: each rank exchanges messages with its neighbours only, in segments if they are long."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.registry import Cost, algorithm

SOURCE = (
    "Pješivac-Grbović, Angskun, Bosilca, Fagg, Gabriel, Dongarra: Performance analysis of MPI "
    "collective operations, 2007, doi:10.1007/s10586-007-0012-0"
)


@algorithm(
    "broadcast",
    name="chain",
    cost=Cost(rounds="p - 1", sent="1", beta="p - 1"),
    source=SOURCE,
)
def broadcast_chain(r: int, p: int, root: int) -> Iterator[Exchange]:
    """The array walks from the root to its right, rank by rank.

    Each rank receives from its left neighbour and sends to its right neighbour. For a short array
    this is the slowest algorithm. A long array is pipelined in segments, so that all ranks work at
    the same time.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("broadcast", "chain", p=4)))
            start | step 1 | step 2 | step 3
    rank 0  *     | *      | *      | *
    rank 1  .     | *      | *      | *
    rank 2  .     | .      | *      | *
    rank 3  .     | .      | .      | *
    """
    v = (r - root) % p
    if v > 0:
        yield Exchange(recv=((r - 1) % p, 0))
    if v < p - 1:
        yield Exchange(send=((r + 1) % p, 0))


@algorithm(
    "reduce",
    name="chain",
    cost=Cost(rounds="p - 1", sent="1", folded="1", beta="p - 1", gamma="p - 1"),
    source=SOURCE,
)
def reduce_chain(r: int, p: int, root: int) -> Iterator[Exchange]:
    """The sum walks from the root's left neighbour all the way round to the root.

    The left neighbour of the root sends first, to its own left. Each of the others folds its own
    array into the sum and passes it on to its left.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce", "chain", p=4)))
            start | step 1 | step 2 | step 3
    rank 0  0     | 0      | 0      | *
    rank 1  1     | 1      | 123    | 123
    rank 2  2     | 23     | 23     | 23
    rank 3  3     | 3      | 3      | 3
    """
    v = (r - root) % p
    if v < p - 1:
        yield Exchange(recv=((r + 1) % p, 0), fold=True)
    if v > 0:
        yield Exchange(send=((r - 1) % p, 0))
