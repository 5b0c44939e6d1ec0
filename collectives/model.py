"""The alpha-beta-gamma model: what an algorithm takes by its cost formulas, and the numbers in it.

`seconds` is what `select` compares where nothing was measured, and what it predicts. `probe`
measures the three numbers on the ranks of a communicator.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collectives.registry import Algorithm, get

if TYPE_CHECKING:
    from collectives.communicator import Communicator

__all__ = ["DEFAULT", "SEGMENT", "Parameters", "blocks", "probe", "seconds"]

# Bytes of a segment where none was measured.
SEGMENT = 128 << 10

# The probe: bytes of a long array, and calls of each size.
# On 2 ranks it takes under 2 ms, on 8 ranks of 2 cores some 10 ms.
LONG = 256 << 10
CALLS = {8: 16, LONG: 5}


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


def blocks(algorithm: Algorithm, p: int) -> int:
    """Return the blocks of `algorithm` in a whole array of `p` ranks. Local."""
    contract = algorithm.collective
    return algorithm.blocks(p) // contract.parts(p) * contract.per_array(p)


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
    block = nbytes / blocks(algorithm, p)
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
    small, large = (max(1, nbytes // 4 // p) for nbytes in CALLS)
    x, out = np.ones(large * p, np.float32), np.zeros(large * p, np.float32)
    calls = (
        (
            "allgather",
            small,
            lambda: comm.allgather(x[:small], out[: small * p], algorithm="bruck"),
        ),
        ("allgather", large, lambda: comm.allgather(x[:large], out, algorithm="bruck")),
        ("reduce_scatter", large, lambda: comm.reduce_scatter(x, out[:large], algorithm="bruck")),
    )
    times = []
    for (_, _, call), number in zip(calls, [*CALLS.values(), CALLS[LONG]], strict=True):
        times.append(_typical(call, number))
    short, gathered, scattered = (
        max(each) for each in zip(*comm.mpi.allgather(times), strict=True)
    )
    return solved(p, 4 * p * large, short, gathered, scattered, "the start-up probe")


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
    beta = max(0.0, gathered - short) / (gather[1] * nbytes)
    rest = scattered - scatter[0] * alpha - scatter[1] * nbytes * beta
    return Parameters(alpha, beta, max(0.0, rest) / (scatter[2] * nbytes), origin)


def _typical(call: Any, number: int) -> float:
    """Return the median seconds of some calls, all ranks making as many."""
    call()
    times = []
    for _ in range(number):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[number // 2]
