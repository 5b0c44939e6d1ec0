"""Recursive halving and doubling: the butterfly on ever smaller, then ever larger parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from collectives.algorithms.butterfly import across, around_core, core, core_size, rank_of
from collectives.algorithms.exchange import Exchange
from collectives.algorithms.papers import THAKUR
from collectives.algorithms.registry import Cost, algorithm
from collectives.algorithms.tree import gather_up

SOURCE = (
    "Rabenseifner: Optimization of collective reduction operations, 2004, "
    "doi:10.1007/978-3-540-24685-5_1"
)


def spoken_for(start: int, stop: int, p: int) -> range:
    """Return the ranks that the numbers ``start..stop-1`` of the core act for."""
    return range(rank_of(start, p), rank_of(stop, p))


def reduce_scatter_halving(
    v: int, p: int, root: int = 0, blocks: Callable[[int, int], range] = range
) -> Iterator[Exchange]:
    """Reduce-scatter: number `v` of the core ends with its own blocks of the sum.

    Partners at distance q/2, q/4, ..., 1 each keep the half that holds their own blocks;
    ``blocks(start, stop)`` are those of the numbers ``start..stop-1``.
    """
    distance = core_size(p) // 2
    while distance:
        other = v ^ distance
        peer = (rank_of(other, p) + root) % p
        kept, given = (w // distance * distance for w in (v, other))
        yield Exchange(
            send=(peer, blocks(given, given + distance)),
            recv=(peer, blocks(kept, kept + distance)),
            fold=True,
        )
        distance //= 2


def allgather_doubling(
    v: int, p: int, blocks: Callable[[int, int], range] = range
) -> Iterator[Exchange]:
    """Allgather: partners at distance 1, 2, 4, ... exchange all blocks that they have."""
    distance = 1
    while distance < core_size(p):
        other = v ^ distance
        peer = rank_of(other, p)
        mine, theirs = (w // distance * distance for w in (v, other))
        yield Exchange(
            send=(peer, blocks(mine, mine + distance)),
            recv=(peer, blocks(theirs, theirs + distance)),
        )
        distance *= 2


@algorithm(
    "reduce_scatter",
    name="recursive",
    cost=Cost(
        rounds="lg + 2*rest",
        sent="(p - 1 + rest)/p",
        folded="(q - 1 + beyond)/p + rest",
        beta="(q - 1 + beyond + rest)/p + rest",
    ),
    source=SOURCE,
    alike=across,
)
def reduce_scatter_recursive(r: int, p: int) -> Iterator[Exchange]:
    """Recursive halving: partners at half the distance of the round before trade halves.

    Each keeps and folds the half with its own block, until only this block is left. If p is not a
    power of two, the first ranks form pairs: the odd rank of a pair sends its array to the even
    rank before these rounds, the even rank works on the blocks of both, and the odd rank receives
    its own block after them.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce_scatter", "recursive", p=4)))
            start   | step 1      | step 2
    block   0 1 2 3 | 0  1  2  3  | 0  1  2  3
    rank 0  0 0 0 0 | 02 02 0  0  | *  02 0  0
    rank 1  1 1 1 1 | 13 13 1  1  | 13 *  1  1
    rank 2  2 2 2 2 | 2  2  02 02 | 2  2  *  02
    rank 3  3 3 3 3 | 3  3  13 13 | 3  3  13 *
    """
    _, v, partner = core(r, p)
    rounds = reduce_scatter_halving(v, p, blocks=partial(spoken_for, p=p))
    yield from around_core(r, partner, rounds, given=range(p), taken=r | 1)


@algorithm(
    "allgather",
    name="recursive",
    cost=Cost(
        rounds="lg + 2*rest",
        sent="(q - 1 + beyond)/p + rest",
        beta="(q - 1 + beyond + rest)/p + rest",
    ),
    source=THAKUR,
    alike=across,
)
def allgather_recursive(r: int, p: int) -> Iterator[Exchange]:
    """Recursive doubling: partners at distance 1, 2, 4, ... exchange all blocks that they have.

    After the round at distance d, groups of 2d neighbours hold the blocks of their group. If p is
    not a power of two, the first ranks form pairs: the odd rank of a pair sends its block to the
    even rank before these rounds, and receives all blocks after them.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allgather", "recursive", p=4)))
            start   | step 1  | step 2
    block   0 1 2 3 | 0 1 2 3 | 0 1 2 3
    rank 0  * . . . | * * . . | * * * *
    rank 1  . * . . | * * . . | * * * *
    rank 2  . . * . | . . * * | * * * *
    rank 3  . . . * | . . * * | * * * *
    """
    _, v, partner = core(r, p)
    rounds = allgather_doubling(v, p, blocks=partial(spoken_for, p=p))
    yield from around_core(r, partner, rounds, given=r | 1, taken=range(p), fold=False)


@algorithm(
    "allreduce",
    blocks=core_size,
    cost=Cost(
        rounds="2*lg + 2*rest",
        sent="2*(q - 1)/q + rest",
        folded="(q - 1)/q + rest",
        beta="2*(q - 1)/q + 2*rest",
    ),
    source=SOURCE,
    alike=across,
)
def halving_doubling(r: int, p: int) -> Iterator[Exchange]:
    """Reduce-scatter by recursive halving, then allgather by recursive doubling.

    Reduce-scatter: partners at half the distance of the round before exchange halves of the blocks
    that they still work on, until each rank has one finished block. Allgather: the same partners
    exchange finished blocks in reverse order, twice as many in each round. If p is not a power of
    two, the ranks outside the core send their array to a neighbour before, and receive the result
    after.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "halving_doubling", p=4)))
            start   | step 1      | step 2      | step 3  | step 4
    block   0 1 2 3 | 0  1  2  3  | 0  1  2  3  | 0 1 2 3 | 0 1 2 3
    rank 0  0 0 0 0 | 02 02 0  0  | *  02 0  0  | * * 0 0 | * * * *
    rank 1  1 1 1 1 | 13 13 1  1  | 13 *  1  1  | * * 1 1 | * * * *
    rank 2  2 2 2 2 | 2  2  02 02 | 2  2  *  02 | 2 2 * * | * * * *
    rank 3  3 3 3 3 | 3  3  13 13 | 3  3  13 *  | 3 3 * * | * * * *
    """
    q, v, partner = core(r, p)
    rounds = chain(reduce_scatter_halving(v, p), allgather_doubling(v, p))
    yield from around_core(r, partner, rounds, given=range(q), taken=range(q))


@algorithm(
    "reduce",
    blocks=core_size,
    cost=Cost(
        rounds="2*lg + rest",
        sent="(q - 1)/q + 1/2",
        folded="(q - 1)/q + rest",
        beta="2*(q - 1)/q + rest",
    ),
    source=SOURCE,
)
def reduce_scatter_gather(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Reduce-scatter by recursive halving, then gather the blocks up a binomial tree.

    Ranks are numbered from the root. Recursive halving leaves one finished block on each rank of
    the core. Then neighbouring runs of blocks are joined, twice as long in each round, until the
    root has all blocks.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce", "reduce_scatter_gather", p=4)))
            start   | step 1      | step 2      | step 3    | step 4
    block   0 1 2 3 | 0  1  2  3  | 0  1  2  3  | 0  1 2  3 | 0  1 2  3
    rank 0  0 0 0 0 | 02 02 0  0  | *  02 0  0  | *  * 0  0 | *  * *  *
    rank 1  1 1 1 1 | 13 13 1  1  | 13 *  1  1  | 13 * 1  1 | 13 * 1  1
    rank 2  2 2 2 2 | 2  2  02 02 | 2  2  *  02 | 2  2 *  * | 2  2 *  *
    rank 3  3 3 3 3 | 3  3  13 13 | 3  3  13 *  | 3  3 13 * | 3  3 13 *
    """
    me = (r - root) % p
    q, v, partner = core(me, p)
    if partner is not None and partner < me:
        yield Exchange(send=((partner + root) % p, range(q)))
        return
    if partner is not None:
        yield Exchange(recv=((partner + root) % p, range(q)), fold=True)
    yield from reduce_scatter_halving(v, p, root)
    yield from gather_up(v, q, lambda w: (rank_of(w, p) + root) % p)
