"""A user's program, for type checkers: it must pass mypy and pyright, both strict, and run."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import collectives as cc

Doubles: TypeAlias = NDArray[np.float64]


def average(values: Doubles) -> Doubles:
    return cc.allreduce(values, op=cc.AVG)


def root_gets(values: Doubles) -> float:
    total = cc.reduce(values, op="max")
    rows = cc.gather(values)
    return 0.0 if total is None or rows is None else float(total[0] + rows[0, 0])


def of_any_library(comm: cc.Communicator) -> list[int]:
    octets: bytearray = comm.allreduce(bytearray(b"123"), op="MAX")
    number: NDArray[Any] = comm.allreduce(2.5)
    packed: list[Doubles] = comm.allreduce_many([np.ones(2), np.ones(1)])
    landed: Doubles = comm.broadcast(None if comm.rank else np.ones(2), np.empty(2))
    exact: Doubles = comm.allreduce(np.ones(2), op="sum_reproducible")
    assert exact[0] == comm.size
    return [len(octets), number.ndim, len(packed), landed.size]


async def awaited(values: Doubles) -> Doubles:
    total: Doubles = await cc.iallreduce(values)
    await cc.ibarrier()
    return total


def mistakes(values: Doubles) -> None:
    """What a type checker finds; it says so if it does not."""
    cc.allreduce("text")  # type: ignore[arg-type]
    cc.allreduce([1.0, 2.0])  # type: ignore[arg-type]
    cc.allreduce(values, op="summ")  # type: ignore[arg-type]
    cc.allreduce(values, algo="ring")  # type: ignore[call-arg]
    text: str = cc.allgather(values)  # type: ignore[assignment]
    request: cc.Request[str] = cc.iallreduce(values)  # type: ignore[assignment]
    cc.reduce(values).sum()  # type: ignore[union-attr]
    print(text, request)


def between_neighbors(comm: cc.Communicator) -> list[int]:
    ring = comm.cart((0,), periods=True)
    octets: bytearray = ring.neighbor_allgather(bytearray(b"1"), bytearray(2))
    swapped: Doubles = ring.neighbor_alltoall(np.ones(2))
    request: cc.Request[Doubles] = ring.ineighbor_alltoallv(np.ones(2), [1, 1])
    return [len(octets), swapped.size, request.wait().size]


def overlapped(values: Doubles) -> float:
    comm: cc.Communicator = cc.world()
    out = np.empty_like(values)
    request: cc.Request[Doubles] = comm.iallreduce(values, out, op=cc.MAX, algorithm="ring")
    while not request.test():
        pass
    request.wait()
    return float(out[0])


def in_any_order(comm: cc.Communicator) -> float:
    requests = [comm.iallreduce(np.full(1, float(k))) for k in range(3)]
    total = 0.0
    for _ in requests:
        index, result = cc.wait_any(requests, timeout=60)
        assert index is not None
        total += float(result[0])
    assert cc.wait_all(requests) == [None] * 3
    return total


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
    assert np.array_equal(average(np.ones(3)), np.ones(3))
    assert overlapped(np.full(2, float(cc.rank()))) == cc.size() - 1
    assert root_gets(np.ones(2)) == (2.0 if cc.rank() == 0 else 0.0)
    assert of_any_library(cc.world()) == [3, 0, 2, 2]
    assert between_neighbors(cc.world()) == [2, 2, 2]
    assert asyncio.run(awaited(np.ones(2)))[1] == cc.size()
    assert in_any_order(cc.world()) == 3 * cc.size()
    assert cc.allreduce_object({1: cc.rank()}, lambda x, y: x) == {1: 0}
    with cc.world().dup() as comm:
        assert "ring" in every_algorithm(comm)
        part: cc.Communicator | None = comm.split(0, key=comm.rank)
        if part is not None:
            part.barrier()
    op: cc.Reduction = cc.SUM
    assert op.name == "SUM"


if __name__ == "__main__":
    main()
