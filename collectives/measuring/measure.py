"""The measurement: what the ranks of ``collectives bench`` run.

How times are measured
----------------------
A *block* is a number of iterations, back to back, after a barrier. The ranks read their clocks at
its beginning and end, and the time of one iteration is the time of the block divided by the number
of iterations. So the skew with which the ranks leave the barrier is divided by that number as well.

- If every rank needs something from every other (*allreduce, barrier, allgather, reduce_scatter,
  alltoall*), no rank can begin an iteration before all have begun the one before, so the block is
  a chain of complete operations. In a *sendrecv* a rank waits for its neighbour; nccl-tests
  measures such a block in the same way.
- In *reduce, broadcast, gather, scatter, scan, exscan*, a rank can run ahead of the others, and a
  block would measure the throughput of a pipeline. Therefore MPI's barrier follows each iteration,
  so that it lasts until the last rank is done. The barriers alone are measured in the same way in
  each round of blocks, and their time is subtracted. Differences that are smaller than the noise of
  the barrier have no meaning.

Blocks of MPI's own collective, of other peers and of the algorithms alternate, and medians over the
rounds of blocks are reported, so that a drift of the machine affects all of them. If buffers are
small enough, iterations use several in turn, with different contents. Results are verified outside
the timed blocks, from poisoned outputs, by a run of iterations without pauses.

On request, all ranks copy as many bytes as the array has, at the same time, from private memory to
private memory, with stores that bypass the cache. These copies alternate with the other blocks.
Their time is a lower limit for an operation in which each rank reads and writes a large array.
"""

from __future__ import annotations

import statistics
from typing import Any

from collectives.measuring.bench import Bench
from collectives.measuring.contest import BARRIER, Contest, Settings


def measure(bench: Bench, settings: Settings, count: int) -> list[dict[str, Any]]:
    """Measure one size. Collective."""
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
