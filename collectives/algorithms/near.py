"""Butterflies with the nearest partner first: the same bits for arrays of any length.

A `butterfly` folds pairs of neighbouring ranks, then pairs of these, and so on. The algorithms of
this module fold each element in the same order, whatever its block, with few bytes for long arrays,
and for other collectives. A call that names no algorithm uses them only if its bits must not depend
on the size of the array, or its sums are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from collectives.algorithms.butterfly import across, around_core, core, core_size, rank_of
from collectives.algorithms.exchange import Exchange
from collectives.algorithms.halving import SOURCE as RABENSEIFNER
from collectives.algorithms.halving import spoken_for
from collectives.algorithms.papers import THAKUR
from collectives.algorithms.registry import NOWHERE, Cost, algorithm


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
def near_halving(r: int, p: int) -> Iterator[Exchange]:
    """Reduce-scatter by recursive halving with the nearest partner first, then allgather.

    This is `halving_doubling` with partners at distance 1, 2, 4, ... in the reduce-scatter, as in a
    `butterfly`. So each element is folded in the order of a `butterfly`, but a rank sends no more
    than two arrays in all. The allgather has the same partners, the nearest last.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "near_halving", p=4)))
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
    name="near_tree",
    cost=Cost(rounds="lg + rest", sent="1", folded="lg + rest", beta="lg + rest"),
    source=THAKUR,
    keeps_order=True,
    chosen=NOWHERE,
)
def reduce_near_tree(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Neighbours are folded, then pairs of neighbours, each time on the side of the root.

    Partners are those of a `butterfly`, but only one of them gets the sum: the one whose number in
    the core has the lowest bits of the root's number. If p is not a power of two, the first ranks
    form pairs, in which one rank acts for both, as in a `butterfly`. In a pair with the root, the
    root acts.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce", "near_tree", p=4)))
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
    name="near_halving",
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
def reduce_near_halving(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Reduce-scatter by halving with the nearest partner first, then gather by the same partners.

    The first phase is that of the allreduce `near_halving`. Then partners meet again, the nearest
    last, and the one on the side of the root gets the blocks of the other. If p is not a power of
    two, the first ranks form pairs, in which one rank acts for both, as in `near_tree`.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce", "near_halving", p=4)))
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
    name="near_halving",
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
def reduce_scatter_near_halving(r: int, p: int) -> Iterator[Exchange]:
    """Recursive halving with the nearest partner first, so that neighbours are folded first.

    This is `recursive` with partners at distance 1, 2, 4, ... In each round, a rank keeps every
    second of the blocks that it still works on, so that its own is among them.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce_scatter", "near_halving", p=4)))
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
