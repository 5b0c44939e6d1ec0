"""barrier: nobody leaves before everybody has come."""

import time

import pytest
from cases import names

from collectives.errors import ArgumentError


@pytest.mark.parametrize("algorithm", [*names("barrier"), None])
def test_returns(group, algorithm):
    for _ in range(20):
        assert group.comm.barrier(algorithm=algorithm) is None


@pytest.mark.parametrize("algorithm", names("barrier"))
def test_nobody_leaves_early(world, algorithm):
    """All ranks leave after the last one came (one host has one monotonic clock)."""
    comm = world.comm
    if comm.nodes > 1:
        pytest.skip("the clocks of several hosts cannot be compared")
    for late in range(comm.size):
        if comm.rank == late:
            time.sleep(0.02)
        came = time.monotonic()
        comm.barrier(algorithm=algorithm)
        left = time.monotonic()
        assert max(world.mpi.allgather(came)) <= min(world.mpi.allgather(left))


def test_nonblocking(world):
    comm = world.comm
    requests = [comm.ibarrier() for _ in range(5)]
    for request in requests if comm.rank % 2 else reversed(requests):
        assert request.wait() is None
        assert request.test()


def test_unknown_algorithm(world):
    text = f"barrier has no algorithm 'nonsense'; it has: {', '.join(names('barrier'))}"
    with pytest.raises(ArgumentError, match=text):
        world.comm.barrier(algorithm="nonsense")
    world.comm.barrier()
