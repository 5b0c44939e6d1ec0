"""The two ranks of ``collectives doctor``: they report themselves, and measure shared memory."""

from __future__ import annotations

import json
import os
import platform
import warnings
from typing import Any

import numpy as np

from collectives import MIN, Communicator, world
from collectives.devices import runtime
from collectives.errors import SharedMemoryWarning
from collectives.measuring import state
from collectives.measuring.doctor import GPU, MEMORY, PROBE
from collectives.process import segment
from collectives.process.settings import STORES
from collectives.text.words import count

COPIED = 64 << 20  # bytes, more than in most caches
COPIES = 5


def main() -> None:
    """Write a line for each rank, and one of rank 0 about their memory. Collective."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SharedMemoryWarning)
        comm = world()
    from mpi4py import MPI

    levels = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }
    total = comm.allreduce(np.full(1000, comm.rank + 1.0))
    right = bool((total == comm.size * (comm.size + 1) / 2).all())
    _write(
        f"{PROBE}rank {comm.rank} of {comm.size} on {platform.node()}, "
        f"{count(len(os.sched_getaffinity(0)), 'core')}, local rank {comm.local_rank} of "
        f"{comm.local_size}, thread level {levels[MPI.Query_thread()]}, "
        f"allreduce {'right' if right else 'WRONG'}"
    )
    facts = memory(comm, comm.mpi.Dup())
    told = [str(each.message) for each in caught if each.category is SharedMemoryWarning]
    facts["warning"] = told[0] if told else None
    if comm.rank == 0:
        _write(MEMORY + json.dumps(facts))
    for line in transports(comm):
        if comm.rank == 0:
            _write(GPU + line)


def memory(comm: Communicator, mpi: Any) -> dict[str, Any]:
    """Return what memory the ranks of this host share, how fast it is, and what follows from that.
    Collective.
    """
    engine, shared = comm._engine, comm._segment
    facts: dict[str, Any] = {
        "settings": {
            **segment.settings(),
            "spins": engine.spins,
            "stores": STORES[engine.stores],
            "stall_warning": engine.warning,
            "timeout": engine.timeout,
        }
    }
    if shared is None:
        return facts
    one = state.alone(mpi, 0, COPIED, COPIES)
    mpi.Barrier()
    all_at_once = mpi.allgather(state.copy_seconds(COPIED, COPIES))
    return {
        **facts,
        "ranks": comm.local_size,
        "cores": comm._place.cores,
        "kind": shared.kind,
        "nbytes": shared.nbytes,
        "lanes": shared.lanes,
        "lane_bytes": shared.lane_bytes,
        "round_trip": state.round_trip(comm, mpi),
        "copy_alone": one,
        "copy_at_once": max(all_at_once),
        "copied": COPIED,
    }


def transports(comm: Communicator) -> list[str]:
    """Return how arrays in the memory of GPUs travel between the ranks, line by line; nothing where
    a rank has none.
    Collective.
    """
    driver = runtime.found()
    if not comm.allreduce(np.array([not isinstance(driver, str)]), op=MIN)[0]:
        return []
    assert not isinstance(driver, str)
    device = comm.local_rank % driver.devices()
    return str(comm._devices().transports.survey(comm._engine, driver, device)).splitlines()


def _write(line: str) -> None:
    """Write a line at once, so that lines of different ranks do not mix."""
    os.write(1, f"{line}\n".encode())
