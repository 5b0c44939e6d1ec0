"""Complete trees in which a rank has up to k children: flat for a large k, deep for a small one."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.papers import MELLOR_CRUMMEY
from collectives.algorithms.registry import Cost, algorithm


def children(v: int, p: int, k: int) -> range:
    """Return the children of node `v` in the complete k-ary tree over 0..p-1."""
    return range(min(k * v + 1, p), min(k * v + k + 1, p))


@algorithm(
    "broadcast",
    name="kary",
    cost=Cost(rounds="levels(k)", sent="min(k, p - 1)", alpha="hops(k)", beta="hops(k)"),
    source=MELLOR_CRUMMEY,
    parameters={"k": 4},
)
def broadcast_kary(r: int, p: int, root: int, k: int) -> Iterator[Exchange]:
    """Each rank that has the array sends it to its k children, all at once.

    Ranks are numbered from the root; number v has the children ``k v + 1`` to ``k v + k``.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("broadcast", "kary:2", p=5)))
            start | step 1 | step 2
    rank 0  *     | *      | *
    rank 1  .     | *      | *
    rank 2  .     | *      | *
    rank 3  .     | .      | *
    rank 4  .     | .      | *
    """
    v = (r - root) % p
    if v:
        yield Exchange(recv=(((v - 1) // k + root) % p, 0))
    if children(v, p, k):
        yield Exchange(send=[((child + root) % p, 0) for child in children(v, p, k)])


@algorithm(
    "allreduce",
    cost=Cost(
        rounds="2*levels(k)",
        sent="min(k + 1, max(k, p - k), p - 1)",
        folded="min(k, p - 1)",
        alpha="2*hops(k)",
        beta="2*hops(k)",
        gamma="levels(k)",
    ),
    source=MELLOR_CRUMMEY,
    parameters={"k": 4},
)
def kary(r: int, p: int, k: int) -> Iterator[Exchange]:
    """Each rank folds the arrays of its k children at once; the sum comes down the same tree.

    Rank v has the children ``k v + 1`` to ``k v + k``. It receives from all of them in one round,
    and sends the sum to its parent. Rank 0 sends the complete sum down the same tree.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "kary:2", p=5)))
            start | step 1 | step 2 | step 3 | step 4
    rank 0  0     | 0      | *      | *      | *
    rank 1  1     | 134    | 134    | *      | *
    rank 2  2     | 2      | 2      | *      | *
    rank 3  3     | 3      | 3      | 3      | *
    rank 4  4     | 4      | 4      | 4      | *
    """
    if children(r, p, k):
        yield Exchange(recv=[(child, 0) for child in children(r, p, k)], fold=True)
    if r:
        yield Exchange(send=((r - 1) // k, 0))
    yield from broadcast_kary(r, p, 0, k)
