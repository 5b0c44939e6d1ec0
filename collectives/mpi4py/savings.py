"""Savings of time: the estimate of `Intracomm.saved`.

MPI's own collectives and those of this library run in turns on arrays of the sizes that a program
has used. The calls of the program are not timed, but only counted, by name and by size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from collectives.communicator import Communicator
from collectives.reductions import MAX

TURNS = 7
WARM = 3  # calls before the turns; a turn has as many calls as fill it at their speed
FILL = 1e-3  # seconds
MOST = 500  # calls in a turn
LONGEST = 64 << 20  # bytes of an array; the time of a longer one is extrapolated in proportion
ITEM = 8  # bytes of the numbers in the arrays

Arguments = Callable[[int, int], tuple[Any, ...]]  # of so many numbers in all, and so many ranks


class Saved(NamedTuple):
    """The number of calls of a collective that were compared with MPI's own, and the `seconds` that
    they have saved, as an estimate: negative if MPI's own are faster.
    """

    calls: int
    seconds: float


class Row(NamedTuple):
    """The calls of a collective in a class of sizes, and their bytes together."""

    name: str
    calls: int
    nbytes: int


def estimate(comm: Communicator, theirs: Any, ours: Any, rows: Iterable[Row]) -> dict[str, Saved]:
    """Return the savings of the calls in the rows of rank 0, by comparing the communicator `theirs`
    of MPI with `ours`, which has the same ranks and is accelerated. Collective.
    """
    found: dict[str, Saved] = {}
    for name, calls, nbytes in comm.broadcast_object(_merged(rows)):
        usual = nbytes // calls
        length = min(usual, LONGEST)
        args = ARGUMENTS[name](length // ITEM, comm.size)
        slow, fast = (partial(getattr(each, name), *args) for each in (theirs, ours))
        seconds = _gain(comm, slow, fast) * calls * max(1.0, usual / LONGEST)
        before = found.get(name, Saved(0, 0.0))
        found[name] = Saved(before.calls + calls, before.seconds + seconds)
    return found


def _merged(rows: Iterable[Row]) -> list[Row]:
    """Return rows of which no two have the same collective and class of sizes."""
    found: dict[tuple[str, int], Row] = {}
    for row in rows:
        key = row.name, (row.nbytes // row.calls).bit_length()
        before = found.get(key, Row(row.name, 0, 0))
        found[key] = Row(row.name, before.calls + row.calls, before.nbytes + row.nbytes)
    return list(found.values())


def _gain(comm: Communicator, slow: Callable[[], Any], fast: Callable[[], Any]) -> float:
    """Return the seconds that one call takes longer than another one on the slowest rank: the
    median of some turns. Collective.
    """
    ways = slow, fast
    longest = comm.allreduce(np.array([_seconds(comm, each, WARM) for each in ways]), op=MAX).max()
    calls = max(1, min(MOST, round(FILL / longest)))
    times = np.empty((TURNS, 2))
    for turn in range(TURNS):
        for way in (0, 1) if turn % 2 else (1, 0):
            times[turn, way] = _seconds(comm, ways[way], calls)
    slowest = comm.allreduce(times, op=MAX)
    return float(np.median(slowest[:, 0] - slowest[:, 1]))


def _seconds(comm: Communicator, call: Callable[[], Any], calls: int) -> float:
    """Return the mean seconds of `calls` consecutive calls on this rank. Collective."""
    comm.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def _moved(n: int, p: int) -> tuple[Any, ...]:
    return (np.ones(max(1, n)),)


def _alike(n: int, p: int) -> tuple[Any, ...]:
    return np.ones(max(1, n)), np.empty(max(1, n))


def _gathered(n: int, p: int) -> tuple[Any, ...]:
    part = max(1, n // p)
    return np.ones(part), np.empty(part * p)


def _scattered(n: int, p: int) -> tuple[Any, ...]:
    part = max(1, n // p)
    return np.ones(part * p), np.empty(part)


def _exchanged(n: int, p: int) -> tuple[Any, ...]:
    part = max(1, n // p)
    return np.ones(part * p), np.empty(part * p)


# The arguments for a comparison, by the names of mpi4py's methods. Objects are short.
ARGUMENTS: dict[str, Arguments] = {
    "Barrier": lambda n, p: (),
    "Bcast": _moved,
    **dict.fromkeys(("Allreduce", "Reduce", "Scan", "Exscan"), _alike),
    **dict.fromkeys(("Allgather", "Allgatherv", "Gather", "Gatherv"), _gathered),
    **dict.fromkeys(("Scatter", "Scatterv", "Reduce_scatter_block"), _scattered),
    "Reduce_scatter": lambda n, p: (*_scattered(n, p), [max(1, n // p)] * p),
    **dict.fromkeys(("Alltoall", "Alltoallv"), _exchanged),
    "barrier": lambda n, p: (),
    **dict.fromkeys(("bcast", "gather", "allgather"), lambda n, p: (1.0,)),
    **dict.fromkeys(("reduce", "allreduce", "scan", "exscan"), lambda n, p: (1.0,)),
    **dict.fromkeys(("scatter", "alltoall"), lambda n, p: ([1.0] * p,)),
}
