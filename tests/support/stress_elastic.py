"""Kill ranks and whole hosts of elastic jobs, again and again; print how long the others need.

::

    python tests/support/stress_elastic.py [--times 100] [--hosts 3] [--each 2] [--seed 0]

The ranks have no MPI. Of several hosts, a script stands in for ssh, and the ranks believe it. A
host is lost when its supervisor is killed. One loss in four is followed by another one at once. The
next job begins when one rank is left. A hang, a wrong sum, a state that does not
fit its step, and a process that is left end it.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from commands import environment
from ranks import is_alive

DEADLINE = 40.0  # seconds until a hang

SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
export COLLECTIVES_HOST=$1; shift
exec sh -c "$*"
"""

PROGRAM = """
import os, sys, time
import numpy as np, collectives as cc
from collectives import elastic
folder, first = sys.argv[1], cc.rank()
me = f"{os.getpid()} {os.getppid()} {os.environ.get('COLLECTIVES_HOST', '')}"

def count(state):
    comm, is_told = state.comm, False
    while True:
        sizes = comm.allreduce(np.full(1 + 37 * (state.step % 500), comm.rank + 1))
        assert (sizes == comm.size * (comm.size + 1) // 2).all(), "a wrong sum"
        state.total += comm.allreduce(np.ones(2000)) / comm.size
        state.step += 1
        assert (state.total == state.step).all(), "a state of another step"
        if state.step % 10 == 0:
            state.commit()
        if not is_told:
            is_told = True
            with open(f"{folder}/{first}", "a") as file:
                file.write(f"{time.time()} {comm.size} {me}\\n")
        if comm.broadcast(np.array([os.path.exists(f"{folder}/stop")]))[0]:
            return

elastic.run(elastic.State(total=np.zeros(2000), step=0), count)
"""


class Told(NamedTuple):
    """The report of a rank that had a right sum: its time, the number of ranks, and the host."""

    at: float
    size: int
    process: int
    parent: int
    host: str


def told(folder: Path) -> dict[int, Told]:
    """Return what each rank said last."""
    found = {}
    for path in folder.glob("[0-9]*"):
        lines = [line for line in path.read_text().splitlines(keepends=True) if line[-1] == "\n"]
        if lines:
            at, size, process, parent, *host = lines[-1].split()
            found[int(path.name)] = Told(
                float(at), int(size), int(process), int(parent), *(host or [""])
            )
    return found


def awaited(folder: Path, left: set[int], job: subprocess.Popen[str]) -> dict[int, Told]:
    """Wait until all ranks that are left have a right sum with each other."""
    limit = time.monotonic() + DEADLINE
    while True:
        now = told(folder)
        if all(rank in now and now[rank].size == len(left) for rank in left):
            return now
        assert job.poll() is None, (job.returncode, (folder / "log").read_text())
        assert time.monotonic() < limit, (left, now, (folder / "log").read_text())
        time.sleep(0.005)


def kill(rng: random.Random, first: dict[int, Told], left: set[int]) -> tuple[float, bool]:
    """Kill one of the ranks that are `left`, or all of its host, unless that is all; return when,
    and whether it was a host.
    """
    victim = rng.choice(sorted(left))
    lost = {rank for rank in left if first[rank].host == first[victim].host}
    is_of_host = bool(first[victim].host) and lost != left and rng.random() < 0.4
    at = time.time()
    os.kill(first[victim].parent if is_of_host else first[victim].process, signal.SIGKILL)
    left -= lost if is_of_host else {victim}
    return at, is_of_host


def one_job(rng: random.Random, hosts: int, each: int) -> list[tuple[float, bool]]:
    """Kill until one rank is left; return for each loss the seconds, and whether of a host."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        (folder / "ssh").write_text(SSH)
        (folder / "ssh").chmod(0o755)
        names = ",".join(f"h{host}:{each}" for host in range(hosts))
        where = ["-H", names] if hosts > 1 else ["-n", str(each)]
        words = ["run", "--no-mpi", "--elastic", *where, str(folder / "program.py"), name]
        env = environment(COLLECTIVES_TIMEOUT="30")
        env["PATH"] = f"{folder}:{env['PATH']}"
        with open(folder / "log", "w") as log:
            job = subprocess.Popen(
                [sys.executable, "-m", "collectives", *words],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        try:
            left = set(range(hosts * each))
            first = awaited(folder, left, job)
            seconds = []
            while len(left) > 1:
                time.sleep(rng.random() / 5)
                at, is_of_host = kill(rng, first, left)
                if len(left) > 1 and rng.random() < 0.25:
                    time.sleep(rng.random() / 20)
                    at, is_too = kill(rng, first, left)
                    is_of_host |= is_too
                now = awaited(folder, left, job)
                seconds.append((max(now[rank].at for rank in left) - at, is_of_host))
            (folder / "stop").touch()
            assert job.wait(DEADLINE) == 0, (folder / "log").read_text()
            log_text = (folder / "log").read_text()
            assert "Error" not in log_text, log_text
            assert not any(is_alive(each.process) for each in first.values())
        finally:
            job.kill()
            job.wait()
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--each", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    losses: list[tuple[float, bool]] = []
    while len(losses) < options.times:
        losses += one_job(rng, options.hosts, options.each)
        print(f"{len(losses)}: {losses[-1][0]:.3f} s", flush=True)
    for kind, is_of_host in (("ranks", False), ("hosts", True)):
        seconds = [passed for passed, of_host in losses if of_host == is_of_host]
        if seconds:
            print(
                f"{len(seconds)} times {kind} were killed; the others ran again after "
                f"{max(seconds):.3f} s at most, {statistics.median(seconds):.3f} s in the middle"
            )


if __name__ == "__main__":
    main()
