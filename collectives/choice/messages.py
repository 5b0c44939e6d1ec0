"""The choice between MPI's messages and those of UCX, for communicators on several hosts.

``COLLECTIVES_MESSAGES`` names one of them, or lets the library measure both. The times are in the
profile, so that one program measures and later programs know.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from collectives.choice.sections import Compared
from collectives.process.settings import MESSAGES
from collectives.text import logs
from collectives.text.words import size_text

KNOWN, MPI, UCX, AUTO = MESSAGES

# Bytes of the arrays that are measured, with the number of consecutive calls. With four hosts and 1
# Gbit/s, the measurement takes two seconds.
SIZES = {8: 20, 1 << 10: 20, 16 << 10: 10, 256 << 10: 3, 1 << 20: 2}
TURNS = 5

WORTH = 0.95  # of MPI's times, above which UCX is not worth a second library


def ratio(times: Compared) -> float:
    """Return the geometric mean of the times by UCX over those by MPI. Local."""
    return math.exp(statistics.fmean(math.log(ucx / mpi) for _, mpi, ucx in times))


def choice(times: Compared) -> str:
    """Return the faster messages by measured times. Local."""
    return UCX if ratio(times) < WORTH else MPI


def measured(comms: Mapping[str, Any]) -> Compared:
    """Measure an allreduce on communicators of the same ranks with both kinds of messages; return
    the times, medians of the slowest ranks. Collective.
    """
    found = []
    for nbytes, calls in SIZES.items():
        x = np.zeros(nbytes // 4, np.float32)
        took: dict[str, list[float]] = {name: [] for name in comms}
        for turn in range(TURNS + 1):
            for name, comm in comms.items():
                comm.barrier()
                began = time.perf_counter()
                for _ in range(calls if turn else 1):  # the first turn connects the ranks
                    comm.allreduce(x, x)
                if turn:
                    took[name].append((time.perf_counter() - began) / calls)
        everybody = next(iter(comms.values()))._meeting.allgather(took)
        mpi, ucx = (
            statistics.median(map(max, zip(*(each[name] for each in everybody), strict=True)))
            for name in (MPI, UCX)
        )
        found.append((nbytes, mpi, ucx))
    return tuple(found)


def tell(times: Compared, library: str, ucx: str) -> None:
    """Log measured times and the choice. Local."""
    told = ", ".join(
        f"{size_text(nbytes)}: {1e6 * mpi:.0f} us by {library} and {1e6 * other:.0f} by {ucx}"
        for nbytes, mpi, other in times
    )
    name = ucx if choice(times) == UCX else library
    logs.note("INFO", f"messages between hosts go by {name}; times of an allreduce: {told}")
