"""The names of ``collectives._core`` on machines without it, as far as ranks in Python go."""

from __future__ import annotations

import time

from collectives.arrays.buffers import DTYPES
from collectives.slow import stations
from collectives.slow.arguments import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    COLLECTIVES,
    EXSCAN,
    GATHER,
    MAKINGS,
    REDUCE,
    REDUCE_SCATTER,
    SCAN,
    SCATTER,
    Parts,
    seconds,
)
from collectives.slow.engine import Choice, Engine, Plan
from collectives.slow.groups import Group
from collectives.slow.kernels import Reduction, reduction_named
from collectives.slow.requests import PlannedCall, Request
from collectives.slow.vectors import compare_counts, counts_of, equal_parts, places

__all__ = [
    "ALLGATHER",
    "ALLREDUCE",
    "ALLTOALL",
    "BARRIER",
    "BROADCAST",
    "COLLECTIVES",
    "DTYPES",
    "EXSCAN",
    "GATHER",
    "MAKINGS",
    "REDUCE",
    "REDUCE_SCATTER",
    "SCAN",
    "SCATTER",
    "Choice",
    "Engine",
    "Group",
    "Parts",
    "Plan",
    "PlannedCall",
    "Reduction",
    "Request",
    "compare_counts",
    "counts_of",
    "equal_parts",
    "places",
    "reduction_named",
    "seconds",
]

STOPPED = 1.0  # seconds between two checks: less may be due to a shared core of the processor


def stopped(looked: float) -> float:
    """Return the seconds since `looked` for which this process was stopped. Local."""
    since = time.monotonic() - looked
    return since if since > STOPPED else 0.0


def guard() -> None:
    """Do nothing: all threads may communicate. Local."""


def advance_all() -> None:
    """Advance every operation in flight of this rank. Local."""
    stations.here().advance()
