"""Direct exchanges: every rank sends to every other."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.papers import CHAN, MELLOR_CRUMMEY, THAKUR
from collectives.algorithms.registry import NOWHERE, Cost, algorithm, publishes


@algorithm(
    "allreduce",
    cost=Cost(rounds="1", sent="p - 1", folded="p - 1", alpha="p - 1", gamma="1"),
    source=CHAN,
    keeps_order=True,
    cyclic=True,
)
def all_to_all(r: int, p: int) -> Iterator[Exchange]:
    """Every rank sends its whole array to all others, and folds all arrays in rank order.

    There is one round. Every rank then holds all arrays, and folds them from rank 0 up. Each rank
    repeats the work of all others, but waits only once.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "all_to_all", p=4)))
            start | step 1
    rank 0  0     | *
    rank 1  1     | *
    rank 2  2     | *
    rank 3  3     | *
    """
    others = [(r + t) % p for t in range(1, p)]
    yield Exchange(send=[(q, 0) for q in others], recv=[(q, 0) for q in others], fold=True)


@algorithm(
    "barrier",
    name="direct",
    cost=Cost(rounds="1", sent="p - 1", folded="p - 1", alpha="p - 1", gamma="1"),
    source=MELLOR_CRUMMEY,
    keeps_order=True,
    cyclic=True,
)
def barrier_direct(r: int, p: int) -> Iterator[Exchange]:
    """Every rank tells all others that it has arrived.

    There is one round. In shared memory, each rank writes one word, which all others read.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("barrier", "direct", p=4)))
            start | step 1
    rank 0  0     | *
    rank 1  1     | *
    rank 2  2     | *
    rank 3  3     | *
    """
    yield from all_to_all(r, p)


@algorithm(
    "allreduce",
    blocks=lambda p: p,
    cost=Cost(rounds="2*(p - 1)", sent="2*(p - 1)/p", folded="(p - 1)/p"),
    source=(
        "Zhao, Canny: Sparse allreduce: efficient scalable communication for power-law data, "
        "2013, arXiv:1312.3020"
    ),
    cyclic=True,
)
def round_robin(r: int, p: int) -> Iterator[Exchange]:
    """Rank b owns block b: blocks travel to their owners in rotating order, and back likewise.

    Reduce-scatter: in round t, a rank sends the block owned by the rank t places to its right, and
    folds the block that it receives from the rank t places to its left into its own. Allgather:
    the finished blocks go back to all ranks in the same rotating order.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "round_robin", p=3)))
            start | step 1   | step 2 | step 3 | step 4
    block   0 1 2 | 0  1  2  | 0 1 2  | 0 1 2  | 0 1 2
    rank 0  0 0 0 | 02 0  0  | * 0 0  | * 0 *  | * * *
    rank 1  1 1 1 | 1  01 1  | 1 * 1  | * * 1  | * * *
    rank 2  2 2 2 | 2  2  12 | 2 2 *  | 2 * *  | * * *
    """
    for t in range(1, p):
        to, source = (r + t) % p, (r - t) % p
        yield Exchange(send=(to, to), recv=(source, r), fold=True)
    for t in range(1, p):
        to, source = (r + t) % p, (r - t) % p
        yield Exchange(send=(to, r), recv=(source, source))


@algorithm(
    "allgather",
    name="direct",
    cost=Cost(rounds="1", sent="(p - 1)/p", alpha="p - 1"),
    source=(
        "Faraj, Yuan: Automatic generation and tuning of MPI collective communication routines, "
        "2005, doi:10.1145/1088149.1088202"
    ),
    cyclic=True,
)
def allgather_direct(r: int, p: int) -> Iterator[Exchange]:
    """Every rank sends its block to all others.

    There is one round. Each rank sends to its right neighbour first, then to the next rank, and so
    on.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allgather", "direct", p=4)))
            start   | step 1
    block   0 1 2 3 | 0 1 2 3
    rank 0  * . . . | * * * *
    rank 1  . * . . | * * * *
    rank 2  . . * . | * * * *
    rank 3  . . . * | * * * *
    """
    others = [((r + t) % p, (r - t) % p) for t in range(1, p)]
    yield Exchange(send=[(to, r) for to, _ in others], recv=[(q, q) for _, q in others])


@algorithm(
    "reduce_scatter",
    name="direct",
    cost=Cost(rounds="1", sent="(p - 1)/p", folded="(p - 1)/p", alpha="p - 1", gamma="1/p"),
    source=(
        "Iannello: Efficient algorithms for the reduce-scatter operation in LogGP, 1997, "
        "doi:10.1109/71.615442"
    ),
    keeps_order=True,
    cyclic=True,
)
def reduce_scatter_direct(r: int, p: int) -> Iterator[Exchange]:
    """Every rank sends each other rank its block, and folds the blocks that it gets in rank order.

    There is one round. Each block is folded on its own rank, from rank 0 up.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce_scatter", "direct", p=4)))
            start   | step 1
    block   0 1 2 3 | 0 1 2 3
    rank 0  0 0 0 0 | * 0 0 0
    rank 1  1 1 1 1 | 1 * 1 1
    rank 2  2 2 2 2 | 2 2 * 2
    rank 3  3 3 3 3 | 3 3 3 *
    """
    others = [((r + t) % p, (r - t) % p) for t in range(1, p)]
    yield Exchange(send=[(to, to) for to, _ in others], recv=[(q, r) for _, q in others], fold=True)


@algorithm(
    "alltoall",
    name="direct",
    cost=Cost(rounds="1", sent="(p - 1)/p", alpha="p - 1"),
    source=THAKUR,
    cyclic=True,
)
def alltoall_direct(r: int, p: int) -> Iterator[Exchange]:
    """Every rank sends each other rank the block that is for it, all at once.

    There is one round. Each rank sends to its right neighbour first, then to the next rank, and so
    on, so that not all ranks send to the same one first. Block ``s * p + d`` goes from rank s to
    rank d.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("alltoall", "direct", p=3)))
            start                      | step 1
    block   00 01 02 10 11 12 20 21 22 | 00 01 02 10 11 12 20 21 22
    rank 0  *  *  *  .  .  .  .  .  .  | *  *  *  *  .  .  *  .  .
    rank 1  .  .  .  *  *  *  .  .  .  | .  *  .  *  *  *  .  *  .
    rank 2  .  .  .  .  .  .  *  *  *  | .  .  *  .  .  *  *  *  *
    """
    others = [((r + t) % p, (r - t) % p) for t in range(1, p)]
    yield Exchange(
        send=[(to, r * p + to) for to, _ in others],
        recv=[(source, source * p + r) for _, source in others],
    )


@algorithm(
    "allreduce",
    name="direct",
    blocks=lambda p: p,
    cost=Cost(rounds="2", sent="2*(p - 1)/p", folded="(p - 1)/p", alpha="2*(p - 1)", gamma="1/p"),
    source=CHAN,
    keeps_order=True,
    chosen=NOWHERE,
    cyclic=True,
)
def allreduce_direct(r: int, p: int) -> Iterator[Exchange]:
    """Rank b folds block b of all ranks in rank order, and sends it to all others.

    There are two rounds. They move as little as `round_robin`, but each block is folded in the same
    order. So the bits of an element do not depend on its block.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "direct", p=3)))
            start | step 1 | step 2
    block   0 1 2 | 0 1 2  | 0 1 2
    rank 0  0 0 0 | * 0 0  | * * *
    rank 1  1 1 1 | 1 * 1  | * * *
    rank 2  2 2 2 | 2 2 *  | * * *
    """
    yield from reduce_scatter_direct(r, p)
    yield from allgather_direct(r, p)


@algorithm(
    "reduce",
    name="direct",
    blocks=lambda p: p,
    cost=Cost(
        rounds="2", sent="1", folded="(p - 1)/p", alpha="2*(p - 1)", beta="2*(p - 1)/p", gamma="1/p"
    ),
    source=CHAN,
    keeps_order=True,
    chosen=NOWHERE,
)
@publishes(lambda local, p, root: len(local))
def reduce_direct(r: int, p: int, root: int) -> Iterator[Exchange]:
    """The rank b to the right of the root folds block b in rank order, and sends it to the root.

    There are two rounds. All ranks fold at the same time.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("reduce", "direct", p=3)))
            start | step 1 | step 2
    block   0 1 2 | 0 1 2  | 0 1 2
    rank 0  0 0 0 | * 0 0  | * * *
    rank 1  1 1 1 | 1 * 1  | 1 * 1
    rank 2  2 2 2 | 2 2 *  | 2 2 *
    """
    ranks = [(root + v) % p for v in range(p)]  # of the blocks
    mine = (r - root) % p
    others = [(ranks[b], b) for b in ((mine + t) % p for t in range(1, p))]
    yield Exchange(send=others, recv=[(q, mine) for q, _ in others], fold=True)
    yield Exchange(recv=others) if r == root else Exchange(send=(root, mine))
