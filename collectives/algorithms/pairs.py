"""Fold every element in pairs, whatever its block: the same bits for arrays of any length.

A `butterfly` folds pairs of neighbouring ranks, then pairs of these, and so on. The algorithms of
this module fold each element in the same order: with one round for short arrays, with few bytes for
long ones, and for other collectives. A call that names no algorithm uses them only if its bits must
not depend on the size of the array, or its sums are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain

from collectives.algorithms.butterfly import across, around_core, core, core_size, rank_of
from collectives.algorithms.direct import all_to_all, allgather_direct, reduce_scatter_direct
from collectives.algorithms.exchange import Exchange
from collectives.algorithms.flat import reduce_flat
from collectives.algorithms.halving import SOURCE as RABENSEIFNER
from collectives.algorithms.halving import spoken_for
from collectives.algorithms.papers import CHAN, THAKUR
from collectives.algorithms.registry import NOWHERE, Cost, algorithm


def in_pairs(rounds: Iterable[Exchange]) -> Iterator[Exchange]:
    """Run rounds with the folds of a butterfly."""
    for each in rounds:
        yield each._replace(pairs=each.fold)


@algorithm(
    "allreduce",
    cost=Cost(rounds="1", sent="p - 1", folded="p - 1", alpha="p - 1", gamma="1"),
    source=CHAN,
    keeps_order=True,
    chosen=NOWHERE,
    cyclic=True,
)
def pairs_all_to_all(r: int, p: int) -> Iterator[Exchange]:
    """Every rank sends its whole array to all others, and folds all arrays in pairs.

    There is one round, as in an `all_to_all`. Each rank folds all arrays in the order of a
    `butterfly`, and so gets the same bits.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "pairs_all_to_all", p=4)))
            start | step 1
    rank 0  0     | *
    rank 1  1     | *
    rank 2  2     | *
    rank 3  3     | *
    """
    yield from in_pairs(all_to_all(r, p))


@algorithm(
    "allreduce",
    blocks=lambda p: p,
    cost=Cost(rounds="2", sent="2*(p - 1)/p", folded="(p - 1)/p", alpha="2*(p - 1)", gamma="1/p"),
    source=CHAN,
    keeps_order=True,
    chosen=NOWHERE,
    cyclic=True,
)
def pairs_direct(r: int, p: int) -> Iterator[Exchange]:
    """Rank b folds block b of all ranks in pairs, and sends it to all others.

    There are two rounds. They move as little as `round_robin`, but each block is folded in the same
    order, that of a `butterfly`. So the bits of an element do not depend on its block.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "pairs_direct", p=3)))
            start | step 1 | step 2
    block   0 1 2 | 0 1 2  | 0 1 2
    rank 0  0 0 0 | * 0 0  | * * *
    rank 1  1 1 1 | 1 * 1  | * * *
    rank 2  2 2 2 | 2 2 *  | * * *
    """
    yield from in_pairs(reduce_scatter_direct(r, p))
    yield from allgather_direct(r, p)


@algorithm(
    "allreduce",
    blocks=core_size,
    cost=Cost(
        rounds="2*lg + 2*rest",
        sent="2*(q - 1)/q + rest",
        folded="(q - 1)/q + rest",
        beta="2*(q - 1)/q + 2*rest",
    ),
    source=RABENSEIFNER,
    keeps_order=True,
    chosen=NOWHERE,
    alike=across,
)
def pairs_halving(r: int, p: int) -> Iterator[Exchange]:
    """Reduce-scatter by recursive halving with the nearest partner first, then allgather.

    This is `halving_doubling` with partners at distance 1, 2, 4, ... in the reduce-scatter, as in a
    `butterfly`. So each element is folded in the order of a `butterfly`, but a rank sends no more
    than two arrays in all. The allgather has the same partners, the nearest last.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "pairs_halving", p=4)))
            start   | step 1      | step 2      | step 3  | step 4
    block   0 1 2 3 | 0  1  2  3  | 0  1  2  3  | 0 1 2 3 | 0 1 2 3
    rank 0  0 0 0 0 | 01 01 0  0  | *  01 0  0  | * * 0 0 | * * * *
    rank 1  1 1 1 1 | 1  1  01 01 | 1  1  *  01 | 1 1 * * | * * * *
    rank 2  2 2 2 2 | 23 23 2  2  | 23 *  2  2  | * * 2 2 | * * * *
    rank 3  3 3 3 3 | 3  3  23 23 | 3  3  23 *  | 3 3 * * | * * * *
    """
    q, v, partner = core(r, p)
    there = list(_halving(v, p, partial(rank_of, p=p)))
    back = [each._replace(send=each.recv, recv=each.send, fold=False) for each in there]
    rounds = chain(there, reversed(back))
    yield from around_core(r, partner, rounds, given=range(q), taken=range(q))


def _halving(v: int, p: int, acting: Callable[[int], int]) -> Iterator[Exchange]:
    """Number `v` of the core keeps ever smaller runs of blocks; rank ``acting(w)`` acts for `w`."""
    q = core_size(p)
    first, length, distance = 0, q, 1
    while distance < q:
        length //= 2
        runs = range(first, first + length), range(first + length, first + 2 * length)
        is_upper = bool(v & distance)
        peer = acting(v ^ distance)
        yield Exchange(send=(peer, runs[not is_upper]), recv=(peer, runs[is_upper]), fold=True)
        first += is_upper * length
        distance *= 2


@algorithm(
    "reduce",
    name="pairs_flat",
    cost=Cost(rounds="1", sent="1", folded="p - 1", alpha="p - 1", beta="p - 1", gamma="1"),
    source=CHAN,
    keeps_order=True,
    chosen=NOWHERE,
)
def reduce_pairs_flat(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Every rank sends its array to the root, which folds them in pairs.

    There is one round, as in `flat`. Arrays are folded in rank order for any root.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce", "pairs_flat", p=4)))
            start | step 1
    rank 0  0     | *
    rank 1  1     | 1
    rank 2  2     | 2
    rank 3  3     | 3
    """
    yield from in_pairs(reduce_flat(r, p, root))


