"""The machine: facts about it, the distance of two ranks, and the speed of memory copies.

On a virtual machine, the cores may share a cache in one minute and not in the next, and the times
of small messages change with that. So measurements record the state of the machine.
"""

from __future__ import annotations

import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collectives import Communicator, __version__, _core
from collectives.choice import model, profile
from collectives.choice.timing import block
from collectives.process import binding

# Seconds of a round trip. On 2 cores of an EPYC VM it took 75 to 120 ns near and 500 to 560 ns far,
# and 16 us or more if both ranks had one core (collectives doctor; 2026-11-20).
NEAR, FAR = 250e-9, 5e-6

TRIPS, TRIES = 31, 5  # number of times in a median, and of medians, the least of which is used
NAP = 1e-3  # seconds between two polls of a rank that sleeps


def round_trip(comm: Communicator, mpi: Any) -> float | None:
    """Return the seconds in which a flag goes from rank 0 to rank 1 and back. Collective.

    This is a median of many round trips, in a phase when both ranks run at the same time, if there
    is one. Return None if they share no memory. The other ranks sleep.
    """
    segment = comm._segment
    seconds = None
    if comm.rank < 2 and segment is not None and {0, 1} <= set(segment.ranks):
        seconds = min(segment.round_trip(1 - comm.rank, TRIPS) for _ in range(TRIES))
    rest(mpi)
    measured: float | None = mpi.bcast(seconds)
    return measured


def name(seconds: float | None) -> str | None:
    """Return ``"near"``, ``"far"``, or ``"busy"`` if the two ranks took turns on a core. Local."""
    if seconds is None:
        return None
    return "near" if seconds < NEAR else "far" if seconds < FAR else "busy"


def text(trips: Sequence[float | None]) -> str:
    """Return the state of the machine as text, from one or more round trips. Local."""
    known = sorted(seconds for seconds in trips if seconds is not None)
    if not known:
        return "ranks 0 and 1 share no memory"
    names = [str(name(seconds)) for seconds in known]
    counts = {each: names.count(each) for each in dict.fromkeys(names)}
    words = ", ".join(f"{each} at {n} of {len(known)} sizes" for each, n in counts.items())
    if len(counts) == 1:
        words = names[0]
    span = f" (from {1e9 * known[0]:.0f} to {1e9 * known[-1]:.0f})" if len(known) > 1 else ""
    median = 1e9 * statistics.median(known)
    return f"{words}; a flag from rank 0 to rank 1 and back takes {median:.0f} ns{span}"


def copies(nbytes: int, number: int) -> list[Any]:
    """Prepare calls that copy from private to private memory, bypassing the cache. Local."""
    return [
        partial(
            _core.copy_array, np.zeros(nbytes, np.uint8), np.ones(nbytes, np.uint8), model.PAYLOADS
        )
        for _ in range(number)
    ]


def copy_seconds(nbytes: int, times: int) -> float:
    """Return the median seconds of a copy that bypasses the cache. Local."""
    (copy,) = copies(nbytes, 1)
    copy()
    return statistics.median(block([copy], 1) for _ in range(times))


def alone(mpi: Any, rank: int, nbytes: int, times: int) -> float | None:
    """Return the result of `copy_seconds` on one rank, while the others sleep. Collective."""
    seconds = copy_seconds(nbytes, times) if mpi.Get_rank() == rank else None
    rest(mpi)
    return seconds


def rest(mpi: Any) -> None:
    """Wait for all ranks without using a core, which ranks at work may need."""
    request = mpi.Ibarrier()
    while not request.Test():
        time.sleep(NAP)


def host() -> dict[str, Any]:
    """Return facts about this host and its software, without MPI. Local."""
    return {
        "host": platform.node(),
        "cpu": profile.machine()[0],
        "cores": profile.machine()[1],
        "isa": _core.kernels_isa(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "collectives": __version__,
        "commit": _commit(),
        "command": shlex.join(["collectives", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def machine(MPI: Any, mpi: Any) -> dict[str, Any]:
    """Return library, thread level, hosts and cores of the ranks in `mpi`. Collective."""
    everybody = mpi.allgather((platform.node(), sorted(os.sched_getaffinity(0))))
    cores = {(name, core) for name, mask in everybody for core in mask}
    return {
        "mpi": binding.library_name(MPI),
        "ranks": mpi.Get_size(),
        "hosts": len({name for name, _ in everybody}),
        "usable_cores": len(cores),
        "cores_per_rank": sorted({len(mask) for _, mask in everybody}),
        "thread_level": thread_level(MPI),
    }


def thread_level(MPI: Any) -> str:
    """Return the name of the level of threads that MPI supports. Local."""
    names = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    level = MPI.Query_thread()
    return next(each.lower() for each in names if getattr(MPI, f"THREAD_{each}") == level)


def _commit() -> str | None:
    """Return the commit of the checkout that this package is in, or None."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
