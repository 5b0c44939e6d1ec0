"""The alpha-beta-gamma model: the time of an algorithm by its cost formulas, and its parameters.

`select` compares the `seconds` of algorithms where nothing was measured, and reports them as
predictions. `probe` measures the three parameters on the ranks of a communicator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from collectives.algorithms.composition import Composition
from collectives.algorithms.groups import Groups
from collectives.algorithms.registry import Algorithm
from collectives.choice.crossings import crossings

__all__ = ["DEFAULT", "NETWORK", "SEGMENT", "Parameters", "fitted", "seconds"]

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
    assumed : tuple of str
        The names of those that were not measured, and have the library's defaults.
    """

    alpha: float
    beta: float
    gamma: float
    origin: str
    assumed: tuple[str, ...] = ()

    def measured(self) -> dict[str, float]:
        """Return the parameters that were measured, by name. Local."""
        every = {"alpha": self.alpha, "beta": self.beta, "gamma": self.gamma}
        return {name: value for name, value in every.items() if name not in self.assumed}

    def text(self) -> str:
        """Write what was measured, and which parameters could not be fitted. Local."""
        missing = "".join(f", {name} could not be fitted" for name in self.assumed)
        return _text(self.measured()) + missing

    def __str__(self) -> str:
        found = f"{_text(self.measured())} of {self.origin}"
        if not self.assumed:
            return found
        others = {name: getattr(self, name) for name in self.assumed}
        return f"{found}, {_text(others)} of {DEFAULT.origin}"


def _text(values: Mapping[str, float]) -> str:
    return ", ".join(
        f"alpha {1e6 * x:.3g} us" if name == "alpha" else f"{name} {1e9 * x:.3g} ns/B"
        for name, x in values.items()
    )


# Open MPI took 0.65 us, 0.05 ns and 0.022 ns, MPICH 4.7 us, 0.07 ns and 0.023 ns (medians of 3 runs
# of mpiexec -n 2 python benchmarks/measure_model.py; 2 cores, AMD EPYC, 2026-11-20).
DEFAULT = Parameters(1e-6, 0.06e-9, 0.022e-9, "the library's defaults")


# Between two network namespaces with 1 Gbit/s, MPICH took 25.8 us and 8.52 ns, Open MPI 29.2 us and
# 8.56 ns (mpiexec -n 2 -ppn 1 python benchmarks/measure_model.py; EPYC, 2026-11-23).
NETWORK = replace(DEFAULT, alpha=27e-6, beta=8.5e-9, origin="the library's defaults between hosts")


# The part of a latency for which a message of a host waits for the one before it. An allreduce of 8
# bytes between network namespaces, under MPICH 5.0.2 and Open MPI 5.0.11 (collectives bench
# allreduce -b 8 -e 8 --repeat 5 --algorithm ...; EPYC, 2026-11-23):
#
# - 4 of 1 rank: two rounds of one message (butterfly) 79 and 79 us, one of three (all_to_all) 108
#   and 95: for each message behind the first, 0.87 and 0.7 of what a round takes.
#   With 1 KiB, 83 and 92, 117 and 110: what the bytes take comes on top of it.
# - 2 of 2 ranks: one message from each host (leaders) 46 and 62, four (all_to_all) 84 and 83: 0.3
#   and 0.1.
GAP = 0.6  # between these
COUNTED = 64  # ranks up to which messages are counted; more would take too long

# Seconds in which no core copies or folds a byte: it would move 1000 GB/s. What was fitted to less
# is noise.
IMPOSSIBLE = 1e-12


def fitted(alpha: float, beta: float | None, gamma: float | None, origin: str) -> Parameters:
    """Return parameters, with the library's defaults for those that could not be fitted. Local.

    Parameters
    ----------
    alpha, beta, gamma, origin : float, float or None, float or None, str
        As in `Parameters`. None, and values that no machine has, are left out.
    """
    numbers = {"beta": beta, "gamma": gamma}
    known = {name: x for name, x in numbers.items() if x is not None and x > IMPOSSIBLE}
    return Parameters(
        alpha,
        known.get("beta", DEFAULT.beta),
        known.get("gamma", DEFAULT.gamma),
        origin,
        tuple(name for name in numbers if name not in known),
    )


def seconds(
    algorithm: Algorithm,
    p: int,
    nbytes: int,
    known: Parameters,
    segment: int = SEGMENT,
    groups: Groups | None = None,
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
    groups : Groups, optional
        The ranks of each host, if there are several.

    Returns
    -------
    float
        Seconds; infinite where the algorithm states no cost.

    Notes
    -----
    On several hosts with up to 64 ranks, messages are counted, too: in a round in which a host
    sends several to other hosts, each waits for the one before it for a part of the latency. A
    round inside hosts takes the latency of shared memory.

    The phases of a composition follow each other. Those inside groups take the library's defaults
    for shared memory. Those between groups take `known`, which holds when all ranks send: with
    fewer lanes, each has more of the network that the ranks of a host share.
    """
    latency = _latency(algorithm, p, known)
    moving = _moving(algorithm, p, nbytes, known, segment)
    if groups is not None and groups.number > 1 and p <= COUNTED and latency < math.inf:
        queued, inner = crossings(algorithm, groups)
        latency += GAP * known.alpha * queued
        if not isinstance(algorithm, Composition):
            latency -= inner * max(0.0, known.alpha - DEFAULT.alpha)
    return latency + moving


def _latency(algorithm: Algorithm, p: int, known: Parameters) -> float:
    """Return the seconds of all rounds without their bytes."""
    if isinstance(algorithm, Composition):
        phases = algorithm.phases(p)
        alphas = [DEFAULT if phase.near else known for phase in phases]
        return sum(
            _latency(phase.row, phase.ranks, each)
            for phase, each in zip(phases, alphas, strict=True)
        )
    rounds, _, _ = algorithm.totals(p) or (math.inf, 0.0, 0.0)
    return rounds * known.alpha


def _moving(algorithm: Algorithm, p: int, nbytes: int, known: Parameters, segment: int) -> float:
    """Return the seconds in which bytes are sent and folded."""
    if isinstance(algorithm, Composition):
        groups = algorithm.on(p)
        lanes = groups.sizes[0] if algorithm.has_lanes else 1
        between = replace(known, beta=known.beta * lanes / groups.sizes[-1])
        return sum(
            _moving(
                phase.row,
                phase.ranks,
                round(nbytes * phase.share),
                DEFAULT if phase.near else between,
                segment,
            )
            for phase in algorithm.phases(p)
        )
    rounds, sent, folded = algorithm.totals(p) or (math.inf, 0.0, 0.0)
    block = nbytes / algorithm.array_blocks(p)
    # Each round waits for one segment of the round before, even if a rank sends little.
    on_the_way = rounds * min(segment or block, block)
    return max(sent * nbytes, on_the_way) * known.beta + folded * nbytes * known.gamma
