"""Direct exchanges: every rank speaks with every other."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.registry import Cost, algorithm
from collectives.schedule import Exchange


@algorithm(
    "allreduce",
    cost=Cost(rounds="1", sent="p - 1", folded="p - 1"),
    source=(
        "Chan, Heimlich, Purkayastha, van de Geijn: Collective communication: theory, practice, "
        "and experience, 2007, doi:10.1002/cpe.1206"
    ),
    keeps_order=True,
)
def all_to_all(r: int, p: int) -> Iterator[Exchange]:
    """Everybody sends its whole array to everybody, and folds what it gets in rank order.

    One round, after which every rank holds all arrays and folds them from rank 0 up: each repeats
    the work of all others, and waits only once.

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
    "allreduce",
    blocks=lambda p: p,
    cost=Cost(rounds="2*(p - 1)", sent="2*(p - 1)/p", folded="(p - 1)/p"),
    source=(
        "Zhao, Canny: Sparse allreduce: efficient scalable communication for power-law data, "
        "2013, arXiv:1312.3020"
    ),
)
def round_robin(r: int, p: int) -> Iterator[Exchange]:
    """Rank b owns block b: blocks travel to their owners in rotating order, and back likewise.

    Share-reduce: in round t a rank gives the block that belongs to the rank t places to its right
    and folds what comes for its own from t places to its left. Share-only: the same rotation
    carries the finished blocks back.

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
