"""Butterfly, or recursive doubling: partners at distance 1, 2, 4, ... exchange everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from collectives.algorithms.exchange import Blocks, Exchange
from collectives.algorithms.papers import THAKUR
from collectives.algorithms.registry import Cost, algorithm

Value = TypeVar("Value")


def core_size(p: int) -> int:
    """Return the largest power of two up to `p`: the number of ranks in the core."""
    return 1 << (p.bit_length() - 1)


def core(r: int, p: int) -> tuple[int, int, int | None]:
    """Find the place of a rank in the core: a power of two of ranks that run the algorithm.

    With ``q`` the largest power of two up to ``p``, the first ``2(p - q)`` ranks form pairs of
    an even rank, which is in the core, and its odd neighbour, which is not.

    Return ``q``, the number of this rank (or of its partner) in the core, and the partner, or None
    if this rank is in no pair.
    """
    q = core_size(p)
    paired = 2 * (p - q)
    if r >= paired:
        return q, r - (p - q), None
    return q, r // 2, r ^ 1


def rank_of(v: int, p: int) -> int:
    """Return the rank whose number in the core is `v`; the inverse of `core`."""
    q = core_size(p)
    return 2 * v if v < p - q else v + (p - q)


def across(q: int, r: int, p: int) -> int:
    """Return the rank that is as far from rank 0 in a butterfly as `q` is from `r`."""
    return q ^ r


def folded_in_pairs(fold: Callable[[Value, Value], Value], values: Sequence[Value]) -> Value:
    """Fold values, one of each rank, in the order of a butterfly.

    First, leading pairs are folded, so that a power of two of values is left. Then all pairs of
    neighbours are folded until one value is left.
    """
    beyond = 2 * (len(values) - core_size(len(values)))
    made = [*map(fold, values[:beyond:2], values[1:beyond:2]), *values[beyond:]]
    while len(made) > 1:
        made = [*map(fold, made[::2], made[1::2])]
    return made[0]


def around_core(
    r: int,
    partner: int | None,
    rounds: Iterable[Exchange],
    given: Blocks,
    taken: Blocks,
    fold: bool = True,
) -> Iterator[Exchange]:
    """Run the rounds of the core; ranks outside send `given` before, and receive `taken` after.

    The partner of a rank outside the core acts for both.
    """
    if partner is not None and partner < r:
        yield Exchange(send=(partner, given))
        yield Exchange(recv=(partner, taken))
        return
    if partner is not None:
        yield Exchange(recv=(partner, given), fold=fold)
    yield from rounds
    if partner is not None:
        yield Exchange(send=(partner, taken))


def doubling(v: int, p: int) -> Iterator[Exchange]:
    """The butterfly proper: partners at distance 1, 2, 4, ... in the core exchange and fold."""
    distance = 1
    while distance < core_size(p):
        other = rank_of(v ^ distance, p)
        yield Exchange(send=(other, 0), recv=(other, 0), fold=True)
        distance *= 2


@algorithm(
    "allreduce",
    cost=Cost(rounds="lg + 2*rest", sent="lg + rest", folded="lg + rest", beta="lg + 2*rest"),
    source=THAKUR,
    keeps_order=True,
    alike=across,
)
def butterfly(r: int, p: int) -> Iterator[Exchange]:
    """Exchange the whole array with partners at distance 1, 2, 4, ... and fold.

    After the round at distance d, groups of 2d neighbours hold the same sum. If p is not a power
    of two, the first ranks form pairs: the odd rank of a pair sends its array to the even rank
    before these rounds, and receives the result after them.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "butterfly", p=4)))
            start | step 1 | step 2
    rank 0  0     | 01     | *
    rank 1  1     | 01     | *
    rank 2  2     | 23     | *
    rank 3  3     | 23     | *
    """
    _, v, partner = core(r, p)
    yield from around_core(r, partner, doubling(v, p), given=0, taken=0)
