"""A user's program, for type checkers: it must pass mypy and pyright, both strict, and run.

It is a small simulation and a fit, as users write them. `mistakes` has what the checkers find.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import collectives as cc

if TYPE_CHECKING:
    import torch
    from typing_extensions import assert_type
else:

    def assert_type(value: object, kind: object) -> object:
        return value


Doubles: TypeAlias = NDArray[np.float64]


# -- a fit: gradients of the ranks are averaged ----------------------------------------------------


@dataclass
class Fit:
    """A line through the points of all ranks."""

    slope: float
    offset: float
    loss: float


def average(values: Doubles) -> Doubles:
    return cc.allreduce(values, op=cc.AVG)


def points(comm: cc.Communicator) -> tuple[Doubles, Doubles]:
    """Return the points of this rank; rank 0 has made all."""
    count = 8 * comm.size
    x = np.empty(count)
    if comm.rank == 0:
        x[:] = np.linspace(0.0, 1.0, count)
    part = comm.scatter(x)
    return part, 3.0 * part + 1.0


def fitted(comm: cc.Communicator, steps: int = 400) -> Fit:
    x, y = points(comm)
    line = np.zeros(2)
    gradient = np.empty_like(line)
    planned = comm.plan("allreduce", gradient, out=gradient, op=cc.AVG)
    for _ in range(steps):
        error = line[0] * x + line[1] - y
        gradient[:] = (error * x).mean(), error.mean()
        line -= 0.9 * planned()
    worst = np.abs(line[0] * x + line[1] - y).max(keepdims=True)
    loss = comm.allreduce(worst, op="max", postscale=1.0)
    return Fit(float(line[0]), float(line[1]), float(loss[0]))


# -- a simulation: a rod whose ends neighbours need -----------------------------------------------


class Rod:
    """The temperatures of a part of a rod, with a place for a neighbour's at each end."""

    def __init__(self, comm: cc.Communicator, cells: int) -> None:
        self.row = comm.cart((0,))
        self.before, self.after = self.row.shift(0)
        self.cells: Doubles = comm.empty(cells + 2)
        self.cells[:] = float(comm.rank)

    def exchange(self) -> None:
        """Send the first cell back and the last one on; a rank beyond the end is None."""
        comm, cells = cc.world(), self.cells
        started = [
            comm.isendrecv(cells[1:2], self.before, cells[-1:], self.after, tag=1),
            comm.isendrecv(cells[-2:-1], self.after, cells[:1], self.before, tag=2),
        ]
        cc.wait_all(started)
        if self.before is None:
            cells[0] = cells[1]
        if self.after is None:
            cells[-1] = cells[-2]

    def step(self) -> float:
        """Let the heat flow; return the largest change on any rank."""
        self.exchange()
        change = (self.cells[:-2] - 2 * self.cells[1:-1] + self.cells[2:]) / 4
        self.cells[1:-1] += change
        return float(cc.allreduce(np.abs(change).max(initial=0.0), op=cc.MAX))


def whole_rod(rod: Rod) -> Doubles | None:
    """Return the temperatures of all ranks on rank 0."""
    rows = cc.gather(rod.cells[1:-1])
    if rows is None:
        return None
    ranks, cells = rows.shape
    return rows.reshape(ranks * cells)


@contextmanager
def part_of(comm: cc.Communicator, color: int | None) -> Generator[cc.Communicator | None]:
    part = comm.split(color, key=comm.rank)
    yield part
    if part is not None:
        part.free()


# -- calls that do not block ---------------------------------------------------------------------


def overlapped(values: Doubles) -> float:
    comm: cc.Communicator = cc.world()
    out = np.empty_like(values)
    request: cc.Request[Doubles] = comm.iallreduce(values, out, op=cc.MAX, algorithm="ring")
    while not request.test():
        pass
    request.wait()
    return float(out[0])


def in_any_order(comm: cc.Communicator) -> float:
    requests = [comm.iallreduce(k * np.ones(1)) for k in range(3)]
    assert_type(cc.wait_all(requests), "list[np.ndarray[tuple[int], np.dtype[np.float64]]]")
    total = 0.0
    waiting = list(requests)
    for _ in requests:
        index, result = cc.wait_any(waiting, timeout=60)
        assert index is not None
        total += float(result[0])
    return total


def grouped(comm: cc.Communicator) -> list[int]:
    weights: list[Doubles] = [np.ones(2), np.ones((3, 1))]
    request = comm.iallreduce_many(weights, op=cc.AVG)
    assert_type(request, cc.GroupedRequest[Doubles])
    return [each.size for each in request.wait(timeout=60)]


async def awaited(values: Doubles) -> Doubles:
    total: Doubles = await cc.iallreduce(values)
    await cc.ibarrier()
    both = await asyncio.gather(cc.iallreduce(values), cc.iallgather(values))
    assert both[1].shape == (cc.size(), len(values))
    async with cc.world().dup() as comm:
        planned = comm.plan("reduce", values)
        found = await planned.start()
        assert (found is None) == (comm.rank > 0)
    return total


# -- objects, and arrays of other libraries --------------------------------------------------------


def objects(comm: cc.Communicator) -> int:
    config = comm.broadcast_object({"rate": 0.1} if comm.rank == 0 else None)
    names = comm.allgather_object(f"rank {comm.rank}")
    assert_type(names, list[str])
    tasks = comm.scatter_object(list(range(comm.size)) if comm.rank == 0 else None)
    seen = comm.allreduce_object({comm.rank}, lambda x, y: x | y)
    assert_type(seen, set[int])
    longest = comm.reduce_object(names, lambda x, y: x if len(x) > len(y) else y)
    assert longest is None or len(longest) == comm.size
    return len(config) + tasks + len(seen)


