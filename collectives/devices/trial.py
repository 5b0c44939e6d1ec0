"""A job of two processes on this host that send each other messages from device to device.

``python -m collectives.devices.trial DEVICE`` is what each of them runs. A rank starts the job to
find out whether its MPI accepts device pointers: if it does not, that ends these processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from collectives.devices import runtime
from collectives.devices.driver import Driver
from collectives.process import binding
from collectives.text.words import plain

# Bytes of the messages: MPI sends short ones at once, and long ones when they are received.
SIZES = 8, 8192, 1 << 20

SAYS = "trial: "  # before what a process has to say

# What launchers and batch systems have set for the ranks of the job around.
LAUNCHERS = "PMI_", "PMIX_", "PRTE_", "OMPI_COMM_", "HYDRA_", "HYDI_", "MPI_LOCAL", "COLLECTIVES_"
BATCH = "SLURM_", "PBS_", "LSB_", "PE_HOSTFILE"


def failure(device: int, limit: float) -> str | None:
    """Return what has gone wrong in a trial, or None. Local."""
    program = ["-m", "collectives.devices.trial", str(device)]
    return ended([sys.executable, "-m", "collectives", "run", "-n", "2", *program], limit)


def ended(command: Sequence[str], limit: float) -> str | None:
    """Return what has gone wrong in a job, or None. Local."""
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
    """Return the environment of a job that does not belong to the one around. Local."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith((*LAUNCHERS, *BATCH))}
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
    """Exchange messages of several lengths with the other rank, from device to device; return what
    is wrong with those that have come, or None. Collective.
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
