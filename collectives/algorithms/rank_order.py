"""Fold every element from rank 0 up, whatever its block: the same bits for arrays of any length.

All but the chain consist of direct exchanges: they have one or two rounds, in which every rank
sends to every other. They are no candidates of the choice by size.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.chain import SOURCE as PJESIVAC
from collectives.algorithms.direct import allgather_direct, reduce_scatter_direct
from collectives.algorithms.exchange import Exchange
from collectives.algorithms.papers import CHAN
from collectives.algorithms.registry import NOWHERE, Cost, algorithm


@algorithm(
    "allreduce",
    blocks=lambda p: p,
    cost=Cost(rounds="2", sent="2*(p - 1)/p", folded="(p - 1)/p", alpha="2*(p - 1)", gamma="1/p"),
    source=CHAN,
    keeps_order=True,
    chosen=NOWHERE,
)
def rank_order(r: int, p: int) -> Iterator[Exchange]:
    """Rank b folds block b of all ranks, from rank 0 up, and sends it to everybody.

    There are two rounds. They move as little as `round_robin`, but each block is folded in rank
    order. So the bits of an element do not depend on its block, and an `all_to_all` gives the same.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "rank_order", p=3)))
            start | step 1 | step 2
    block   0 1 2 | 0 1 2  | 0 1 2
    rank 0  0 0 0 | * 0 0  | * * *
    rank 1  1 1 1 | 1 * 1  | * * *
    rank 2  2 2 2 | 2 2 *  | * * *
    """
    yield from reduce_scatter_direct(r, p)
    yield from allgather_direct(r, p)


@algorithm(
    "reduce",
    name="rank_order",
    blocks=lambda p: p,
    cost=Cost(
        rounds="2", sent="1", folded="(p - 1)/p", alpha="2*(p - 1)", beta="2*(p - 1)/p", gamma="1/p"
    ),
    source=CHAN,
    keeps_order=True,
    chosen=NOWHERE,
)
def reduce_rank_order(r: int, p: int, root: int) -> Iterator[Exchange]:
    """The rank b to the right of the root folds block b, from rank 0 up, and sends it to the root.

    There are two rounds. All ranks fold at the same time, in the order of `flat`.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce", "rank_order", p=3)))
            start | step 1 | step 2
    block   0 1 2 | 0 1 2  | 0 1 2
    rank 0  0 0 0 | * 0 0  | * * *
    rank 1  1 1 1 | 1 * 1  | 1 * 1
    rank 2  2 2 2 | 2 2 *  | 2 2 *
    """
    ranks = [(root + v) % p for v in range(p)]  # of the blocks
    mine = (r - root) % p
    others = [(ranks[b], b) for b in ((mine + t) % p for t in range(1, p))]
    yield Exchange(send=others, recv=[(q, mine) for q, _ in others], fold=True)
    yield Exchange(recv=others) if r == root else Exchange(send=(root, mine))


@algorithm(
    "reduce",
    name="ordered_chain",
    cost=Cost(rounds="p", sent="1", folded="1", beta="p", gamma="p - 1"),
    source=PJESIVAC,
    keeps_order=True,
    chosen=NOWHERE,
)
def reduce_ordered_chain(r: int, p: int, root: int) -> Iterator[Exchange]:
    """The sum walks from rank 0 to the last rank, and from there to the root.

    In a `chain`, it ends at the root, so that the order depends on the root. Here it is that of the
    ranks, for one more message. A long array is pipelined in segments.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce", "ordered_chain", p=3)))
            start | step 1 | step 2 | step 3
    rank 0  0     | 0      | 0      | *
    rank 1  1     | 01     | 01     | 01
    rank 2  2     | 2      | *      | *
    """
    if r > 0:
        yield Exchange(recv=(r - 1, 0), fold=True)
    if r < p - 1:
        yield Exchange(send=(r + 1, 0))
    elif r != root:
        yield Exchange(send=(root, 0))
    if r == root != p - 1:
        yield Exchange(recv=(p - 1, 0))


@algorithm(
    "scan",
    name="rank_order",
    cost=Cost(rounds="1", sent="p - 1", folded="p - 1", alpha="p - 1", gamma="1"),
    source=CHAN,
    keeps_order=True,
    chosen=NOWHERE,
)
def scan_rank_order(r: int, p: int) -> Iterator[Exchange]:
    """Everybody sends its array to all higher ranks, and folds what it gets from rank 0 up.

    There is one round. Each rank waits only once, but the last one folds all arrays.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("scan", "rank_order", p=3)))
            start | step 1
    rank 0  *     | *
    rank 1  1     | *
    rank 2  2     | *
    """
    yield Exchange(
        send=[(q, 0) for q in range(r + 1, p)], recv=[(q, 0) for q in range(r)], fold=True
    )