def of_any_library(comm: cc.Communicator) -> list[int]:
    octets: bytearray = comm.allreduce(bytearray(b"123"), op="MAX")
    number: NDArray[Any] = comm.allreduce(2.5)
    packed: list[Doubles] = comm.allreduce_many([np.ones(2), np.ones(1)])
    landed: Doubles = comm.broadcast(None if comm.rank else np.ones(2), np.empty(2))
    exact: Doubles = comm.allreduce(np.ones(2), op="sum_reproducible")
    assert exact[0] == comm.size
    single = comm.allreduce(np.ones(2, np.float32), algorithm="ring", prescale=0.5)
    assert_type(single.dtype, "np.dtype[np.float32]")
    return [len(octets), number.ndim, len(packed), landed.size]


def tensors(comm: cc.Communicator, x: torch.Tensor) -> torch.Tensor:
    assert_type(comm.iallreduce(x).wait(), torch.Tensor)
    rows: torch.Tensor = comm.allgather(x)
    return cc.allreduce_many([x, rows.sum(0)], op=cc.AVG)[1]


def between_neighbors(comm: cc.Communicator) -> list[int]:
    ring = comm.cart((0,), periods=True)
    octets: bytearray = ring.neighbor_allgather(bytearray(b"1"), bytearray(2))
    swapped: Doubles = ring.neighbor_alltoall(np.ones(2))
    request: cc.Request[Doubles] = ring.ineighbor_alltoallv(np.ones(2), [1, 1])
    return [len(octets), swapped.size, request.wait().size]


# -- ranks without a launcher ----------------------------------------------------------------------


def share(total: int, name: str = "part") -> tuple[str, float]:
    return name, total / cc.size()


def spawned() -> list[tuple[str, float]]:
    return cc.spawn(share, 2, 10, name="half") + cc.spawn(share, 2, 10, timeout=60.0)


# -- what the checkers find ------------------------------------------------------------------------


def mistakes(comm: cc.Communicator, values: Doubles) -> None:
    """Each line has an error; a checker that does not see it says that the comment is unused."""
    cc.allreduce("text")  # type: ignore[arg-type]
    comm.allreduce("text")  # type: ignore[arg-type]
    cc.allreduce([1.0, 2.0])  # type: ignore[arg-type]
    cc.allreduce(None)  # type: ignore[arg-type]
    cc.allreduce(values, op="summ")  # type: ignore[arg-type]
    cc.allreduce(values, op=np.add)  # type: ignore[arg-type]
    cc.allreduce(values, algo="ring")  # type: ignore[call-arg]
    cc.allreduce(values, timeout="1 s")  # type: ignore[arg-type]
    cc.reduce(values).sum()  # type: ignore[union-attr]
    cc.exscan(values).sum()  # type: ignore[union-attr]
    cc.allreduce_object(1, "summ")  # type: ignore[call-overload]
    comm.plan("allredduce", values)  # type: ignore[call-overload]
    comm.send(values)  # type: ignore[call-arg]
    cc.spawn(share, 2, "ten")  # type: ignore[call-overload]
    cc.spawn(share)  # type: ignore[call-overload]
    cc.wait_all([values])  # type: ignore[arg-type]
    comm.split(0).barrier()  # type: ignore[union-attr]
    cc.all_reduce(values)  # type: ignore[attr-defined]
    text: str = cc.allgather(values)  # type: ignore[assignment]
    request: cc.Request[str] = cc.iallreduce(values)  # type: ignore[assignment]
    planned: cc.PlannedCall[str] = comm.plan("scan", values)  # type: ignore[assignment]
    print(text, request, planned)


def every_algorithm(comm: cc.Communicator) -> list[str]:
    names: list[str] = cc.algorithms.names("allreduce")
    for name in names:
        comm.allreduce(np.ones(3), algorithm=name, prescale=0.5)
    return names


def main() -> None:
    try:
        cc.reduce(np.ones(3), root=cc.size())
    except cc.errors.ArgumentError as error:
        print(error)
    world = cc.world()
    assert np.array_equal(average(np.ones(3)), np.ones(3))
    assert fitted(world).loss < 1e-3
    rod = Rod(world, 4)
    assert rod.step() <= 0.25
    assert (whole_rod(rod) is None) == (cc.rank() > 0)
    assert overlapped(np.full(2, float(cc.rank()))) == cc.size() - 1
    assert in_any_order(world) == 3 * cc.size()
    assert grouped(world) == [2, 3]
    assert asyncio.run(awaited(np.ones(2)))[1] == cc.size()
    assert objects(world) == 1 + cc.rank() + cc.size()
    assert of_any_library(world) == [3, 0, 2, 2]
    assert between_neighbors(world) == [2, 2, 2]
    with part_of(world, cc.rank() % 2) as part, world.dup() as comm:
        assert part is not None
        part.barrier()
        assert "ring" in every_algorithm(comm)
    if cc.size() == 1:
        assert spawned() == [("half", 5.0)] * 2 + [("part", 5.0)] * 2
    op: cc.Reduction = cc.SUM
    assert op.name == "SUM"


if __name__ == "__main__":
    main()
