"""Measure allreduce of arrays on a GPU beside what a program does without the library.

Run it under a launcher, on GPUs that nobody else uses; ranks of a host share them in turns::

    mpiexec -n 2 python benchmarks/measure_gpu.py

For each size it prints the microseconds of a call until its result is on the GPU, in the median of
several runs: of the library by each transport that is possible, of mpi4py with copies to pinned
host memory and back by hand, and of torch.distributed with gloo, if torch finds a GPU. The ratios
are to the transport that the library uses by itself. Rank 0 prints; the slowest rank counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import cupy
import numpy as np
from mpi4py import MPI
from turns import in_turns, medians, options, row, say, slowest

import collectives as cc


def by_hand(x: Any) -> Callable[[], None]:
    """Return an allreduce by mpi4py of an array on the GPU."""
    pinned = [pinned_like(x) for _ in range(2)]
    stream = cupy.cuda.get_current_stream()

    def call() -> None:
        x.get(out=pinned[0], stream=stream)
        stream.synchronize()
        MPI.COMM_WORLD.Allreduce(*pinned)
        x.set(pinned[1], stream=stream)

    return call


def pinned_like(like: Any) -> Any:
    """Return an array in pinned host memory."""
    memory = cupy.cuda.alloc_pinned_memory(like.nbytes)
    return np.frombuffer(memory, like.dtype, like.size)


def by_gloo(comm: cc.Communicator) -> Callable[[int], Callable[[], None]] | None:
    """Return what makes an allreduce by gloo, or None if torch finds no GPU."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["MASTER_PORT"] = str(
        comm.broadcast_object(29500 + os.getpid() % 1000 if comm.rank == 0 else None)
    )
    dist.init_process_group("gloo", rank=comm.rank, world_size=comm.size)

    def make(n: int) -> Callable[[], None]:
        x = torch.zeros(n, dtype=torch.float32, device=f"cuda:{cupy.cuda.Device().id}")

        def call() -> None:
            dist.all_reduce(x)
            torch.cuda.synchronize()

        return call

    return make


def clock(call: Callable[[], object], calls: int) -> float:
    """Return the seconds of a call until its result is there, on the slowest rank."""

    def whole() -> None:
        call()
        cupy.cuda.get_current_stream().synchronize()

    return slowest(whole, calls)


def by_transport(comm: cc.Communicator) -> dict[str, cc.Communicator]:
    """Return a communicator for each possible transport, the automatic one first."""
    x = cupy.zeros(1)
    used = comm.device_transports(x)
    made = {}
    for name in sorted(used.reasons, key=lambda name: name != used.used):
        os.environ["COLLECTIVES_DEVICE_TRANSPORT"] = name
        each = comm.dup()
        found = each.device_transports(x)
        if found.used == name:
            made[name] = each
        else:
            say(f"without {name}: {found.reasons[name]}")
    return made


def main() -> None:
    """Print a line for each size."""
    arguments = options(__doc__, turns=15, most=1 << 30)
    comm = cc.world()
    cupy.cuda.Device(comm.local_rank % cupy.cuda.runtime.getDeviceCount()).use()
    gloo = by_gloo(comm)
    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    say(f"{comm.size} ranks, {name}")
    ours = by_transport(comm)
    others = ["by hand"] if gloo is None else ["by hand", "gloo"]
    say(row("bytes", [*ours, *(head for each in others for head in (each, f"x {each}"))]))
    nbytes = 1 << 10
    while nbytes <= arguments.most:
        x = cupy.zeros(nbytes // 4, cupy.float32)
        ways = {name: partial(each.allreduce, x, x) for name, each in ours.items()}
        ways["by hand"] = by_hand(x)
        if gloo is not None:
            ways["gloo"] = gloo(nbytes // 4)
        found = medians(in_turns(ways, arguments.turns, clock, warm=2), 1e-6)
        first = found[next(iter(ours))]
        cells: list[object] = [found[name] for name in ours]
        for name in others:
            cells += [found[name], f"{found[name] / first:.2f}"]
        say(row(nbytes, cells))
        nbytes *= 4


if __name__ == "__main__":
    main()
