"""A user's program, for the type checker: it must pass ``mypy --strict``, and run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import collectives as cc


def average(values: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = cc.allreduce(values, op=cc.AVG)
    return result


def overlapped(values: NDArray[np.float64]) -> float:
    comm: cc.Communicator = cc.world()
    out = np.empty_like(values)
    request: cc.Request = comm.iallreduce(values, out, op=cc.MAX, algorithm="ring")
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
