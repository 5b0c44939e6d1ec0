"""The test that MPI accepts device pointers (CUDA-aware MPI).

An MPI without this support crashes the process when it is given a device pointer.
``MPIX_Query_cuda_support`` returns whether the library was built with it, but the network layer
that MPI selects at run time may not work with device memory. So a rank first starts a job of two
other processes on its host, which send each other messages from device to device. Each of them runs
``python -m collectives.devices.cuda_aware_mpi DEVICE``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from collectives import _core
from collectives.devices import runtime
from collectives.devices.driver import Driver
from collectives.devices.ipc import fold_of
from collectives.devices.peers import Peers
from collectives.devices.requests import DeviceCall
from collectives.process import binding, hosted
from collectives.process.environment import SET_BY_LAUNCHERS
from collectives.text.words import plain

QUERY = "MPIX_Query_cuda_support"
SINCE = {"mpich": 4}  # the first version whose query is safe
LONGEST = 30.0  # seconds for a trial, for which the ranks of the job wait

# Bytes of the messages: MPI sends short ones at once, and long ones when they are received.
SIZES = 8, 8192, 1 << 20

SAYS = "trial: "  # the prefix of the report of a process

# Variables that users and batch systems set for the ranks of the job around.
SET = "HYDRA_", "COLLECTIVES_", "SLURM_", "PBS_", "LSB_", "PE_HOSTFILE"


def probe(engine: _core.Engine, driver: Driver, device: int) -> str | None:
    """Return the reason why this rank cannot use the transport, or None. Local.

    If the transport is asked for, the first rank of each host runs a job of two processes.
    """
    devices = engine.devices()
    if devices.transports.forced != "mpi":
        return "COLLECTIVES_DEVICE_TRANSPORT does not ask for it"
    reason = None
    if engine.size > 1:
        reason = refusal()
        if reason is None and _is_first(engine):
            reason = failure(device, min(LONGEST, engine.timeout / 2))
    if reason is None and device not in devices.apart:
        try:
            devices.apart[device] = Peers(driver, device, 0, True)
        except Exception as error:  # a driver's own
            reason = plain(error)
    return reason


def refusal() -> str | None:
    """Return the reason why this process cannot hand device pointers to MPI, or None. Local."""
    MPI = binding.load()
    if isinstance(MPI, hosted.HostedJob):
        return "the ranks communicate without MPI"
    name, says = binding.library_name(MPI), _says(MPI)
    if says is None:
        return f"{name} does not say whether it accepts device pointers ({QUERY})"
    return None if says else f"{name} does not accept device pointers ({QUERY} says 0)"


def takes(job: DeviceCall) -> bool:
    """Return whether the transport runs a call; the others go through the host. Local, and the same
    on all ranks.
    """
    return fold_of(job) is not None


def _says(MPI: Any) -> bool | None:
    """Return the library's answer to the query, or None if it has none."""
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


# -- the trial -------------------------------------------------------------------------------------


@functools.cache
def failure(device: int, limit: float) -> str | None:
    """Return the fault of a trial, or None. Local."""
    program = ["-m", "collectives.devices.cuda_aware_mpi", str(device)]
    return ended([sys.executable, "-m", "collectives", "run", "-n", "2", *program], limit)


def ended(command: Sequence[str], limit: float) -> str | None:
    """Return the fault of a job, or None. Local."""
    what = "a trial with two processes on this host"
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
            errors="replace",
        )
    except OSError as error:
        return f"{what} could not be started: {plain(error)}"
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"{what} did not end in {limit:g} s"
    if process.returncode == 0:
        return None
    lines = [line.strip() for line in said.splitlines() if any(map(str.isalpha, line))]
    ours = [line.removeprefix(SAYS) for line in lines if line.startswith(SAYS)]
    last = "".join(f": {line}" for line in (ours or lines)[-1:])
    return f"{what} failed (exit status {process.returncode}){last}"


def environment() -> dict[str, str]:
    """Return the environment of a job that is independent of the one around. Local."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith((*SET_BY_LAUNCHERS, *SET))}
    home = str(Path(__file__).resolve().parents[2])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    return kept


def main(arguments: Sequence[str]) -> None:
    """Send and receive, as one of two ranks. Collective."""
    try:
        driver = runtime.driver_for("the message")
        problem = exchange(binding.load(), driver, int(arguments[0]))
    except Exception as error:  # of a driver or MPI, too
        problem = plain(error)
    if problem is not None:
        print(f"{SAYS}{problem}", flush=True)
        raise SystemExit(1)


def exchange(MPI: Any, driver: Driver, device: int) -> str | None:
    """Exchange messages of several lengths with the other rank, from device to device; return the
    fault of the received ones, or None. Collective.
    """
    rank = MPI.COMM_WORLD.Get_rank()
    with driver.on(device):
        given, got = (driver.allocate(max(SIZES)) for _ in range(2))
        host, stream, event = driver.pinned(max(SIZES)), driver.stream(), driver.event()
        try:
            for nbytes in SIZES:
                want = [np.arange(nbytes, dtype=np.uint64) * 7 + each for each in (rank, 1 - rank)]
                host.array[:nbytes] = want[0].astype(np.uint8)
                driver.copy(given, host.address, nbytes, stream)
                _complete(driver, event, stream)
                ends = [MPI.buffer.fromaddress(each, nbytes) for each in (got, given)]
                MPI.Request.Waitall(
                    [
                        MPI.COMM_WORLD.Irecv([ends[0], MPI.BYTE], 1 - rank),
                        MPI.COMM_WORLD.Isend([ends[1], MPI.BYTE], 1 - rank),
                    ]
                )
                driver.copy(host.address, got, nbytes, stream)
                _complete(driver, event, stream)
                if not np.array_equal(host.array[:nbytes], want[1].astype(np.uint8)):
                    return f"a message of {nbytes} bytes has arrived with other contents"
        finally:
            driver.end_event(event)
            driver.end_stream(stream)
            host.free()
            driver.free(given)
            driver.free(got)
    return None


def _complete(driver: Driver, event: int, stream: int) -> None:
    driver.record(event, stream)
    driver.synchronize(event)


if __name__ == "__main__":
    main(sys.argv[1:])
