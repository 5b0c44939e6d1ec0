"""Measure torch.distributed on this library and on gloo, side by side on the same ranks.

``mpiexec -n 2 python benchmarks/measure_torch.py`` prints, for each backend: the time of an
all_reduce of 8 bytes and of 1 MiB; the time of a step of a model with 25 million parameters under
DistributedDataParallel and under FSDP2; and the share of communication in it, which is the part
that the step takes longer than without communication: with a hook for DDP that leaves gradients as
they are, and with torch's backend "fake" under FSDP2. The same step with Horovod's
DistributedOptimizer comes last, and the step of the bare model, which it is held against. All of
them take turns, and the numbers are medians over all turns. The state is that of two of the cores
(see the manual on measuring).

With ``--device cuda``, arrays and models are on a GPU, each call is timed until its result is
there, and FSDP2, which gloo does not serve on a GPU, is left out. Ranks of a host share its GPUs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from mpi4py import MPI
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from turns import in_turns, medians, options, say, slowest

import collectives.torch as hvd
from collectives import default
from collectives.measuring import state

BACKENDS = "collectives", "gloo"
NOTHING = "fake"
HOROVOD = "DistributedOptimizer"
WIDTH, LAYERS = 1582, 10  # 25 million parameters
Times = dict[tuple[str, str], list[float]]


def model(device: torch.device) -> nn.Module:
    """Return the model: the same parameters on all ranks."""
    torch.manual_seed(0)
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers).to(device)


def step(net: nn.Module, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> None:
    """Make a step of training."""
    optimizer.zero_grad(set_to_none=True)
    net(data).square().mean().backward()
    optimizer.step()


def stepping(net: nn.Module, data: torch.Tensor) -> Callable[[], None]:
    """Return a function that makes a step of a model."""
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    return lambda: step(net, optimizer, data)


def parallel(group: Any, device: torch.device) -> nn.Module:
    """Return the model under DDP."""
    return DistributedDataParallel(model(device), process_group=group)


def silent(group: Any, device: torch.device) -> nn.Module:
    """Return the model under DDP, whose gradients stay as they are."""

    def leave(_, bucket):  # DDP compares annotations, which are texts here
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    net = parallel(group, device)
    net.register_comm_hook(None, leave)
    return net


def horovod(data: torch.Tensor) -> Callable[[], None]:
    """Return a function that makes a step with Horovod's optimizer."""
    hvd.init()
    net = model(data.device)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
    return lambda: step(net, optimizer, data)


def sharded(group: Any) -> nn.Module:
    """Return the model under FSDP2, layer by layer."""
    mesh = DeviceMesh.from_group(group, "cpu")
    net = model(torch.device("cpu"))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def clock(call: Callable[[], object], calls: int) -> float:
    """Return the seconds of a call until its result is on the device, on the slowest rank."""

    def whole() -> None:
        call()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    return slowest(whole, calls)


def measure(
    arguments: argparse.Namespace, groups: dict[str, Any]
) -> tuple[Times, list[float | None]]:
    """Return the times of each measurement of each backend, and the round trips."""
    device = torch.device(arguments.device)
    if device.type == "cuda":
        torch.cuda.set_device(default.world().local_rank % torch.cuda.device_count())
    torch.manual_seed(MPI.COMM_WORLD.rank)
    data = torch.randn(arguments.batch, WIDTH).to(device)
    shards = device.type == "cpu" and not arguments.calls
    ways: dict[tuple[str, str], Callable[[], object]] = {}
    calls = {}
    for name, group in groups.items():
        if name == NOTHING:
            continue
        for label, count, number in (("8 bytes", 2, 200), ("1 MiB", 1 << 18, 20)):
            x = torch.zeros(count, device=device)
            ways[name, label] = lambda x=x, group=group: dist.all_reduce(x, group=group)
            calls[name, label] = number
        if not arguments.calls:
            ways[name, "DDP"] = stepping(parallel(group, device), data)
        if shards:
            ways[name, "FSDP2"] = stepping(sharded(group), data)
    if shards:
        ways[NOTHING, "FSDP2"] = stepping(sharded(groups[NOTHING]), data)
    if not arguments.calls:
        ways[NOTHING, "DDP"] = stepping(silent(groups["collectives"], device), data)
        ways["collectives", HOROVOD] = horovod(data)
        ways[NOTHING, HOROVOD] = stepping(model(device), data)
    trips: list[float | None] = []
    comm = default.world()

    def look() -> None:
        trips.append(state.round_trip(comm, comm.mpi))

    return in_turns(ways, arguments.turns, clock, calls=calls, before=look), trips


def report(times: Times, trips: list[float | None]) -> dict[str, Any]:
    """Return the medians, in milliseconds, and the shares of communication."""
    found = medians(times, 1e-3)
    names = [state.name(trip) for trip in trips if trip is not None]
    turns = ", ".join(f"{names.count(each)} {each}" for each in dict.fromkeys(names))
    rows: dict[str, Any] = {"ranks": MPI.COMM_WORLD.size, "turns by state": turns or "unknown"}
    for label in dict.fromkeys(label for _, label in found):
        if label == HOROVOD:
            for name, what in ((NOTHING, "bare model"), ("collectives", HOROVOD)):
                rows[f"{what}, ms"] = round(found[name, label], 2)
            continue
        row = {name: found[name, label] for name in BACKENDS}
        if label in ("DDP", "FSDP2"):
            nothing = found[NOTHING, label]
            rows[f"{label}, without communication, ms"] = round(nothing, 2)
            more = {name: max(value - nothing, 0.0) for name, value in row.items()}
            for name in BACKENDS:
                rows[f"{label}, {name}, ms"] = round(row[name], 2)
                rows[f"{label}, {name}, communication, ms"] = round(more[name], 2)
            ratio = more["collectives"] / more["gloo"] if more["gloo"] else float("nan")
        else:
            for name in BACKENDS:
                rows[f"{label}, {name}, us"] = round(row[name] * 1e3, 2)
            ratio = row["collectives"] / row["gloo"]
        rows[f"{label}, of gloo's"] = round(ratio, 3)
    return rows


def main() -> None:
    """Measure, and print the numbers on rank 0."""
    arguments = options(__doc__, turns=15, batch=64, calls=False, json=False, device="cpu")
    torch.set_num_threads(1)
    hvd.init_process_group()
    groups = {"collectives": dist.group.WORLD}
    groups |= {name: dist.new_group(backend=name) for name in ("gloo", NOTHING)}
    rows = report(*measure(arguments, groups))
    width = max(map(len, rows))
    if arguments.json:
        say(json.dumps(rows))
    else:
        say("\n".join(f"{label:{width}}  {value}" for label, value in rows.items()))
    MPI.COMM_WORLD.Barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