@algorithm(
    "reduce",
    name="pairs_tree",
    cost=Cost(rounds="lg + rest", sent="1", folded="lg + rest", beta="lg + rest"),
    source=THAKUR,
    keeps_order=True,
    chosen=NOWHERE,
)
def reduce_pairs_tree(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Neighbours are folded, then pairs of neighbours, each time on the side of the root.

    Partners are those of a `butterfly`, but only one of them gets the sum: the one whose number in
    the core has the lowest bits of the root's number. If p is not a power of two, the first ranks
    form pairs, in which one rank acts for both, as in a `butterfly`. In a pair with the root, the
    root acts.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce", "pairs_tree", p=4)))
            start | step 1 | step 2
    rank 0  0     | 01     | *
    rank 1  1     | 1      | 1
    rank 2  2     | 23     | 23
    rank 3  3     | 3      | 3
    """
    q, v, partner = core(r, p)
    _, top, _ = core(root, p)
    acting = partial(_acting, root=root, p=p)
    if r != acting(v):
        yield Exchange(send=(acting(v), 0))
        return
    if partner is not None:
        yield Exchange(recv=(partner, 0), fold=True)
    distance = 1
    while distance < q:
        other = acting(v ^ distance)
        if (v ^ top) & distance:
            yield Exchange(send=(other, 0))
            return
        yield Exchange(recv=(other, 0), fold=True)
        distance *= 2


def _acting(w: int, root: int, p: int) -> int:
    """Return the rank that acts for number `w` of the core; in a pair with the root, the root."""
    return root if core(root, p)[1] == w else rank_of(w, p)


@algorithm(
    "reduce",
    name="pairs_direct",
    blocks=lambda p: p,
    cost=Cost(
        rounds="2", sent="1", folded="(p - 1)/p", alpha="2*(p - 1)", beta="2*(p - 1)/p", gamma="1/p"
    ),
    source=CHAN,
    keeps_order=True,
    chosen=NOWHERE,
)
def reduce_pairs_direct(r: int, p: int, root: int) -> Iterator[Exchange]:
    """The rank b to the right of the root folds block b in pairs, and sends it to the root.

    There are two rounds. All ranks fold at the same time.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce", "pairs_direct", p=3)))
            start | step 1 | step 2
    block   0 1 2 | 0 1 2  | 0 1 2
    rank 0  0 0 0 | * 0 0  | * * *
    rank 1  1 1 1 | 1 * 1  | 1 * 1
    rank 2  2 2 2 | 2 2 *  | 2 2 *
    """
    ranks = [(root + v) % p for v in range(p)]  # of the blocks
    mine = (r - root) % p
    others = [(ranks[b], b) for b in ((mine + t) % p for t in range(1, p))]
    recv = [(q, mine) for q, _ in others]
    yield Exchange(send=others, recv=recv, fold=True, pairs=True)
    yield Exchange(recv=others) if r == root else Exchange(send=(root, mine))


@algorithm(
    "reduce",
    name="pairs_halving",
    blocks=core_size,
    cost=Cost(
        rounds="2*lg + rest",
        sent="(q - 1)/q + 1/2",
        folded="(q - 1)/q + rest",
        beta="2*(q - 1)/q + rest",
    ),
    source=RABENSEIFNER,
    keeps_order=True,
    chosen=NOWHERE,
)
def reduce_pairs_halving(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Reduce-scatter by halving with the nearest partner first, then gather by the same partners.

    The first phase is that of the allreduce `pairs_halving`. Then partners meet again, the nearest
    last, and the one on the side of the root gets the blocks of the other. If p is not a power of
    two, the first ranks form pairs, in which one rank acts for both, as in `pairs_tree`.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce", "pairs_halving", p=4)))
            start   | step 1      | step 2      | step 3    | step 4
    block   0 1 2 3 | 0  1  2  3  | 0  1  2  3  | 0  1 2  3 | 0  1 2  3
    rank 0  0 0 0 0 | 01 01 0  0  | *  01 0  0  | *  * 0  0 | *  * *  *
    rank 1  1 1 1 1 | 1  1  01 01 | 1  1  *  01 | 1  1 *  * | 1  1 *  *
    rank 2  2 2 2 2 | 23 23 2  2  | 23 *  2  2  | 23 * 2  2 | 23 * 2  2
    rank 3  3 3 3 3 | 3  3  23 23 | 3  3  23 *  | 3  3 23 * | 3  3 23 *
    """
    q, v, partner = core(r, p)
    _, top, _ = core(root, p)
    acting = partial(_acting, root=root, p=p)
    if r != acting(v):
        yield Exchange(send=(acting(v), range(q)))
        return
    if partner is not None:
        yield Exchange(recv=(partner, range(q)), fold=True)
    there = list(_halving(v, p, acting))
    yield from there
    distance = q
    for each in reversed(there):
        distance //= 2
        if (v ^ top) & distance:
            yield Exchange(send=each.recv)
            return
        yield Exchange(recv=each.send)


@algorithm(
    "reduce_scatter",
    name="pairs_direct",
    cost=Cost(rounds="1", sent="(p - 1)/p", folded="(p - 1)/p", alpha="p - 1", gamma="1/p"),
    source=CHAN,
    keeps_order=True,
    chosen=NOWHERE,
    cyclic=True,
)
def reduce_scatter_pairs_direct(r: int, p: int) -> Iterator[Exchange]:
    """Every rank sends each other rank its block, and folds the blocks that it gets in pairs.

    There is one round, as in `direct`.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce_scatter", "pairs_direct", p=4)))
            start   | step 1
    block   0 1 2 3 | 0 1 2 3
    rank 0  0 0 0 0 | * 0 0 0
    rank 1  1 1 1 1 | 1 * 1 1
    rank 2  2 2 2 2 | 2 2 * 2
    rank 3  3 3 3 3 | 3 3 3 *
    """
    yield from in_pairs(reduce_scatter_direct(r, p))


@algorithm(
    "reduce_scatter",
    name="pairs_halving",
    cost=Cost(
        rounds="lg + 2*rest",
        sent="(p - 1 + rest)/p",
        folded="(q - 1 + even)/p + rest",
        beta="(q - 1 + even + rest)/p + rest",
    ),
    source=RABENSEIFNER,
    keeps_order=True,
    chosen=NOWHERE,
    alike=across,
)
def reduce_scatter_pairs_halving(r: int, p: int) -> Iterator[Exchange]:
    """Recursive halving with the nearest partner first, so that neighbours are folded first.

    This is `recursive` with partners at distance 1, 2, 4, ... In each round, a rank keeps every
    second of the blocks that it still works on, so that its own is among them.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce_scatter", "pairs_halving", p=4)))
            start   | step 1      | step 2
    block   0 1 2 3 | 0  1  2  3  | 0  1  2  3
    rank 0  0 0 0 0 | 01 0  01 0  | *  0  01 0
    rank 1  1 1 1 1 | 1  01 1  01 | 1  *  1  01
    rank 2  2 2 2 2 | 23 2  23 2  | 23 2  *  2
    rank 3  3 3 3 3 | 3  23 3  23 | 3  23 3  *
    """
    _, v, partner = core(r, p)
    yield from around_core(r, partner, _halving_apart(v, p), given=range(p), taken=r | 1)


def _halving_apart(v: int, p: int) -> Iterator[Exchange]:
    """In each round, partners keep the blocks of the numbers that end in the bits of their own."""
    distance = 1
    while distance < core_size(p):
        other = v ^ distance
        peer = rank_of(other, p)
        kept, given = (
            [
                b
                for number in range(w % (2 * distance), core_size(p), 2 * distance)
                for b in spoken_for(number, number + 1, p)
            ]
            for w in (v, other)
        )
        yield Exchange(send=(peer, given), recv=(peer, kept), fold=True)
        distance *= 2
