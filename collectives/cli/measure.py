"""The measurement: what runs in the ranks of ``collectives bench``.

How time is taken
-----------------
A *block* is some iterations, back to back, after a barrier; the ranks' clocks are read at its two
ends, and the time of one iteration is the block's time divided by their number. So the skew with
which ranks leave the barrier is divided by that number as well.

- Where every rank needs something of every other (*allreduce, barrier, allgather,
  reduce_scatter, alltoall*), no rank can begin an iteration before all have begun the one before,
  so the block is a chain of complete operations. In a *sendrecv* a rank waits for its neighbour,
  and the block is what nccl-tests measures.
- *reduce, broadcast, gather, scatter, scan, exscan*: nothing keeps a rank from running ahead, and
  what is measured would be a pipeline's throughput. Each iteration is followed by MPI's barrier,
  so that it lasts until the last rank is done; the barriers alone are measured in the same way in
  each round of blocks, and their time is subtracted. Differences below the barrier's own noise
  mean nothing.

Blocks of MPI's own collective, of other peers and of the algorithms alternate, and medians over the
rounds of blocks are reported, so that a drift of the machine hits all alike. Iterations walk over
several buffers with different contents where these are small enough. Results are verified outside
the timed blocks, from poisoned outputs, by a run of iterations without a pause between them.

In the same turns, if that is wanted, all ranks at once copy as many bytes as the array has, from
private memory to private memory and past the cache: what memory allows at best to an operation in
which each rank reads a large array and writes one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from collectives import Communicator
from collectives.cli.contest import (
    BARRIER,
    COPY,
    MPI_LABEL,
    PEERS,
    Contest,
    Entry,
    Settings,
)
from collectives.cli.gloo import GLOO_LABEL, Gloo, Prepared
from collectives.cli.operations import Arrays
from collectives.cli.room import Room

__all__ = ["COPY", "MPI_LABEL", "PEERS", "Bench", "Entry", "Settings"]


class Bench:
    """The ranks that measure. Collective.

    Parameters
    ----------
    comm, mpi : Communicator, mpi4py.MPI.Intracomm
        The same ranks, for the library's algorithms and for MPI's own collectives.
    progress : callable
        Told what is being measured.
    gloo : Gloo, optional
        The peer beside MPI's own.
    """

    def __init__(
        self,
        comm: Communicator,
        mpi: Any,
        progress: Callable[[str], None] = lambda text: None,
        gloo: Gloo | None = None,
    ) -> None:
        from mpi4py import MPI

        self.comm, self.mpi, self.progress, self.MPI = comm, mpi, progress, MPI
        self.gloo = gloo
        self._segmented: dict[int | None, Communicator] = {None: comm}
        self._rooms: dict[int | None, Room] = {}

    def communicator(self, segment: int | None) -> Communicator:
        """Return a communicator that decides on segments of this size. Collective.

        A communicator keeps its decisions, so that each size of segments has one of its own.
        """
        if segment not in self._segmented:
            self._segmented[segment] = self.comm.dup()
        return self._segmented[segment]

    def room(self, segment: int | None) -> Room:
        """Return the shared memory of a communicator for segments of this size. Collective."""
        if segment not in self._rooms:
            self._rooms[segment] = Room(self.communicator(segment))
        return self._rooms[segment]

    def peers(self, arrays: Arrays) -> dict[str, Prepared]:
        """Prepare the calls of all peers that have one. Collective."""
        theirs = arrays.theirs(self.mpi, self.MPI)
        found = {} if theirs is None else {MPI_LABEL: Prepared(theirs)}
        prepared = None if self.gloo is None else self.gloo.prepare(arrays)
        if prepared is not None:
            found[GLOO_LABEL] = prepared
        return found

    def measure(self, settings: Settings, count: int) -> list[dict[str, Any]]:
        """Measure one size. Collective.

        Parameters
        ----------
        settings : Settings
        count : int
            Number of elements; see `Operation.elements`.

        Returns
        -------
        list of dict
            A row for each contestant, peers first: ``entry`` (None for a peer, and for the copies),
            ``algorithm`` (its label; `COPY`), ``chosen`` (the algorithm that ran), ``seconds`` (a
            list over ranks), ``noise`` (seconds by which blocks differ from their median, in the
            median), ``blocks`` (seconds of each block, the median over ranks), ``wrong`` (None if
            not verified), ``iterations``.
        """
        contest = Contest(self, settings, count)
        times, iterations = contest.run()
        barriers = times.pop(BARRIER, [0.0])
        baseline = statistics.median(barriers)
        rows = []
        for label, blocks in times.items():
            chained = contest.has_barriers(label)
            own = [block - baseline if chained else block for block in blocks]
            everybody = self.mpi.allgather(own)
            noise = self.mpi.allgather(_noise(own) + (_noise(barriers) if chained else 0.0))
            entry = contest.entries.get(label)
            rows.append(
                {
                    "entry": entry,
                    "algorithm": label,
                    "chosen": contest.chosen(label),
                    "seconds": [max(0.0, statistics.median(each)) for each in everybody],
                    "noise": statistics.median(noise),
                    "blocks": [statistics.median(each) for each in zip(*everybody, strict=True)],
                    "wrong": contest.wrong(label),
                    "iterations": iterations[label],
                }
            )
        return rows


def _noise(blocks: list[float]) -> float:
    """Return the median distance of the blocks from their median."""
    middle = statistics.median(blocks)
    return statistics.median(abs(block - middle) for block in blocks)
