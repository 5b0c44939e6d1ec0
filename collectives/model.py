"""The alpha-beta-gamma model: what an algorithm takes by its cost formulas, and the numbers in it.

`seconds` is what `select` compares where nothing was measured, and what it predicts. `probe`
measures the three numbers on the ranks of a communicator.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collectives.registry import Algorithm, get

if TYPE_CHECKING:
    from collectives.communicator import Communicator

__all__ = ["DEFAULT", "SEGMENT", "Parameters", "probe", "seconds"]

# Bytes of a segment where none was measured.
SEGMENT = 128 << 10

# The probe: bytes of a long array; how many calls of a short and of a long one follow each other,
# and how often that is done: of short ones as often as there is time, of long ones once where short
# ones take long, as where ranks share cores. On 2 ranks it took 0.2 to 2.2 ms (2 cores, AMD EPYC,
# 2026-11-21), on 4 hosts with 1 Gbit/s 10 to 20 ms.
LONG = 256 << 10
SHORTS, LONGS = 8, 2
TIMES = 4
ENOUGH = 4e-3  # seconds for short ones
SLOW = 50e-6  # seconds


@dataclass(frozen=True)
class Parameters:
    """What the cost formulas are multiplied by.

    Attributes
    ----------
    alpha, beta, gamma : float
        Seconds for a message, for a byte sent, and for a byte folded.
    origin : str
        Where they come from.
    """

    alpha: float
    beta: float
    gamma: float
    origin: str

    def __str__(self) -> str:
        return (
            f"alpha {1e6 * self.alpha:.3g} us, beta {1e9 * self.beta:.3g} ns/B, "
            f"gamma {1e9 * self.gamma:.3g} ns/B of {self.origin}"
        )


# Open MPI took 0.65 us, 0.05 ns and 0.022 ns, MPICH 4.7 us, 0.07 ns and 0.023 ns (medians of 3 runs
# of mpiexec -n 2 python benchmarks/measure_model.py; 2 cores, AMD EPYC, 2026-11-20).
DEFAULT = Parameters(1e-6, 0.06e-9, 0.022e-9, "the library's defaults")


def seconds(
    algorithm: Algorithm, p: int, nbytes: int, known: Parameters, segment: int = SEGMENT
) -> float:
    """Return the time of an algorithm by its cost formulas. Local.

    Parameters
    ----------
    algorithm : Algorithm
    p, nbytes : int
        Number of ranks, and bytes of the whole array.
    known : Parameters
    segment : int
        Bytes of a segment; 0 for whole blocks.

    Returns
    -------
    float
        Seconds; infinite where the algorithm states no cost.
    """
    rounds, sent, folded = algorithm.totals(p) or (math.inf, 0.0, 0.0)
    block = nbytes / algorithm.array_blocks(p)
    # Each round waits for a segment of the one before, also where a rank sends little.
    on_the_way = rounds * min(segment or block, block)
    moved = max(sent * nbytes, on_the_way) * known.beta
    return rounds * known.alpha + moved + folded * nbytes * known.gamma


def probe(comm: Communicator) -> Parameters:
    """Measure alpha, beta and gamma on the ranks of a communicator, in some ms. Collective.

    Two collectives whose cost is known, of a short and a long array, and their formulas solved.
    So it is what a message takes through the transport that is used, with as many ranks at work.

    Parameters
    ----------
    comm : Communicator
        Of two ranks at least.

    Returns
    -------
    Parameters
        The same on all ranks: of each time, that of the slowest.
    """
    import numpy as np

    p = comm.size
    part = max(1, LONG // 4 // p)
    x, out = np.ones(part * p, np.float32), np.zeros(part * p, np.float32)

    def agreed(call: Callable[[], Any], number: int, times: int) -> float:
        slowest: float = max(comm.mpi.allgather(_least(call, number, times)))
        return slowest

    def shortly(times: int) -> float:
        return agreed(lambda: comm.allgather(x[:1], out[:p], algorithm="bruck"), SHORTS, times)

    short = shortly(1)
    times = TIMES if short < SLOW else 1
    again = min(TIMES, int(ENOUGH / (SHORTS * short)))
    if again:  # what a first message to somebody takes is nothing that it takes afterwards
        short = min(short, shortly(again))
    gathered = agreed(lambda: comm.allgather(x[:part], out, algorithm="bruck"), LONGS, times)
    scattered = agreed(lambda: comm.reduce_scatter(x, out[:part], algorithm="bruck"), LONGS, times)
    return solved(p, x.nbytes, short, gathered, scattered, "the start-up probe")


def solved(
    p: int, nbytes: int, short: float, gathered: float, scattered: float, origin: str
) -> Parameters:
    """Return the numbers that explain three times. Local.

    Parameters
    ----------
    p, nbytes : int
        Number of ranks, and bytes of the long array.
    short, gathered, scattered : float
        Seconds of an allgather of little, and of an allgather and a reduce-scatter of `nbytes`, by
        Bruck's algorithm.
    origin : str
        Who measured.
    """
    gather, scatter = (
        get(name, "bruck").totals(p) or (1.0, 1.0, 1.0) for name in ("allgather", "reduce_scatter")
    )
    alpha = short / gather[0]
    beta = (gathered - short) / (gather[1] * nbytes)
    if beta <= 0:  # it drowns in noise
        beta = DEFAULT.beta
    rest = scattered - scatter[0] * alpha - scatter[1] * nbytes * beta
    return Parameters(alpha, beta, max(0.0, rest) / (scatter[2] * nbytes), origin)


def _least(call: Callable[[], Any], number: int, times: int) -> float:
    """Return the least seconds of a call that follows others, all ranks making as many."""
    call()
    took = []
    for _ in range(times):
        start = time.perf_counter()
        for _ in range(number):
            call()
        took.append((time.perf_counter() - start) / number)
    return min(took)
