"""Binomial trees: in each round, twice as many ranks take part."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.registry import Cost, algorithm
from collectives.schedule import Exchange

SOURCE = (
    "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, "
    "2005, doi:10.1177/1094342005051521"
)


@algorithm("broadcast", name="tree", cost=Cost(rounds="up", sent="up"), source=SOURCE)
def broadcast_tree(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Each rank that has the array sends it on, to the farthest rank of its subtree first.

    Ranks count from the root. A rank waits for the array from its parent, which is its number
    without the lowest 1 bit, and then serves its own subtree, the largest part first, so that
    those who have the longest way to go start earliest.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("broadcast", "tree", p=4)))
            start | step 1 | step 2
    rank 0  *     | *      | *
    rank 1  .     | .      | *
    rank 2  .     | *      | *
    rank 3  .     | .      | *
    """
    v = (r - root) % p
    reach = 1
    while reach < p and not v & reach:
        reach *= 2
    if v:
        yield Exchange(recv=((v - reach + root) % p, 0))
    while reach > 1:
        reach //= 2
        if v + reach < p:
            yield Exchange(send=((v + reach + root) % p, 0))


@algorithm(
    "reduce",
    name="tree",
    cost=Cost(rounds="up", sent="1", folded="up"),
    source=SOURCE,
)
def reduce_tree(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Each rank folds the arrays of its children, nearest first, and sends the sum to its parent.

    The broadcast backwards: ranks count from the root, and leaves send at once. An inner rank
    folds one child after the other, the smallest subtree first, since that is ready first.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce", "tree", p=4)))
            start | step 1 | step 2
    rank 0  0     | 01     | *
    rank 1  1     | 1      | 1
    rank 2  2     | 23     | 23
    rank 3  3     | 3      | 3
    """
    v = (r - root) % p
    reach = 1
    while reach < p:
        if v & reach:
            yield Exchange(send=((v - reach + root) % p, 0))
            return
        if v + reach < p:
            yield Exchange(recv=((v + reach + root) % p, 0), fold=True)
        reach *= 2


@algorithm(
    "allreduce",
    cost=Cost(rounds="2*up", sent="up", folded="up"),
    source=SOURCE,
    keeps_order=True,
)
def tree(r: int, p: int) -> Iterator[Exchange]:
    """Reduce up a binomial tree to rank 0, then broadcast down the same tree.

    The sum gathers in rank 0 in ``up`` rounds and goes back the way that it came. Each fold joins
    neighbouring spans of ranks, so rank order is kept.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "tree", p=4)))
            start | step 1 | step 2 | step 3 | step 4
    rank 0  0     | 01     | *      | *      | *
    rank 1  1     | 1      | 1      | 1      | *
    rank 2  2     | 23     | 23     | *      | *
    rank 3  3     | 3      | 3      | 3      | *
    """
    yield from reduce_tree(r, p, root=0)
    yield from broadcast_tree(r, p, root=0)
