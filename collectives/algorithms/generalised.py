"""Generalised allreduce: any number of rounds from log2 p to 2 log2 p, and as few bytes."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.bruck import following
from collectives.algorithms.exchange import Exchange
from collectives.algorithms.formulas import powers
from collectives.algorithms.registry import NOWHERE, Cost, algorithm

SOURCE = "Kolmakov, Zhang: A generalization of the Allreduce operation, 2020, arXiv:2004.09362"

# The rounds that are saved. Each halves the ranks of a group, so p must be divisible by 2 as often.
SAVED = "min(max(2*up - t, 0), log2(p & -p))"


def size_of(p: int, t: int) -> int:
    """Return the number of ranks in a group."""
    return p // min(1 << max(2 * (p - 1).bit_length() - t, 0), p & -p)


def in_groups(q: int, r: int, p: int, t: int) -> int:
    """Return the rank that is for rank 0 what `q` is for `r`: in groups, and in their butterfly."""
    size = size_of(p, t)
    return (q // size ^ r // size) * size + (q - r) % size


@algorithm(
    "allreduce",
    blocks=lambda p: p,
    cost=Cost(
        rounds=f"2*up - {SAVED}",
        sent=f"2 + ({SAVED} - 2)*2**{SAVED}/p",
        folded=f"1 + ({SAVED} - 1)*2**{SAVED}/p",
    ),
    source=SOURCE,
    parameters={"t": 6},
    chosen=NOWHERE,
    alike=in_groups,
)
def generalised(r: int, p: int, t: int) -> Iterator[Exchange]:
    """Reduce-scatter in groups, a butterfly between them, then allgather: t rounds, if p allows it.

    With one group, it is `circulant`, with 2 log2 p rounds. With twice as many groups, there is one
    round less. Two groups send as many bytes as one; four and more groups send more. p must be
    divisible by the number of groups. If p is a power of two, there may be as many groups as ranks,
    and it is `butterfly`. There are t rounds, or the nearest number that p allows.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "generalised:3", p=4)))
            start   | step 1      | step 2  | step 3
    block   0 1 2 3 | 0  1  2  3  | 0 1 2 3 | 0 1 2 3
    rank 0  0 0 0 0 | 01 01 0  0  | * * 0 0 | * * * *
    rank 1  1 1 1 1 | 1  1  01 01 | 1 1 * * | * * * *
    rank 2  2 2 2 2 | 23 23 2  2  | * * 2 2 | * * * *
    rank 3  3 3 3 3 | 3  3  23 23 | 3 3 * * | * * * *
    """
    size = size_of(p, t)
    groups = p // size
    first, v = r // size * size, r % size

    def blocks(number: int, count: int) -> list[int]:
        return [b * groups + i for b in following(number, count, size) for i in range(groups)]

    for d in reversed(powers(2, size)):
        left, right = first + (v - d) % size, first + (v + d) % size
        count = min(d, size - d)
        yield Exchange(send=(right, blocks(v + d, count)), recv=(left, blocks(v, count)), fold=True)
    for i in range(groups.bit_length() - 1):
        other = (r // size ^ 1 << i) * size + v
        yield Exchange(send=(other, blocks(v, 1)), recv=(other, blocks(v, 1)), fold=True)
    for d in powers(2, size):
        left, right = first + (v - d) % size, first + (v + d) % size
        count = min(d, size - d)
        yield Exchange(send=(left, blocks(v, count)), recv=(right, blocks(v + d, count)))
