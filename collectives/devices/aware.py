"""Whether MPI accepts device pointers (CUDA-aware MPI).

An MPI that does not take them ends the process when it is given one. What the library says of
itself (``MPIX_Query_cuda_support``) is how it was built, and not whether the transport that it has
chosen works with device memory. So a job of two other processes tries it first (`trial`).
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from collectives import _core
from collectives.devices import trial
from collectives.devices.driver import Driver
from collectives.devices.ipc import fold_of
from collectives.devices.job import Job
from collectives.devices.peers import Peers
from collectives.process import binding, hosted
from collectives.text.words import plain

QUERY = "MPIX_Query_cuda_support"
SINCE = {"mpich": 4}  # the version from which on the question is safe
LONGEST = 30.0  # seconds for a trial, for which the ranks of the job wait


def probe(engine: _core.Engine, driver: Driver, device: int) -> str | None:
    """Return why this rank cannot use the transport, or None. Local.

    On the first rank of each host, if the transport is asked for, it takes as long as a job of two
    processes.
    """
    devices = engine.devices()
    if devices.transports.forced != "mpi":
        return "COLLECTIVES_DEVICE_TRANSPORT does not ask for it"
    reason = None
    if engine.size > 1:
        reason = refusal()
        if reason is None and _is_first(engine):
            reason = _tried(device, min(LONGEST, engine.timeout / 2))
    if reason is None and device not in devices.apart:
        try:
            devices.apart[device] = Peers(driver, device, 0, True)
        except Exception as error:  # a driver's own
            reason = plain(error)
    return reason


def refusal() -> str | None:
    """Return why this process cannot hand device pointers to MPI, or None. Local."""
    MPI = binding.load()
    if isinstance(MPI, hosted.Job):
        return "the ranks communicate without MPI"
    name, says = binding.library_name(MPI), _says(MPI)
    if says is None:
        return f"{name} does not say whether it accepts device pointers ({QUERY})"
    return None if says else f"{name} does not accept device pointers ({QUERY} says 0)"


def takes(job: Job) -> bool:
    """Return whether the transport runs a call; the others go through the host. Local, and the same
    on all ranks.
    """
    return fold_of(job) is not None


def _says(MPI: Any) -> bool | None:
    """Return what the library says of itself, or None if it cannot be asked."""
    words = binding.library_name(MPI).split()
    since = SINCE.get(binding.family(MPI), 0)
    version = words[-1].partition(".")[0]
    if since and not (version.isdigit() and int(version) >= since):
        return None
    for path in (None, MPI.__file__):
        query = getattr(ctypes.CDLL(path), QUERY, None)
        if query is not None:
            return bool(query())
    return None


def _is_first(engine: _core.Engine) -> bool:
    """Return whether this rank is the first of its host."""
    hosts = engine.hosts or [""] * engine.size
    return bool(hosts.index(hosts[engine.rank]) == engine.rank)


@functools.cache
def _tried(device: int, limit: float) -> str | None:
    return trial.failure(device, limit)
