"""Bine trees: binomial trees in which the root is a third of the way along the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.registry import NOWHERE, Cost, algorithm

SOURCE = (
    "De Sensi, Pasqualoni, Piarulli, Bonato, Ba, Turisini, Domke, Hoefler: Bine trees: enhancing "
    "collective operations by optimizing communication locality, 2025, doi:10.1145/3712285.3759835"
)


class Link(NamedTuple):
    """A parent, one of its children, and the child with all ranks below it."""

    parent: int
    child: int
    subtree: list[int]


def links(r: int, p: int, root: int) -> list[Link]:
    """Return the links of rank `r` in the tree of a root, the longest first.

    The ranks are numbered so that the root is a third of the way along, and are halved. The root
    remains the head of its half. Its mirror image is its child, and the head of the other half.
    Each half is halved in the same way.
    """
    first = root - p // 3
    v = (r - first) % p
    run, head, found = range(p), p // 3, []
    while len(run) > 1:
        half = (len(run) + 1) // 2
        kept, given = run[:half], run[half:]
        if head not in kept:
            given, kept = run[:-half], run[-half:]
        child = min(max(run[0] + run[-1] - head, given[0]), given[-1])
        if v in (head, child):
            ranks = [(w + first) % p for w in given]
            found.append(Link((head + first) % p, ranks[child - given[0]], ranks))
        run, head = (given, child) if v in given else (kept, head)
    return found


@algorithm(
    "broadcast", name="bine", cost=Cost(rounds="up", sent="up"), source=SOURCE, chosen=NOWHERE
)
def broadcast_bine(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Each rank that has the array sends it on, first a third of the way, to both sides in turns.

    Ranks are numbered so that the root is a third of the way along. Each step is about half as long
    as the one before: ..., 11, -5, 3, -1, 1 ranks, if p is a power of two. The steps of `tree` are
    half, a quarter, an eighth of the way, all to one side, so here the array travels less far.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("broadcast", "bine", p=8)))
            start | step 1 | step 2 | step 3
    rank 0  *     | *      | *      | *
    rank 1  .     | .      | .      | *
    rank 2  .     | .      | .      | *
    rank 3  .     | *      | *      | *
    rank 4  .     | .      | *      | *
    rank 5  .     | .      | .      | *
    rank 6  .     | .      | .      | *
    rank 7  .     | .      | *      | *
    """
    for parent, child, _ in links(r, p, root):
        if r == child:
            yield Exchange(recv=(parent, 0))
        else:
            yield Exchange(send=(child, 0))


@algorithm(
    "reduce",
    name="bine",
    cost=Cost(rounds="up", sent="1", folded="up", beta="up"),
    source=SOURCE,
    chosen=NOWHERE,
)
def reduce_bine(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Each rank folds the arrays of its children, nearest first, and sends the sum to its parent.

    This is the broadcast backwards, in the same tree.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce", "bine", p=8)))
            start | step 1 | step 2 | step 3
    rank 0  0     | 01     | 0167   | *
    rank 1  1     | 1      | 1      | 1
    rank 2  2     | 2      | 2      | 2
    rank 3  3     | 23     | 2345   | 2345
    rank 4  4     | 45     | 45     | 45
    rank 5  5     | 5      | 5      | 5
    rank 6  6     | 6      | 6      | 6
    rank 7  7     | 67     | 67     | 67
    """
    for parent, child, _ in reversed(links(r, p, root)):
        if r == child:
            yield Exchange(send=(parent, 0))
        else:
            yield Exchange(recv=(child, 0), fold=True)


@algorithm(
    "scatter", name="bine", cost=Cost(rounds="up", sent="(p - 1)/p"), source=SOURCE, chosen=NOWHERE
)
def scatter_bine(r: int, p: int, root: int) -> Iterator[Exchange]:
    """The root sends each subtree the blocks of its ranks, in one message; children do the same.

    The tree is that of the broadcast. The ranks of a subtree are neighbours, and so are their
    blocks.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("scatter", "bine", p=4)))
            start   | step 1  | step 2
    block   0 1 2 3 | 0 1 2 3 | 0 1 2 3
    rank 0  * * * * | * * * * | * * * *
    rank 1  . . . . | . * * . | . * * .
    rank 2  . . . . | . . . . | . . * .
    rank 3  . . . . | . . . . | . . . *
    """
    for parent, child, subtree in links(r, p, root):
        if r == child:
            yield Exchange(recv=(parent, subtree))
        else:
            yield Exchange(send=(child, subtree))


@algorithm(
    "gather",
    name="bine",
    cost=Cost(rounds="up", sent="p//2/p", beta="(p - 1)/p"),
    source=SOURCE,
    chosen=NOWHERE,
)
def gather_bine(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Each rank collects the blocks of its subtree, nearest child first, and sends them up at once.

    This is the scatter backwards, in the same tree.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("gather", "bine", p=4)))
            start   | step 1  | step 2
    block   0 1 2 3 | 0 1 2 3 | 0 1 2 3
    rank 0  * . . . | * . . * | * * * *
    rank 1  . * . . | . * * . | . * * .
    rank 2  . . * . | . . * . | . . * .
    rank 3  . . . * | . . . * | . . . *
    """
    for parent, child, subtree in reversed(links(r, p, root)):
        if r == child:
            yield Exchange(send=(parent, subtree))
        else:
            yield Exchange(recv=(child, subtree))
