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
from typing import Any

from collectives.measuring.bench import Bench
from collectives.measuring.contest import BARRIER, Contest, Settings

__all__ = ["measure"]


def measure(bench: Bench, settings: Settings, count: int) -> list[dict[str, Any]]:
    """Measure one size. Collective.

    Parameters
    ----------
    bench : Bench
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
    contest = Contest(bench, settings, count)
    times, iterations = contest.run()
    barriers = times.pop(BARRIER, [0.0])
    baseline = statistics.median(barriers)
    rows = []
    for label, blocks in times.items():
        chained = contest.has_barriers(label)
        own = [block - baseline if chained else block for block in blocks]
        everybody = bench.mpi.allgather(own)
        noise = bench.mpi.allgather(_noise(own) + (_noise(barriers) if chained else 0.0))
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
