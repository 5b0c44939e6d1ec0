"""Rings: each rank sends to its right and receives from its left, one block a round."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.papers import CHAN, THAKUR
from collectives.algorithms.registry import Cost, algorithm, publishes
from collectives.algorithms.tree import scatter_down


@algorithm(
    "reduce_scatter",
    name="ring",
    cost=Cost(rounds="p - 1", sent="(p - 1)/p", folded="(p - 1)/p"),
    source=CHAN,
    cyclic=True,
)
def reduce_scatter_ring(r: int, p: int, ahead: int = 0) -> Iterator[Exchange]:
    """Sums travel around the ring, growing, each towards its own rank.

    The sum of block ``b`` starts at rank ``b + 1``, and every rank that it passes folds its own
    contribution into it. After ``p - 1`` rounds the sum is complete on rank ``b``. (With
    ``ahead=1``, each sum starts and ends one rank earlier, so that rank r ends with block
    ``r + 1``.)

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce_scatter", "ring", p=3)))
            start | step 1   | step 2
    block   0 1 2 | 0  1  2  | 0  1  2
    rank 0  0 0 0 | 0  02 0  | *  02 0
    rank 1  1 1 1 | 1  1  01 | 1  *  01
    rank 2  2 2 2 | 12 2  2  | 12 2  *
    """
    left, right = (r - 1) % p, (r + 1) % p
    v = r - 1 + ahead
    for t in range(p - 1):
        yield Exchange(send=(right, (v - t) % p), recv=(left, (v - t - 1) % p), fold=True)


@algorithm(
    "allgather",
    name="ring",
    cost=Cost(rounds="p - 1", sent="(p - 1)/p"),
    source=CHAN,
    cyclic=True,
)
def allgather_ring(r: int, p: int, root: int = 0, ahead: int = 0) -> Iterator[Exchange]:
    """Blocks travel around the ring until every rank has all.

    In the first round, a rank sends its own block to the right; in each later round, it sends the
    block that it received from the left in the round before. (As a phase of another algorithm:
    rank r starts with block ``(r - root + ahead) % p``.)

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allgather", "ring", p=4)))
            start   | step 1  | step 2  | step 3
    block   0 1 2 3 | 0 1 2 3 | 0 1 2 3 | 0 1 2 3
    rank 0  * . . . | * . . * | * . * * | * * * *
    rank 1  . * . . | * * . . | * * . * | * * * *
    rank 2  . . * . | . * * . | * * * . | * * * *
    rank 3  . . . * | . . * * | . * * * | * * * *
    """
    left, right = (r - 1) % p, (r + 1) % p
    v = r - root + ahead
    for t in range(p - 1):
        yield Exchange(send=(right, (v - t) % p), recv=(left, (v - t - 1) % p))


@algorithm(
    "allreduce",
    blocks=lambda p: p,
    cost=Cost(rounds="2*(p - 1)", sent="2*(p - 1)/p", folded="(p - 1)/p"),
    source=(
        "Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, "
        "2009, doi:10.1016/j.jpdc.2008.09.002"
    ),
    cyclic=True,
)
def ring(r: int, p: int) -> Iterator[Exchange]:
    """Partial sums travel once around the ring (reduce-scatter), then complete sums (allgather).

    Reduce-scatter: in round t, rank r sends block ``r - t`` to the right, and folds block
    ``r - t - 1`` from the left, so that it ends with block ``r + 1`` complete. Allgather: the
    complete blocks travel around the ring in the same way, and replace the partial sums.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "ring", p=3)))
            start | step 1   | step 2   | step 3   | step 4
    block   0 1 2 | 0  1  2  | 0  1  2  | 0  1  2  | 0 1 2
    rank 0  0 0 0 | 0  0  02 | 0  *  02 | *  *  02 | * * *
    rank 1  1 1 1 | 01 1  1  | 01 1  *  | 01 *  *  | * * *
    rank 2  2 2 2 | 2  12 2  | *  12 2  | *  12 *  | * * *
    """
    yield from reduce_scatter_ring(r, p, ahead=1)
    yield from allgather_ring(r, p, ahead=1)


def _scattered(local: Set[int], p: int, root: int) -> int:
    """Return the most blocks that a rank publishes in `scatter_allgather`: those that it scatters,
    and all but one round the ring, if its neighbour is on its host.
    """
    most = 0
    for r in local:
        sent: list[Any] = [each.send for each in scatter_down(r, p, root, first=0) if each.send]
        most = max(most, sum(len(blocks) for peer, blocks in sent if peer in local))
    return most + (p - 1 if any((r + 1) % p in local for r in local) else 0)


@algorithm(
    "broadcast",
    blocks=lambda p: p,
    cost=Cost(rounds="up + p - 1", sent="2*(p - 1)/p"),
    source=THAKUR,
)
@publishes(_scattered)
def scatter_allgather(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Scatter the blocks down a binomial tree, then allgather them round a ring.

    The root sends each subtree of a binomial tree the blocks of its ranks, in one message, and the
    subtrees do the same, until each rank has its own block. Then the blocks go round the ring until
    every rank has all of them.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("broadcast", "scatter_allgather", p=4)))
            start   | step 1  | step 2  | step 3  | step 4  | step 5
    block   0 1 2 3 | 0 1 2 3 | 0 1 2 3 | 0 1 2 3 | 0 1 2 3 | 0 1 2 3
    rank 0  * * * * | * * * * | * * * * | * * * * | * * * * | * * * *
    rank 1  . . . . | . . . . | . * . . | * * . . | * * . * | * * * *
    rank 2  . . . . | . . * * | . . * * | . * * * | * * * * | * * * *
    rank 3  . . . . | . . . . | . . . * | . . * * | . * * * | * * * *
    """
    yield from scatter_down(r, p, root, first=0)
    yield from allgather_ring(r, p, root)
