"""Clocks of benchmarks: calls at one time or in chains, the cores and the environment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from mpi4py import MPI

import collectives as cc

BUDGET = 0.02  # seconds for the shots of one point
FEWEST, MOST = 3, 200  # shots
TURNS = 5  # readings of the clock of which the least counts
ALONE = 0.93  # of the time, if nobody else has had a core
TRIES = 4  # windows between shots that are tried
REST = 20e-6  # seconds between two shots, at least
BLOCK = 20e-3  # seconds of calls back to back: ranks leave the barrier before them one by one
BLOCKS = 3
LONGEST = 1000  # calls of a block


def quiet(times: Iterable[float]) -> float:
    """Return the time below which a tenth of them lie: most slower times are due to chance."""
    ascending = sorted(times)
    return ascending[len(ascending) // 10]


class Tries:
    """The number of times that a disturbed measurement is repeated."""

    number = 4


def ran() -> float:
    """Return the seconds that this process has had a core."""
    return 1e-9 * int(Path("/proc/self/schedstat").read_text().split()[0])


class Clock:
    """Calls that all ranks begin at one time. Collective."""

    def __init__(self, comm: cc.Communicator) -> None:
        self.mpi = comm.mpi

    def shots(self, call: Callable[[], Any], number: int, window: float) -> list[list[float]]:
        """Return for each shot the seconds of each rank."""
        for _ in range(Tries.number):
            found, alone = self.salvo(call, number, window)
            if alone:
                break
        return found

    def salvo(
        self, call: Callable[[], Any], number: int, window: float
    ) -> tuple[list[list[float]], bool]:
        """Return the shots, and whether no other process has had a core during them."""
        begin = self.mpi.bcast(time.perf_counter()) + 1e-3
        ends = []
        start, before = time.perf_counter(), ran()
        for shot in range(number):
            at = begin + shot * window
            while time.perf_counter() < at:
                pass
            call()
            ends.append(time.perf_counter() - at)
        alone = ran() - before > ALONE * (time.perf_counter() - start)
        alone = self.mpi.allreduce(alone, op=MPI.LAND)
        everybody = self.mpi.allgather(ends)
        shots = [list(each) for each in zip(*everybody, strict=True)]
        # A shot that begins late, as the one before has taken too long, says nothing.
        found = [
            each for shot, each in enumerate(shots) if shot == 0 or max(shots[shot - 1]) < window
        ]
        return found, alone

    def seconds(self, call: Callable[[], Any], warm: int = 2) -> list[float]:
        """Return the seconds of each rank, and behind them those of the last one."""
        for _ in range(warm):
            call()
        self.mpi.Barrier()
        start = time.perf_counter()
        call()
        seconds = self.mpi.allreduce(time.perf_counter() - start, op=MPI.MAX)
        for _ in range(TRIES):
            window = 2 * seconds + REST
            number = max(FEWEST, min(MOST, int(BUDGET / window)))
            shots = self.shots(call, number, window)
            before, seconds = seconds, quiet(map(max, shots))
            # Shots must be neither far apart nor too near.
            if len(shots) >= number / 2 and seconds > before / 3:
                break
        return [quiet(each) for each in (*zip(*shots, strict=True), map(max, shots))]


class Chain:
    """Calls back to back, where ranks have to take turns and nobody can begin at a given time.
    Collective.
    """

    def __init__(self, comm: cc.Communicator, cores: int) -> None:
        self.mpi, self.barrier, self.cores = comm.mpi, comm.barrier, cores

    def block(self, calls: Sequence[Callable[[], Any]], number: int) -> float:
        """Return the seconds of one turn over some calls, that of the last rank."""
        for _ in range(Tries.number):
            self.mpi.Barrier()
            start, before = time.perf_counter(), ran()
            for _ in range(number):
                for call in calls:
                    call()
            seconds = time.perf_counter() - start
            longest = self.mpi.allreduce(seconds, op=MPI.MAX)
            if self.mpi.allreduce(ran() - before) > ALONE * self.cores * longest:
                break  # no other process has had a core
        return float(longest / number)

    def seconds(
        self, call: Callable[[], Any], warm: int = 2, runs_ahead: bool = False
    ) -> list[float]:
        """Return the seconds of a call; where a rank may run ahead, beside a barrier after it."""
        for _ in range(warm):
            call()
        calls = [call, self.barrier] if runs_ahead else [call]
        guess = self.block(calls, 2)
        if 10 * guess < BLOCK:
            guess = min(self.block(calls, 10) for _ in range(BLOCKS))
        number = max(1, min(LONGEST, int(BLOCK / max(guess, 1e-9))))
        times, barriers = [], [0.0]
        for _ in range(BLOCKS):
            times.append(self.block(calls, number))
            if runs_ahead:
                barriers.append(self.block([self.barrier], number))
        return [quiet(times) - quiet(barriers[1:] or barriers)]


@contextmanager
def kept(core: int | None) -> Iterator[None]:
    """Keep this process on one of the cores that it may use while this lasts."""
    able = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {sorted(able)[core % len(able)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, able)


def own_core(rank: int, workers: int) -> AbstractContextManager[None]:
    """Keep each of the first ranks on a core of its own."""
    return kept(rank if rank < workers <= len(os.sched_getaffinity(0)) else None)


def partner_core(rank: int, cores: int) -> AbstractContextManager[None]:
    """Keep each two partners, 0 and 1, 2 and 3, ..., on one core.

    They take turns then for each block that they pass. On cores of their own they would pass all of
    them while the others wait.
    """
    return kept(rank // 2 % cores)


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds of one of many calls."""
    call()
    start = time.perf_counter()
    call()
    number = max(1, min(500, int(1e-3 / max(time.perf_counter() - start, 1e-9))))
    times = []
    for _ in range(Tries.number):
        start, before = time.perf_counter(), ran()
        for _ in range(number):
            call()
        seconds = time.perf_counter() - start
        if ran() - before > ALONE * seconds:
            times.append(seconds / number)
            if len(times) == TURNS:
                break
    return min(times, default=seconds / number)
