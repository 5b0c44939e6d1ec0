"""The measurement: the calls that the ranks of ``collectives bench`` run, and their times.

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
from dataclasses import dataclass, field, replace

import numpy as np

from collectives.measuring import state
from collectives.measuring.bench import MPI_LABEL, PEERS, Bench
from collectives.measuring.contest import BARRIER, COPY, Contest, Settings

# Times are compared with the limit for so many bytes and more. Smaller arrays may be in a cache,
# which collectives use and which the copies bypass.
LARGE = 1 << 20


@dataclass
class Row:
    """The measurements of one contestant at one size; JSON has the same names.

    Bytes are those of the whole array: of the larger one, if input and output differ in size. Times
    are in us, over the ranks. Bandwidths are in GB/s = 1e9 B/s, from the median over ranks.
    ``ratios`` are that median divided by each peer's (less than 1 is faster than the peer);
    ``ratio`` is the one for MPI. ``limit_us`` is the time in which every rank copies as many bytes.
    ``of_limit`` is that time divided by the median, for large arrays. ``noise_us`` is the median
    distance of the blocks from their median, and from that of barriers that were subtracted; a
    median below it tells nothing, and has no bandwidth. ``round_trip_ns`` and ``state`` describe
    the machine.
    """

    collective: str
    ranks: int
    asked: int
    bytes: int
    count: int
    dtype: str
    algorithm: str  # as `Entry` writes it, or a peer
    chosen: str
    min_us: float
    median_us: float
    max_us: float
    algbw: float
    busbw: float
    wrong: int | None = None
    ratio: float | None = None
    ratios: dict[str, float] = field(default_factory=dict)
    limit_us: float | None = None
    of_limit: float | None = None
    round_trip_ns: float | None = None
    state: str | None = None
    best: bool = False
    iterations: int = 0
    noise_us: float = 0.0
    blocks_us: list[float] = field(default_factory=list)

    @property
    def is_peer(self) -> bool:
        """True if this is not a call of the library."""
        return self.algorithm in PEERS

    @property
    def is_noise(self) -> bool:
        """True if the time is too short to be told from the noise of the measurement."""
        return self.median_us <= self.noise_us

    @property
    def is_default(self) -> bool:
        """True if the library has chosen the algorithm."""
        return self.algorithm.partition("/")[0] == "auto"


def measure(
    bench: Bench, settings: Settings, count: int, asked: int = 0, trip: float | None = None
) -> list[Row]:
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
        seconds = [max(0.0, statistics.median(each)) for each in everybody]
        median = statistics.median(seconds)
        own_noise = statistics.median(noise)
        algbw = contest.nbytes / median / 1e9 if median > own_noise else 0.0
        rows.append(
            Row(
                collective=settings.operation,
                ranks=bench.comm.size,
                asked=asked,
                bytes=contest.nbytes,
                count=count,
                dtype=np.dtype(settings.dtype).name,
                algorithm=label,
                chosen=contest.chosen(label),
                min_us=min(seconds) * 1e6,
                median_us=median * 1e6,
                max_us=max(seconds) * 1e6,
                algbw=algbw,
                busbw=algbw * contest.operation.bus_factor(bench.comm.size),
                wrong=contest.wrong(label),
                round_trip_ns=None if trip is None else trip * 1e9,
                state=state.name(trip),
                iterations=iterations[label],
                noise_us=own_noise * 1e6,
                blocks_us=[1e6 * statistics.median(each) for each in zip(*everybody, strict=True)],
            )
        )
    return compared(rows)


def compared(rows: list[Row]) -> list[Row]:
    """Hold the rows of one size against those of the peers, and of copies, which are left out."""
    times = {row.algorithm: row.median_us for row in rows if not row.is_noise}
    copy = times.pop(COPY, None)
    best = min(times.values(), default=None)
    result = []
    for row in rows:
        if row.algorithm == COPY:
            continue
        us = row.median_us
        ratios = {peer: us / times[peer] for peer in PEERS if peer in times and not row.is_noise}
        reached = copy / us if copy and not row.is_noise and row.bytes >= LARGE else None
        result.append(
            replace(
                row,
                ratio=ratios.get(MPI_LABEL),
                ratios=ratios,
                limit_us=copy,
                of_limit=reached,
                best=us == best and not row.is_noise,
            )
        )
    return result


def _noise(blocks: list[float]) -> float:
    """Return the median distance of the blocks from their median."""
    middle = statistics.median(blocks)
    return statistics.median(abs(block - middle) for block in blocks)
