"""Broadcasts and reduces of many blocks on a circulant graph, in the fewest rounds for any p."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.registry import NOWHERE, Cost, algorithm

SOURCE = (
    "Träff: Optimal broadcast schedules in logarithmic time with applications to broadcast, "
    "all-broadcast, reduction and all-reduction, 2024, arXiv:2407.18004"
)

BLOCKS = 16  # into which the array is cut


@cache
def skips(p: int) -> list[int]:
    """Return the distances in rising order: each is half of the next, rounded up, and p is last."""
    found = [p]
    while found[0] > 1:
        found.insert(0, (found[0] + 1) // 2)
    return found


@cache
def first_blocks(p: int) -> list[int]:
    """Return the first block that each rank receives, in order of distance from the root.

    The root sends block k to distance k, and ranks pass it on over longer distances only. The entry
    of the root is q.
    """
    distances = skips(p)
    first = [len(distances) - 1] * p
    for k, (distance, end) in enumerate(pairwise(distances)):
        for v in range(distance, end):
            first[v] = first[v - distance] if v > distance else k
    return first


@cache
def owners(p: int) -> list[list[int]]:
    """Return, for each block, the ranks whose first block it is, two times round the circle."""
    found: list[list[int]] = [[] for _ in skips(p)]
    for v, block in enumerate(2 * first_blocks(p)):
        found[block].append(v)
    return found


@lru_cache(1 << 16)
def taken(v: int, p: int) -> list[int]:
    """Return the blocks that number `v` receives in q rounds, one in each.

    In round k, look at the first blocks of the ranks between distance k and distance k + 1 to the
    left, and take the highest that is not taken yet. The farthest of these ranks counts only if the
    others have none. Where the root is among them, `v` receives its own first block. The other
    numbers are negative, since they belong to the q blocks before.
    """
    distances, ranks = skips(p), owners(p)
    q = len(distances) - 1
    own = first_blocks(p)[v]
    left = [b for b in range(q, -1, -1) if b != own]
    found = []
    for near, far in pairwise(distances):
        for lowest in (v + p - far + 1, v + p - far):
            able = [b for b in left if _any(ranks[b], lowest, v + p - near)]
            if able:
                break
        left.remove(able[0])
        found.append(own if able[0] == q else able[0] - q)
    return found


def _any(ranks: list[int], low: int, high: int) -> bool:
    """Return whether one of the ranks, which are in order, is from `low` to `high`."""
    at = bisect_left(ranks, low)
    return at < len(ranks) and ranks[at] <= high


class Turn(NamedTuple):
    """A round of the broadcast: the numbers of the two partners, and the blocks, or -1 for none."""

    target: int
    given: int
    source: int
    taken: int


def turns(v: int, p: int) -> Iterator[Turn]:
    """Yield the rounds of number `v`; the root is number 0."""
    if p == 1:
        return
    distances = skips(p)
    q = len(distances) - 1
    late = -(BLOCKS - 1) % q  # rounds left out at the beginning
    for t in range(late, late + BLOCKS - 1 + q):
        first, k = t // q * q - late, t % q
        target, source = (v + distances[k]) % p, (v - distances[k]) % p
        given = first + taken(target, p)[k] if target else -1
        got = first + taken(v, p)[k] if v else -1
        yield Turn(target, min(given, BLOCKS - 1), source, min(got, BLOCKS - 1))


@algorithm(
    "broadcast",
    name="circulant",
    blocks=BLOCKS,
    cost=Cost(rounds="15 + up", sent="(15 + up)/16"),
    source=SOURCE,
    chosen=NOWHERE,
)
def broadcast_circulant(r: int, p: int, root: int) -> Iterator[Exchange]:
    """In each round every rank passes a block on, to ranks at distance p/2, p/4, ..., 1 in turns.

    Every rank has all 16 blocks after 15 + log2 p rounds, which are as few as possible.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import rounds
    >>> print(rounds(check("broadcast", "circulant", p=3)))
    step  1  store  0 -[0]-> 2
    step  2  store  0 -[1]-> 1
    step  3  store  0 -[2]-> 2   2 -[0]-> 1
    step  4  store  0 -[3]-> 1   1 -[1]-> 2
    step  5  store  0 -[4]-> 2   2 -[2]-> 1
    step  6  store  0 -[5]-> 1   1 -[3]-> 2
    step  7  store  0 -[6]-> 2   2 -[4]-> 1
    step  8  store  0 -[7]-> 1   1 -[5]-> 2
    step  9  store  0 -[8]-> 2   2 -[6]-> 1
    step 10  store  0 -[9]-> 1   1 -[7]-> 2
    step 11  store  0 -[10]-> 2   2 -[8]-> 1
    step 12  store  0 -[11]-> 1   1 -[9]-> 2
    step 13  store  0 -[12]-> 2   2 -[10]-> 1
    step 14  store  0 -[13]-> 1   1 -[11]-> 2
    step 15  store  0 -[14]-> 2   2 -[12]-> 1
    step 16  store  0 -[15]-> 1   1 -[13]-> 2
    step 17  store  0 -[15]-> 2   2 -[14]-> 1
    """
    for target, given, source, got in turns((r - root) % p, p):
        yield Exchange(
            send=[((target + root) % p, given)] if given >= 0 else [],
            recv=[((source + root) % p, got)] if got >= 0 else [],
        )


@algorithm(
    "reduce",
    name="circulant",
    blocks=BLOCKS,
    cost=Cost(rounds="15 + up", sent="1", folded="(15 + up)/16", beta="(15 + up)/16"),
    source=SOURCE,
    chosen=NOWHERE,
)
def reduce_circulant(r: int, p: int, root: int) -> Iterator[Exchange]:
    """The broadcast backwards: each rank sends on every block once, after it has folded it.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import rounds
    >>> print(rounds(check("reduce", "circulant", p=3)))
    step  1  fold   1 -[14]-> 2   2 -[15]-> 0
    step  2  fold   1 -[15]-> 0   2 -[13]-> 1
    step  3  fold   1 -[12]-> 2   2 -[14]-> 0
    step  4  fold   1 -[13]-> 0   2 -[11]-> 1
    step  5  fold   1 -[10]-> 2   2 -[12]-> 0
    step  6  fold   1 -[11]-> 0   2 -[9]-> 1
    step  7  fold   1 -[8]-> 2   2 -[10]-> 0
    step  8  fold   1 -[9]-> 0   2 -[7]-> 1
    step  9  fold   1 -[6]-> 2   2 -[8]-> 0
    step 10  fold   1 -[7]-> 0   2 -[5]-> 1
    step 11  fold   1 -[4]-> 2   2 -[6]-> 0
    step 12  fold   1 -[5]-> 0   2 -[3]-> 1
    step 13  fold   1 -[2]-> 2   2 -[4]-> 0
    step 14  fold   1 -[3]-> 0   2 -[1]-> 1
    step 15  fold   1 -[0]-> 2   2 -[2]-> 0
    step 16  fold   1 -[1]-> 0
    step 17  fold   2 -[0]-> 0
    """
    for target, given, source, got in reversed(list(turns((r - root) % p, p))):
        yield Exchange(
            send=[((source + root) % p, got)] if got >= 0 else [],
            recv=[((target + root) % p, given)] if given >= 0 else [],
            fold=True,
        )
