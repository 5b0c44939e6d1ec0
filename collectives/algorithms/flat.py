"""Flat: one rank exchanges messages with each of the others directly."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.papers import CHAN
from collectives.algorithms.registry import Cost, algorithm


@algorithm(
    "broadcast",
    name="flat",
    cost=Cost(rounds="1", sent="p - 1", alpha="p - 1"),
    source=CHAN,
)
def broadcast_flat(r: int, p: int, root: int) -> Iterator[Exchange]:
    """The root sends its array to every other rank.

    There is one round, in which only the root sends.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("broadcast", "flat", p=4)))
            start | step 1
    rank 0  *     | *
    rank 1  .     | *
    rank 2  .     | *
    rank 3  .     | *
    """
    if r == root:
        yield Exchange(send=[((root + t) % p, 0) for t in range(1, p)])
    else:
        yield Exchange(recv=(root, 0))


@algorithm(
    "reduce",
    name="flat",
    cost=Cost(rounds="1", sent="1", folded="p - 1", alpha="p - 1", beta="p - 1", gamma="1"),
    source=CHAN,
    keeps_order=True,
)
def reduce_flat(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Every rank sends its array to the root, which folds them in rank order.

    All messages reach the root in one round. The root folds the arrays from rank 0 up, its own
    included, no matter in which order they arrive.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce", "flat", p=4)))
            start | step 1
    rank 0  0     | *
    rank 1  1     | 1
    rank 2  2     | 2
    rank 3  3     | 3
    """
    if r == root:
        yield Exchange(recv=[((root + t) % p, 0) for t in range(1, p)], fold=True)
    else:
        yield Exchange(send=(root, 0))


@algorithm(
    "allreduce",
    cost=Cost(
        rounds="2",
        sent="p - 1",
        folded="p - 1",
        alpha="2*(p - 1)",
        beta="2*(p - 1)",
        gamma="1",
    ),
    source=CHAN,
    keeps_order=True,
)
def master_worker(r: int, p: int) -> Iterator[Exchange]:
    """The workers send their arrays to the master, rank 0, which folds and distributes.

    First the workers send, and the master folds in rank order. Then the master sends the sum to
    each worker. All traffic, ``2 (p - 1)`` arrays, goes through the master.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "master_worker", p=4)))
            start | step 1 | step 2
    rank 0  0     | *      | *
    rank 1  1     | 1      | *
    rank 2  2     | 2      | *
    rank 3  3     | 3      | *
    """
    yield from reduce_flat(r, p, root=0)
    yield from broadcast_flat(r, p, root=0)


@algorithm(
    "scatter",
    name="flat",
    cost=Cost(rounds="1", sent="(p - 1)/p", alpha="p - 1"),
    source=CHAN,
)
def scatter_flat(r: int, p: int, root: int) -> Iterator[Exchange]:
    """The root sends each rank its block.

    There is one round, in which only the root sends. No block travels twice.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("scatter", "flat", p=4)))
            start   | step 1
    block   0 1 2 3 | 0 1 2 3
    rank 0  * * * * | * * * *
    rank 1  . . . . | . * . .
    rank 2  . . . . | . . * .
    rank 3  . . . . | . . . *
    """
    if r == root:
        yield Exchange(send=[(q, q) for q in ((root + t) % p for t in range(1, p))])
    else:
        yield Exchange(recv=(root, r))


@algorithm(
    "gather",
    name="flat",
    cost=Cost(rounds="1", sent="1/p", alpha="p - 1", beta="(p - 1)/p"),
    source=CHAN,
)
def gather_flat(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Every rank sends its block to the root.

    All messages reach the root in one round, each in its final place.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("gather", "flat", p=4)))
            start   | step 1
    block   0 1 2 3 | 0 1 2 3
    rank 0  * . . . | * * * *
    rank 1  . * . . | . * . .
    rank 2  . . * . | . . * .
    rank 3  . . . * | . . . *
    """
    if r == root:
        yield Exchange(recv=[(q, q) for q in ((root + t) % p for t in range(1, p))])
    else:
        yield Exchange(send=(root, r))
