"""The benchmark's report as data: derived numbers, and facts about the machine."""

from __future__ import annotations

import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from collectives import __version__, _core
from collectives.choice import profile
from collectives.measuring import state
from collectives.measuring.bench import MPI_LABEL, PEERS
from collectives.measuring.contest import COPY
from collectives.measuring.operations import Operation
from collectives.process import binding

# Times are compared with the limit for so many bytes and more. Smaller arrays may be in a cache,
# which collectives use and which the copies bypass.
LARGE = 1 << 20


def rows(
    measured: list[dict[str, Any]],
    operation: Operation,
    p: int,
    asked: int,
    count: int,
    dtype: Any,
    trip: float | None = None,
) -> list[dict[str, Any]]:
    """Derive the report's rows from one size's measurements. Local.

    Bytes are those of the whole array: of the larger one, if input and output differ in size. Times
    are in us, over the ranks. Bandwidths are in GB/s = 1e9 B/s, from the median over ranks.
    ``ratios`` are that median divided by each peer's (less than 1 is faster than the peer);
    ``ratio`` is the one for MPI. ``limit_us`` is the time in which every rank copies as many bytes.
    ``of_limit`` is that time divided by the median, for large arrays. ``round_trip_ns`` and
    ``state`` describe the machine.
    """
    derived = []
    nbytes = count * dtype.itemsize
    medians = {row["algorithm"]: statistics.median(row["seconds"]) for row in measured}
    copy = medians.pop(COPY, None)
    # A time of zero after subtraction of the barrier is too short to be measured.
    best = min((t for t in medians.values() if t > 0), default=None)
    for row in measured:
        if row["algorithm"] == COPY:
            continue
        median = medians[row["algorithm"]]
        algbw = nbytes / median / 1e9 if median > 0 else 0.0
        ratios = {
            peer: median / medians[peer]
            for peer in PEERS
            if medians.get(peer, 0.0) > 0 and median > 0
        }
        derived.append(
            {
                "collective": operation.name,
                "ranks": p,
                "asked": asked,
                "bytes": nbytes,
                "count": count,
                "dtype": dtype.name,
                "algorithm": row["algorithm"],
                "chosen": row["chosen"],
                "min_us": min(row["seconds"]) * 1e6,
                "median_us": median * 1e6,
                "max_us": max(row["seconds"]) * 1e6,
                "algbw": algbw,
                "busbw": algbw * operation.bus_factor(p),
                "wrong": row["wrong"],
                "ratio": ratios.get(MPI_LABEL),
                "ratios": ratios,
                "limit_us": None if copy is None else copy * 1e6,
                "of_limit": copy / median if copy and median > 0 and nbytes >= LARGE else None,
                "round_trip_ns": None if trip is None else trip * 1e9,
                "state": state.name(trip),
                "best": median == best,
                "iterations": row["iterations"],
                "noise_us": row["noise"] * 1e6,
                "blocks_us": [seconds * 1e6 for seconds in row["blocks"]],
            }
        )
    return derived


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
    levels = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }
    everybody = mpi.allgather((platform.node(), sorted(os.sched_getaffinity(0))))
    cores = {(name, core) for name, mask in everybody for core in mask}
    return {
        "mpi": binding.library_name(MPI),
        "ranks": mpi.Get_size(),
        "hosts": len({name for name, _ in everybody}),
        "usable_cores": len(cores),
        "cores_per_rank": sorted({len(mask) for _, mask in everybody}),
        "thread_level": levels[MPI.Query_thread()],
    }


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
