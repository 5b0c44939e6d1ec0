"""Prefixes: each rank gets the fold of the ranks before it, with or without its own array."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.formulas import width
from collectives.algorithms.papers import CHAN
from collectives.algorithms.registry import NOWHERE, Cost, algorithm, publishes

SOURCE = "Sanders, Träff: Parallel prefix (scan) algorithms for MPI, 2006, doi:10.1007/11846802_15"
SHIFT = (
    "Träff: Communication round and computation efficient exclusive prefix-sums algorithms (for "
    "MPI_Exscan), 2025, doi:10.34726/10821"
)


@algorithm(
    "scan",
    name="recursive",
    cost=Cost(rounds="up", sent="up", folded="up"),
    source="Hillis, Steele: Data parallel algorithms, 1986, doi:10.1145/7902.7903",
    keeps_order=True,
)
def scan_recursive(r: int, p: int, first: int = 0) -> Iterator[Exchange]:
    """Recursive doubling: give your sum to the rank at distance 1, 2, 4, ... to the right.

    Before the round at distance d, a rank holds the sum of the d ranks up to itself. In this round
    it receives the sum of the d ranks before these from the rank d to the left. Nothing is sent
    from the last ranks to the first. (As a phase of another algorithm: rank `first` is the first.)

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("scan", "recursive", p=4)))
            start | step 1 | step 2
    rank 0  *     | *      | *
    rank 1  1     | *      | *
    rank 2  2     | 12     | *
    rank 3  3     | 23     | *
    """
    distance = 1
    while distance < p - first and r >= first:
        yield Exchange(
            send=(r + distance, 0) if r + distance < p else (),
            recv=(r - distance, 0) if r - distance >= first else (),
            fold=True,
        )
        distance *= 2


@algorithm(
    "scan",
    name="chain",
    cost=Cost(rounds="p - 1", sent="1", folded="1", beta="p - 1", gamma="p - 1"),
    source=SOURCE,
    keeps_order=True,
)
def scan_chain(r: int, p: int, first: int = 0) -> Iterator[Exchange]:
    """The sum walks from the first rank to the last; each folds its own array in and keeps a copy.

    For a short array this is the slowest algorithm. A long array is pipelined in segments, so that
    all ranks work at the same time. (As a phase of another algorithm: rank `first` is the first.)

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("scan", "chain", p=4)))
            start | step 1 | step 2 | step 3
    rank 0  *     | *      | *      | *
    rank 1  1     | *      | *      | *
    rank 2  2     | 2      | *      | *
    rank 3  3     | 3      | 3      | *
    """
    if r > first:
        yield Exchange(recv=(r - 1, 0), fold=True)
    if first <= r < p - 1:
        yield Exchange(send=(r + 1, 0))


@algorithm(
    "scan",
    name="rank_order",
    cost=Cost(rounds="1", sent="p - 1", folded="p - 1", alpha="p - 1", gamma="1"),
    source=CHAN,
    keeps_order=True,
    chosen=NOWHERE,
)
@publishes(lambda local, p, root: 1)
def scan_rank_order(r: int, p: int) -> Iterator[Exchange]:
    """Every rank sends its array to all higher ranks, and folds the arrays from rank 0 up.

    There is one round. Each rank waits only once, but the last one folds all arrays.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("scan", "rank_order", p=3)))
            start | step 1
    rank 0  *     | *
    rank 1  1     | *
    rank 2  2     | *
    """
    yield Exchange(
        send=[(q, 0) for q in range(r + 1, p)], recv=[(q, 0) for q in range(r)], fold=True
    )


def _window(r: int, p: int) -> int:
    """Return the number of ranks before rank `r` that send to it in `scan_windows`."""
    window, after = width(p), p - 1 - r
    while 0 < window <= after:
        after -= window
        window -= 1
    return min(window, r)


@algorithm(
    "scan",
    name="windows",
    cost=Cost(
        rounds="stages(p)",
        sent="width(p)",
        folded="width(p)",
        alpha="width(p)",
        gamma="stages(p)",
    ),
    source=CHAN,
    keeps_order=True,
    chosen=NOWHERE,
)
def scan_windows(r: int, p: int, first: int = 0) -> Iterator[Exchange]:
    """Every rank gets the arrays of the ranks just before it, and the sum of all before these.

    It folds the sum first, then the arrays in the order of their ranks. So there are fewer rounds
    than in a `chain`, with the same order of folding, and fewer messages than in `rank_order`. The
    last w ranks get messages from w ranks each, the w - 1 ranks before them from w - 1 ranks, and
    so on, down to the first rank. (As a phase of another algorithm: rank `first` is the first.)

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("scan", "windows", p=4)))
            start | step 1 | step 2
    rank 0  *     | *      | *
    rank 1  1     | *      | *
    rank 2  2     | *      | *
    rank 3  3     | 3      | *
    """
    if r < first:
        return
    size = p - first
    window = _window(r - first, size)
    last = min(r + width(size), p - 1)  # of the ranks that may get a message
    after = [(q, q - r, _window(q - first, size)) for q in range(r + 1, last + 1)]
    arrays = [(q, 0) for q, apart, most in after if apart < most]
    sums = [(q, 0) for q, apart, most in after if apart == most]
    if arrays or window:
        yield Exchange(send=arrays, recv=[(q, 0) for q in range(r - window, r)], fold=True)
    if sums:
        yield Exchange(send=sums)


def shift(r: int, p: int) -> Iterator[Exchange]:
    """Every rank replaces its array by that of its left neighbour; rank 0 keeps its own."""
    yield Exchange(send=(r + 1, 0) if r < p - 1 else (), recv=(r - 1, 0) if r else ())


@algorithm(
    "exscan",
    name="recursive",
    cost=Cost(
        rounds="1 + ceil(log2(p - 1))",
        sent="1 + ceil(log2(p - 1))",
        folded="ceil(log2(p - 1))",
    ),
    source=SHIFT,
    keeps_order=True,
)
def exscan_recursive(r: int, p: int) -> Iterator[Exchange]:
    """Shift all arrays one rank to the right, then scan by recursive doubling without rank 0.

    After the shift, a rank has the array of its left neighbour. The sum up to this rank is
    therefore the sum of the ranks before it.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("exscan", "recursive", p=4)))
            start | step 1 | step 2 | step 3
    rank 0  0     | 0      | 0      | 0
    rank 1  1     | *      | *      | *
    rank 2  2     | 1      | *      | *
    rank 3  3     | 2      | 12     | *
    """
    yield from shift(r, p)
    yield from scan_recursive(r, p, first=1)


@algorithm(
    "exscan",
    name="doubling",
    cost=Cost(rounds="up", sent="up", folded="2*(up - 1)"),
    source=SHIFT,
    keeps_order=True,
    chosen=NOWHERE,
    scratch=True,
)
def exscan_doubling(r: int, p: int) -> Iterator[Exchange]:
    """Scan by recursive doubling, with a second sum that leaves out the own array.

    The scratch block is the sum up to this rank, as in `scan/recursive`, and is sent to the right.
    The block is the sum without the own array. So a round has two folds, but no round is needed to
    shift the arrays.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("exscan", "doubling", p=4)))
            start | step 1 | step 2
    block   0 0'  | 0 0'   | 0 0'
    rank 0  0 .   | 0 .    | 0 .
    rank 1  1 .   | * 01   | * 01
    rank 2  2 .   | 1 12   | * 12
    rank 3  3 .   | 2 23   | * 23
    """
    before, with_own = 0, 1
    distance = 1
    while distance < p:
        yield Exchange(
            send=[(r + distance, with_own)] if r + distance < p else [],
            recv=[(r - distance, before)] if r >= distance else [],
            fold=distance > 1,
            both=2 * distance < p,
        )
        distance *= 2


@algorithm(
    "exscan",
    name="doubling_123",
    cost=Cost(
        rounds="ceil(log2(4*(p - 1)/3))",
        sent="ceil(log2(4*(p - 1)/3))",
        folded="ceil(log2(4*(p - 1)/3))",
    ),
    source=SHIFT,
    keeps_order=True,
    chosen=NOWHERE,
    scratch=True,
)
def exscan_doubling_123(r: int, p: int) -> Iterator[Exchange]:
    """Give sums to distance 1, 2, 3, 6, 12, ... on the right, the second with the own array.

    In the first round, a rank keeps the array of its left neighbour, and also folds it into its own
    array in the scratch block. In the second round, it receives such a sum of two arrays from two
    ranks away. Then it has the sum of the three ranks before it, and the sums double.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("exscan", "doubling_123", p=4)))
            start | step 1 | step 2
    block   0 0'  | 0 0'   | 0 0'
    rank 0  0 .   | 0 .    | 0 .
    rank 1  1 .   | * 01   | * 01
    rank 2  2 .   | 1 12   | * 12
    rank 3  3 .   | 2 23   | * 23
    """
    before, with_own = 0, 1
    yield Exchange(
        send=[(r + 1, before)] if r + 1 < p else [],
        recv=[(r - 1, before)] if r >= 1 else [],
        both=True,
    )
    yield Exchange(
        send=[(r + 2, with_own)] if r + 2 < p else [],
        recv=[(r - 2, before)] if r >= 2 else [],
        fold=True,
    )
    distance = 3
    while distance < p - 1:
        yield Exchange(
            send=[(r + distance, before)] if 1 <= r < p - distance else [],
            recv=[(r - distance, before)] if r > distance else [],
            fold=True,
        )
        distance *= 2


@algorithm(
    "exscan",
    name="rank_order",
    cost=Cost(
        rounds="min(p - 1, 2)", sent="p - 1", folded="p - 2", alpha="p - 1", gamma="min(p - 2, 1)"
    ),
    source=CHAN,
    keeps_order=True,
    chosen=NOWHERE,
    scratch=True,
)
@publishes(lambda local, p, root: min(len(local) - 1, 2))
def exscan_rank_order(r: int, p: int) -> Iterator[Exchange]:
    """Every rank sends its array to all higher ranks, and folds the arrays from rank 0 up.

    There are two rounds. In the first, a rank gets the array of its left neighbour in the place of
    its own, which stays in the scratch block. In the second, it folds all others into it.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("exscan", "rank_order", p=4)))
            start | step 1 | step 2
    block   0 0'  | 0 0'   | 0 0'
    rank 0  0 .   | 0 .    | 0 .
    rank 1  1 1   | * 1    | * 1
    rank 2  2 2   | 1 2    | * 2
    rank 3  3 3   | 2 3    | * 3
    """
    before, own = 0, 1
    yield Exchange(send=[(r + 1, before)] if r + 1 < p else [], recv=[(r - 1, before)] if r else [])
    yield Exchange(
        send=[(q, own) for q in range(r + 2, p)],
        recv=[(q, before) for q in range(r - 1)],
        fold=True,
    )


@algorithm(
    "exscan",
    name="chain",
    cost=Cost(
        rounds="p - 1",
        sent="min(2, p - 1)",
        folded="min(1, p - 2)",
        beta="p - 1",
        gamma="p - 2",
    ),
    source=SOURCE,
    keeps_order=True,
)
def exscan_chain(r: int, p: int) -> Iterator[Exchange]:
    """Shift all arrays one rank to the right, then let the sum walk from rank 1 to the last.

    A rank folds the sum from its left into the array that it got in the shift. The new sum is its
    result, and goes to the right.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("exscan", "chain", p=4)))
            start | step 1 | step 2 | step 3
    rank 0  0     | 0      | 0      | 0
    rank 1  1     | *      | *      | *
    rank 2  2     | 1      | *      | *
    rank 3  3     | 2      | 2      | *
    """
    yield from shift(r, p)
    yield from scan_chain(r, p, first=1)


@algorithm(
    "exscan",
    name="windows",
    cost=Cost(
        rounds="1 + stages(p - 1)",
        sent="1 + width(p - 1)",
        folded="width(p - 1)",
        alpha="1 + width(p - 1)",
        gamma="stages(p - 1)",
    ),
    source=CHAN,
    keeps_order=True,
    chosen=NOWHERE,
)
def exscan_windows(r: int, p: int) -> Iterator[Exchange]:
    """Shift all arrays one rank to the right, then scan by windows without rank 0.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("exscan", "windows", p=4)))
            start | step 1 | step 2
    rank 0  0     | 0      | 0
    rank 1  1     | *      | *
    rank 2  2     | 1      | *
    rank 3  3     | 2      | *
    """
    yield from shift(r, p)
    yield from scan_windows(r, p, first=1)
