"""Requests: many at once, completed in any order, on one communicator or several."""

import gc
import random
import sys

import numpy as np
import pytest
from cases import LARGE, contribution, digest, verify
from forms import Allreduce

import collectives as cc

ALGORITHMS = Allreduce.runnable()


def start(comm, k, n=1000):
    """Start the k-th of a series of allreduces; `want` gives what each element must be."""
    algorithm = ALGORITHMS[k % len(ALGORITHMS)]
    return comm.iallreduce(np.full(n, k + comm.rank, np.int64), algorithm=algorithm)


def want(comm, k):
    return comm.size * k + comm.size * (comm.size - 1) // 2


def test_three_hundred_in_flight(plain):
    comm = plain.comm
    requests = [start(comm, k, n=10) for k in range(300)]
    for k in reversed(range(300)):
        assert (requests[k].wait() == want(comm, k)).all()


def test_blocking_calls_while_others_are_in_flight(world):
    comm = world.comm
    early = [start(comm, k) for k in range(4)]
    for k in range(10):
        y = comm.allreduce(np.full(100, k + comm.rank))
        assert (y == want(comm, k)).all()
        early.append(start(comm, 4 + k))
    comm.barrier()
    order = early[::-1] if comm.rank % 2 else early
    for request in order:
        request.wait()
    for k, request in enumerate(early):
        assert (request.wait() == want(comm, k)).all()


def test_two_communicators(world):
    """Operations of different communicators complete in any order, even crosswise."""
    one = world.comm
    with one.dup() as two:
        a = [start(one, k) for k in range(5)]
        b = [start(two, 10 + k) for k in range(5)]
        for request in (b + a) if one.rank % 2 else (a + b):
            request.wait()
        for k in range(5):
            assert (a[k].wait() == want(one, k)).all()
            assert (b[k].wait() == want(two, 10 + k)).all()


def test_waiting_for_one_moves_those_of_other_communicators(plain):
    """Rank 0 blocks on one communicator for a call that others make after its part on another."""
    one = plain.comm
    two = one.dup()
    first = start(one, 1)
    second = start(two, 2)
    if one.rank == 0:
        assert (second.wait() == want(one, 2)).all()
        assert (first.wait() == want(one, 1)).all()
    else:
        assert (first.wait() == want(one, 1)).all()
        assert (second.wait() == want(one, 2)).all()
    two.free()


def test_dropped_handles(world):
    """A request that nobody keeps still runs, and disturbs nobody."""
    comm = world.comm
    outs = [np.zeros(2000, np.int64) for _ in range(6)]
    for k, out in enumerate(outs):
        comm.iallreduce(np.full(2000, k + comm.rank), out)
        gc.collect()
    for _ in range(100000):  # any wait makes progress on all operations
        done = all((out == want(comm, k)).all() for k, out in enumerate(outs))
        if comm.allreduce(np.array([done]), op=cc.LAND)[0]:
            break
    comm.barrier()
    for k, out in enumerate(outs):
        assert (out == want(comm, k)).all()


def test_dropped_before_the_others_come(plain):
    comm = plain.comm
    if comm.rank == 0:
        plain.mpi.Barrier()
        comm.iallreduce(np.full(100000, comm.rank))
    else:
        comm.iallreduce(np.full(100000, comm.rank))
        gc.collect()
        plain.mpi.Barrier()
    assert (comm.allreduce(np.ones(10)) == comm.size).all()
    comm.barrier()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_large_ones_overlap(plain, algorithm):
    comm = plain.comm
    n = LARGE  # float32: 4 MiB
    count = 3 if comm.size <= 4 else 2
    requests = [
        comm.iallreduce(contribution("SUM", "float32", n, comm.rank), algorithm=algorithm)
        for _ in range(count)
    ]
    results = [request.wait() for request in (requests[::-1] if comm.rank % 2 else requests)]
    assert len({digest(y) for y in results}) == 1
    verify(results[0], "SUM", "float32", n, comm.size)


def test_segments_in_flight(plain, segments):
    comm = plain.comm
    with segments(comm, 1000):
        requests = [start(comm, k, n=5000) for k in range(8)]
    for k in random.Random(comm.rank).sample(range(8), 8):
        assert (requests[k].wait() == want(comm, k)).all()


def test_in_place_and_scaled(world):
    comm = world.comm
    x = contribution("SUM", "float32", 1009, comm.rank).copy()
    request = comm.iallreduce(x, x, op=cc.AVG, prescale=2.0)
    assert request.wait() is x
    verify(x, "AVG", "float32", 1009, comm.size, 2.0)


def test_repr_says_how_far_it_is(world):
    comm = world.comm
    request = comm.iallreduce(np.ones(3), algorithm="ring")
    request.wait()
    ranks = f"{comm.size} rank{'s' * (comm.size > 1)}"
    assert repr(request) == f"<Request of allreduce 'ring' on {ranks}: complete>"


@pytest.mark.several
def test_pending_operations_are_listed(plain):
    """Before the other ranks come, a request says whom it waits for."""
    comm = plain.comm
    if comm.rank == 0:
        request = comm.iallreduce(np.ones(3), algorithm="tree")
        start = f"<Request of allreduce 'tree' on {comm.size} ranks: "
        assert repr(request).startswith(f"{start}round 1, segment 1 of 1 waits for rank 1 ")
        with pytest.raises(cc.errors.CommunicatorError, match="in flight: allreduce 'tree' on"):
            comm.free()
        plain.mpi.Barrier()
    else:
        plain.mpi.Barrier()
        request = comm.iallreduce(np.ones(3), algorithm="tree")
    assert (request.wait() == comm.size).all()


@pytest.mark.parametrize("after", ["barrier", "allreduce", "dup", "split"])
@pytest.mark.parametrize("kind", ["world", "plain"])
def test_waited_for_before_or_after_another_call(request, kind, after):
    """A rank that is in its next call still moves on what another rank waits for."""
    comm = request.getfixturevalue(kind).comm
    calls = {
        "barrier": comm.barrier,
        "allreduce": lambda: comm.allreduce(np.ones(10)),
        "dup": lambda: comm.dup().free(),
        "split": lambda: comm.split(0).free(),
    }
    for patient in range(comm.size):
        pending = start(comm, 3, n=200_000)
        if comm.rank == patient:
            calls[after]()
            y = pending.wait()
        else:
            y = pending.wait()
            calls[after]()
        assert (y == want(comm, 3)).all()


def test_where_it_was_started(world, plain):
    """The line always; the whole stack where somebody looks for mistakes."""
    for comm, whole in ((world.comm, True), (plain.comm, sys.flags.dev_mode)):
        line = sys._getframe().f_lineno + 1
        request = comm.iallreduce(np.ones(3))
        assert request.where() == f"{__file__}:{line}"
        assert (request.origin is not None) == whole
        if whole:
            assert f'test_nonblocking.py", line {line}, in test_where' in str(request.origin)
        request.wait()
