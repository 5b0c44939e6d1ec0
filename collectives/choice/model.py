"""The alpha-beta-gamma model: the time of an algorithm by its cost formulas, and its parameters.

`select` compares the `seconds` of algorithms where nothing was measured, and reports them as
predictions. `probe` measures the three parameters on the ranks of a communicator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from collectives.algorithms.registry import Algorithm

__all__ = ["DEFAULT", "SEGMENT", "Parameters", "seconds"]

# The size of a segment in bytes, where none was measured.
SEGMENT = 128 << 10


@dataclass(frozen=True)
class Parameters:
    """The parameters of the cost formulas.

    Attributes
    ----------
    alpha, beta, gamma : float
        Seconds for a message, for a byte sent, and for a byte folded.
    origin : str
        Where the values come from.
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
    # Each round waits for one segment of the round before, even if a rank sends little.
    on_the_way = rounds * min(segment or block, block)
    moved = max(sent * nbytes, on_the_way) * known.beta
    return rounds * known.alpha + moved + folded * nbytes * known.gamma
