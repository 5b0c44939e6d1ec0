"""The time of an algorithm on a flat network, by the formulas of the literature.

TRG is Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH,
2005, doi:10.1177/1094342005051521; CHPG is Chan, Heimlich, Purkayastha, van de Geijn: Collective
communication: theory, practice, and experience, 2007, doi:10.1002/cpe.1206; PJ is Pješivac-Grbović
and others: Performance analysis of MPI collective operations, 2007,
doi:10.1007/s10586-007-0012-0. All of them let a rank send and receive at the same time, one
message each way, and say n bytes of the whole array. They hold where the blocks are equally long.

The cost formulas of the registry say the same for all algorithms, as factors of alpha, n beta and
n gamma.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from collectives.algorithms import get


class Case(NamedTuple):
    """Ranks and bytes, and the times of a message, a byte sent and a byte folded."""

    p: int
    n: int
    alpha: float
    beta: float
    gamma: float

    @property
    def up(self) -> int:
        """The ceiling of log2 p."""
        return (self.p - 1).bit_length()

    @property
    def lg(self) -> int:
        """The floor of log2 p."""
        return self.p.bit_length() - 1

    @property
    def rest(self) -> bool:
        """Return True if p is not a power of two."""
        return self.up != self.lg

    @property
    def share(self) -> float:
        """All bytes but those of one rank."""
        return (self.p - 1) / self.p * self.n

    @property
    def message(self) -> float:
        """The seconds of a message of the whole array."""
        return self.alpha + self.n * self.beta

    @property
    def fold(self) -> float:
        """The seconds to fold the whole array."""
        return self.n * self.gamma


def whole(collective: str, name: str, p: int, unit: int = 24) -> int:
    """Return bytes of which every block has `unit`, or a multiple of it."""
    return unit * p * get(collective, name).blocks(p)


Formula = Callable[[Case], float]


def each(c: Case, rounds: int, nbytes: float, folded: float = 0.0) -> float:
    return rounds * c.alpha + nbytes * c.beta + folded * c.gamma


def linear(c: Case) -> float:
    """Everything comes in at one rank, which folds an array while the next one comes in."""
    if c.p == 1:
        return 0.0
    return (c.p - 1) * max(c.message, c.fold) + min(c.message, c.fold)


def around(c: Case, core: Formula) -> float:
    """The core's formula for a power of two, and for others a message before and one after it."""
    q = 1 << c.lg
    return core(c._replace(p=q)) + c.rest * (2 * c.message + c.fold)


def halving(c: Case) -> float:
    return each(c, c.lg, c.share, c.share)


def doubling(c: Case) -> float:
    return each(c, c.lg, c.share)


def bruck_alltoall(c: Case) -> float:
    """In round i all blocks travel whose distance has the bit i; so about half of them (TRG)."""
    ones = sum(j.bit_count() for j in range(c.p))
    return each(c, c.up, ones * c.n / c.p)


# For any number of ranks. Where no paper is named, nobody waits for a port, and the formula is
# what the rounds of one rank add up to.
ANY: dict[tuple[str, str], Formula] = {
    ("broadcast", "tree"): lambda c: c.up * c.message,  # TRG, CHPG
    ("reduce", "tree"): lambda c: c.up * (c.message + c.fold),  # TRG, CHPG
    ("allreduce", "tree"): lambda c: c.up * (2 * c.message + c.fold),  # CHPG
    ("scatter", "tree"): lambda c: each(c, c.up, c.share),  # TRG, CHPG
    ("gather", "tree"): lambda c: each(c, c.up, c.share),  # CHPG
    ("allgather", "ring"): lambda c: each(c, c.p - 1, c.share),  # TRG, CHPG
    ("allgather", "bruck"): lambda c: each(c, c.up, c.share),  # TRG
    ("reduce_scatter", "ring"): lambda c: each(c, c.p - 1, c.share, c.share),  # CHPG
    ("allreduce", "ring"): lambda c: each(c, 2 * (c.p - 1), 2 * c.share, c.share),  # CHPG
    ("broadcast", "scatter_allgather"): lambda c: each(c, c.up + c.p - 1, 2 * c.share),  # TRG, CHPG
    ("alltoall", "pairwise"): lambda c: each(c, c.p - 1, c.share),  # TRG
    ("alltoall", "bruck"): bruck_alltoall,
    ("allreduce", "butterfly"): lambda c: around(c, lambda q: q.lg * (c.message + c.fold)),
    ("allreduce", "halving_doubling"): lambda c: around(c, lambda q: halving(q) + doubling(q)),
    ("broadcast", "chain"): lambda c: (c.p - 1) * c.message,  # PJ, one segment
    ("reduce", "chain"): lambda c: (c.p - 1) * (c.message + c.fold),
    ("scan", "chain"): lambda c: (c.p - 1) * (c.message + c.fold),
    ("scan", "recursive"): lambda c: c.up * (c.message + c.fold),
    ("barrier", "dissemination"): lambda c: c.up * (c.message + c.fold),
    ("broadcast", "flat"): lambda c: (c.p - 1) * c.message,
    ("reduce", "flat"): linear,
    ("allreduce", "master_worker"): lambda c: linear(c) + (c.p - 1) * c.message,
    ("scatter", "flat"): lambda c: each(c, c.p - 1, c.share),
    ("gather", "flat"): lambda c: each(c, c.p - 1, c.share),
    ("allgather", "direct"): lambda c: each(c, c.p - 1, c.share),
    ("alltoall", "direct"): lambda c: each(c, c.p - 1, c.share),
    ("allreduce", "round_robin"): lambda c: each(c, 2 * (c.p - 1), 2 * c.share, c.share),
    ("allreduce", "circulant"): lambda c: each(c, 2 * c.up, 2 * c.share, c.share),
    ("reduce_scatter", "bruck"): lambda c: each(c, c.up, c.share, c.share),
    ("allgather", "pat"): lambda c: each(c, c.up, c.share),
    ("reduce_scatter", "pat"): lambda c: each(c, c.up, c.share, c.share),
    ("allreduce", "pat"): lambda c: each(c, 2 * c.up, 2 * c.share, c.share),
    ("allreduce", "swing"): lambda c: around(c, lambda q: halving(q) + doubling(q)),
    ("broadcast", "bine"): lambda c: c.up * c.message,
    ("reduce", "bine"): lambda c: c.up * (c.message + c.fold),
    ("broadcast", "circulant"): lambda c: (
        (15 + c.up) * (c.alpha + c.n / 16 * c.beta) if c.p > 1 else 0
    ),
    ("scatter", "bine"): lambda c: each(c, c.up, c.share),
    ("gather", "bine"): lambda c: each(c, c.up, c.share),
}

# For powers of two; the butterflies above are theirs there, too.
POWERS: dict[tuple[str, str], Formula] = {
    ("allgather", "recursive"): doubling,  # TRG, CHPG
    ("reduce_scatter", "recursive"): halving,  # TRG, CHPG
    ("reduce", "reduce_scatter_gather"): lambda c: halving(c) + doubling(c),  # TRG
}


def chain_in_segments(c: Case, segments: int) -> float:
    """A broadcast down a chain in equal segments: PJ's pipeline."""
    return (c.p + segments - 2) * (c.alpha + c.n / segments * c.beta)
