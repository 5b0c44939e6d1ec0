"""Binomial trees: in each round, twice as many ranks take part."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.papers import THAKUR
from collectives.algorithms.registry import Cost, algorithm


def parent(v: int) -> int:
    """Return the parent of node `v`: its number without the lowest 1 bit."""
    return v & (v - 1)


def subtree(v: int, p: int) -> range:
    """Return node `v` and all nodes below it in the binomial tree over 0..p-1."""
    return range(v, min(v + (v & -v), p)) if v else range(p)


def children(v: int, p: int) -> list[int]:
    """Return the children of node `v`, nearest first: at distance 1, 2, 4, ... in its subtree."""
    below = subtree(v, p)
    return [v + (1 << i) for i in range((len(below) - 1).bit_length())]


@algorithm("broadcast", name="tree", cost=Cost(rounds="up", sent="up"), source=THAKUR)
def broadcast_tree(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Each rank that has the array sends it on, to the farthest rank of its subtree first.

    Ranks are numbered from the root. A rank receives the array from its parent, whose number is
    its own without the lowest 1 bit. Then it sends the array to its children, the one with the
    largest subtree first, because that subtree needs the most rounds.

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
    if v:
        yield Exchange(recv=((parent(v) + root) % p, 0))
    for child in reversed(children(v, p)):
        yield Exchange(send=((child + root) % p, 0))


@algorithm(
    "reduce",
    name="tree",
    cost=Cost(rounds="up", sent="1", folded="up", beta="up"),
    source=THAKUR,
)
def reduce_tree(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Each rank folds the arrays of its children, nearest first, and sends the sum to its parent.

    This is the broadcast backwards. Ranks are numbered from the root, and leaves send at once. An
    inner rank folds one child after the other, the one with the smallest subtree first, because it
    is ready first.

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
    for child in children(v, p):
        yield Exchange(recv=((child + root) % p, 0), fold=True)
    if v:
        yield Exchange(send=((parent(v) + root) % p, 0))


@algorithm(
    "allreduce",
    cost=Cost(rounds="2*up", sent="up", folded="up", beta="2*up"),
    source=THAKUR,
    keeps_order=True,
)
def tree(r: int, p: int) -> Iterator[Exchange]:
    """Reduce up a binomial tree to rank 0, then broadcast down the same tree.

    The sum is complete on rank 0 after ``up`` rounds, and goes back down the same tree. Each fold
    joins neighbouring ranges of ranks, so that rank order is kept.

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


def scatter_down(r: int, p: int, root: int, first: int) -> Iterator[Exchange]:
    """Each rank receives the blocks of its subtree, and sends each child those of its subtree.

    Block ``(v + first) % p`` goes to the rank whose number from the root is ``v``.
    """
    v = (r - root) % p

    def blocks(top: int) -> list[int]:
        return [(w + first) % p for w in subtree(top, p)]

    if v:
        yield Exchange(recv=((parent(v) + root) % p, blocks(v)))
    for child in reversed(children(v, p)):
        yield Exchange(send=((child + root) % p, blocks(child)))


@algorithm("scatter", name="tree", cost=Cost(rounds="up", sent="(p - 1)/p"), source=THAKUR)
def scatter_tree(r: int, p: int, root: int) -> Iterator[Exchange]:
    """The root sends each subtree the blocks of its ranks, in one message; children do the same.

    Ranks are numbered from the root. The root sends to distance q/2, q/4, ..., 1, in this order, so
    that about half of all blocks leave with the first message.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("scatter", "tree", p=4)))
            start   | step 1  | step 2
    block   0 1 2 3 | 0 1 2 3 | 0 1 2 3
    rank 0  * * * * | * * * * | * * * *
    rank 1  . . . . | . . . . | . * . .
    rank 2  . . . . | . . * * | . . * *
    rank 3  . . . . | . . . . | . . . *
    """
    yield from scatter_down(r, p, root, first=root)


def gather_up(v: int, size: int, rank: Callable[[int], int], first: int = 0) -> Iterator[Exchange]:
    """Each node joins the blocks of its children's subtrees to its own, and sends all up.

    Node `v` of the tree over ``0..size-1`` is rank ``rank(v)``, with block ``(v + first) % size``.
    """

    def blocks(top: int) -> list[int]:
        return [(w + first) % size for w in subtree(top, size)]

    for child in children(v, size):
        yield Exchange(recv=(rank(child), blocks(child)))
    if v:
        yield Exchange(send=(rank(parent(v)), blocks(v)))


@algorithm(
    "gather",
    name="tree",
    cost=Cost(rounds="up", sent="max(q/2, p - q)/p", beta="(p - 1)/p"),
    source=THAKUR,
)
def gather_tree(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Each rank collects the blocks of its subtree, nearest child first, and sends them up at once.

    This is the scatter backwards. Ranks are numbered from the root, leaves send at once, and runs
    of blocks double in length on their way up.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("gather", "tree", p=4)))
            start   | step 1  | step 2
    block   0 1 2 3 | 0 1 2 3 | 0 1 2 3
    rank 0  * . . . | * * . . | * * * *
    rank 1  . * . . | . * . . | . * . .
    rank 2  . . * . | . . * * | . . * *
    rank 3  . . . * | . . . * | . . . *
    """
    yield from gather_up((r - root) % p, p, lambda v: (v + root) % p, first=root)
