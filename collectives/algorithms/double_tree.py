"""Two trees at once, with half of the array on each; inner nodes of one are leaves of the other."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.registry import Cost, algorithm


def parent(i: int, p: int) -> int | None:
    """Return the parent of node `i` in the in-order binary tree over 1..p, or None at the top.

    Odd nodes are leaves; a node whose number ends in ``k`` zero bits is at height ``k``.
    """
    bit = i & -i
    while 2 * bit <= p:
        up = (i ^ bit) | (2 * bit)
        if up <= p:
            return up
        i, bit = up, 2 * bit
    return None


def children(i: int, p: int) -> list[int]:
    """Return the children of node `i`: at most one with a lower and one with a higher number."""
    half = (i & -i) // 2
    if not half:
        return []
    below, above = [i - half], half
    while above and i + above > p:
        above //= 2
    return below + ([i + above] if above else [])


def trees(r: int, p: int) -> list[tuple[int, int | None, list[int]]]:
    """Return (block, parent, children) of rank `r` in both trees, as ranks.

    The second tree is the first one mirrored (even p) or shifted by one (odd p), so that a rank
    has children in at most one of the two.
    """
    ranks = list(range(p))
    moved = ranks[-1:] + ranks[:-1] if p % 2 else ranks[::-1]
    result = []
    for block, order in enumerate((ranks, moved)):
        node = order.index(r) + 1
        up = parent(node, p)
        down = [order[child - 1] for child in children(node, p)]
        result.append((block, None if up is None else order[up - 1], down))
    return result


@algorithm(
    "allreduce",
    blocks=2,
    cost=Cost(
        rounds="2*lg",
        sent="min(2, p/2)",
        folded="min(1, (p - 1)/2)",
        alpha="3*p - 4 if p < 4 else 2*(lg + ceil(log2(p + 3)) - 2)",
        beta="(3*p - 4)/2 if p < 4 else lg + ceil(log2(p + 3)) - 2",
        gamma="lg/2",
    ),
    source=(
        "Sanders, Speck, Träff: Two-tree algorithms for full bandwidth broadcast, reduction and "
        "scan, 2009, doi:10.1016/j.parco.2009.09.001"
    ),
)
def double_tree(r: int, p: int) -> Iterator[Exchange]:
    """Reduce up and broadcast down two complementary binary trees, half of the array on each.

    Block 0 is reduced up one tree and broadcast down again, block 1 on the other. An inner node of
    one tree is a leaf of the other, so that both halves use the links at the same time. A rank
    first sends as a leaf of one tree, then works as an inner node of the other, and at the end
    receives, as a leaf again, the half of the first tree.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "double_tree", p=4)))
            start | step 1  | step 2  | step 3 | step 4
    block   0 1   | 0   1   | 0   1   | 0 1    | 0 1
    rank 0  0 0   | 0   0   | 0   *   | 0 *    | * *
    rank 1  1 1   | 012 1   | 012 1   | * 1    | * *
    rank 2  2 2   | 2   123 | 2   123 | 2 *    | * *
    rank 3  3 3   | 3   3   | *   3   | * 3    | * *
    """
    if p == 1:
        return
    inside = [tree for tree in trees(r, p) if tree[2]]
    leaf = [tree for tree in trees(r, p) if not tree[2]]
    # As a leaf, send at once, and receive at the end, in the round that sends down the other tree.
    yield Exchange(
        send=[(up, b) for b, up, _ in leaf if up is not None],
        recv=[(c, b) for b, _, down in inside for c in down],
        fold=True,
    )
    for b, up, _ in inside:
        if up is not None:
            yield Exchange(send=(up, b))
            yield Exchange(recv=(up, b))
    yield Exchange(
        send=[(c, b) for b, _, down in inside for c in down],
        recv=[(up, b) for b, up, _ in leaf if up is not None],
    )
