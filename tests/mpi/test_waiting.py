"""wait_all and wait_any: several requests, of any kind and communicator."""

import time

import numpy as np
import pytest

import collectives as cc
from collectives import _core, background
from collectives.errors import ArgumentError, CommunicatorError, PeerAbortedError, StallError


def started(comm, n=4):
    return [comm.iallreduce(np.full(3, k + comm.rank)) for k in range(n)]


def total(comm, k):
    return [comm.size * k + comm.size * (comm.size - 1) // 2] * 3


def kinds(comm):
    """Return a request of each kind, and its result."""
    planned = comm.plan("allreduce", np.ones(2))
    return [
        (comm.iallreduce_many([np.ones(2), np.ones(1)]), None),
        (planned.start(), [comm.size] * 2),
        (comm.iallreduce(np.ones(2)), [comm.size] * 2),
        (None, None),
        (comm.ibarrier(), None),
        (comm.isendrecv(np.ones(2), comm.rank, np.empty(2), comm.rank), [1, 1]),
    ]


def test_all_in_order(group):
    comm = group.comm
    requests = started(comm)
    got = cc.wait_all(reversed(requests))
    for k, result in enumerate(reversed(got)):
        assert result.tolist() == total(comm, k)
    assert [each.tolist() for each in cc.wait_all(requests)] == [total(comm, k) for k in range(4)]


def test_all_of_any_kind(world):
    pairs = kinds(world.comm)
    got = cc.wait_all([request for request, _ in pairs], timeout=60)
    assert [each.tolist() for each in got[0]] == [[world.comm.size] * 2, [world.comm.size]]
    for (_, want), result in list(zip(pairs, got, strict=True))[1:]:
        assert result is None if want is None else result.tolist() == want


def test_waits_while_other_processes_take_the_cores(world):
    """Each rank in turn comes late, so that the others nap."""
    _core.assume_cores(True)
    try:
        for late in range(world.comm.size):
            time.sleep(0.005 * (world.comm.rank == late))
            assert world.comm.allreduce(1) == world.comm.size
            time.sleep(0.005 * (world.comm.rank == late))
            test_all_of_any_kind(world)
            handle = background.submit("allreduce", np.ones(2), group=world.comm)
            time.sleep(0.005 * (world.comm.rank == late))
            assert handle.wait().tolist() == [world.comm.size] * 2
    finally:
        _core.assume_cores(None)


def test_of_several_communicators(world):
    comm, other = world.comm, world.comm.dup()
    requests = started(comm, 2) + started(other, 2)
    assert [each.tolist() for each in cc.wait_all(requests)] == [
        total(comm, k % 2) for k in range(4)
    ]
    requests = started(comm, 2) + started(other, 2)
    found = {cc.wait_any(requests)[0] for _ in range(4)}
    assert found == {0, 1, 2, 3}
    other.free()


def test_nothing_to_wait_for():
    assert cc.wait_all([]) == []
    assert cc.wait_all([None, None]) == [None, None]
    assert cc.wait_any([]) == (None, None)
    assert cc.wait_any([None, None]) == (None, None)


def test_any_finds_each_once(group):
    comm = group.comm
    requests = started(comm)
    found = {}
    while True:
        i, result = cc.wait_any(requests, timeout=60)
        if i is None:
            break
        assert requests[i] is None
        assert i not in found
        found[i] = result.tolist()
    assert len(requests) == 4
    assert found == {k: total(comm, k) for k in range(4)}


def test_any_of_any_kind(world):
    pairs = kinds(world.comm)
    requests = [request for request, _ in pairs]
    found = {}
    for _ in range(len(pairs) - 1):
        i, result = cc.wait_any(requests)
        found[i] = result
    assert sorted(found) == [0, 1, 2, 4, 5]
    for i in (1, 2, 5):
        assert found[i].tolist() == pairs[i][1]
    assert cc.wait_any(requests) == (None, None)


def test_any_does_not_wait_for_the_first(plain):
    """One that is complete is found behind one whose message nobody has sent yet."""
    comm = plain.comm
    late, soon = np.empty(1), np.empty(1)
    requests = [comm.irecv(late, comm.rank, tag=1), comm.irecv(soon, comm.rank, tag=2)]
    sent = comm.isend(np.full(1, 2.0), comm.rank, tag=2)
    i, result = cc.wait_any(requests)
    assert i == 1
    assert result is soon
    assert soon == 2
    sent.wait()
    sent = comm.isend(np.full(1, 1.0), comm.rank, tag=1)
    assert cc.wait_any(requests) == (0, late)
    assert late == 1
    sent.wait()


@pytest.mark.parametrize("wait", [cc.wait_all, cc.wait_any])
def test_a_deadline(world, fresh, wait):
    comm = fresh(validate=False, timeout=60.0)
    requests = [None, comm.irecv(np.empty(3), comm.rank), comm.irecv(np.empty(3), comm.rank)]
    with pytest.raises((StallError, PeerAbortedError)) as caught:
        wait(requests, timeout=0.3)
    if caught.type is StallError:
        assert caught.match(
            rf"rank {comm.rank} timed out after 0\.3 s: round 1.* for rank {comm.rank} to send"
        )
    for request in requests[1:]:  # the first one has failed, and fails each time again
        with pytest.raises((StallError, PeerAbortedError)):
            request.wait(timeout=0.3)
    with pytest.raises(CommunicatorError, match="is broken"):
        comm.send(np.ones(3), comm.rank)
    world.mpi.Barrier()


@pytest.mark.parametrize("wait", [cc.wait_all, cc.wait_any])
def test_the_deadline_of_the_communicator(world, fresh, wait):
    comm = fresh(validate=False, timeout=0.3)
    with pytest.raises((StallError, PeerAbortedError)):
        wait([comm.irecv(np.empty(3), comm.rank)])
    world.mpi.Barrier()


@pytest.mark.parametrize("wait", [cc.wait_all, cc.wait_any])
@pytest.mark.parametrize("timeout", [0, -1, "1", float("nan")])
def test_wrong_timeouts(wait, timeout):
    with pytest.raises(ArgumentError, match=r"timeout is .*, and must be a positive number"):
        wait([], timeout=timeout)


@pytest.mark.parametrize("wait", [cc.wait_all, cc.wait_any])
def test_what_is_no_request(world, wait):
    request = world.comm.ibarrier()
    with pytest.raises(ArgumentError, match=r"requests\[1\] is 3, and must be the request of"):
        wait([request, 3])
    request.wait()


def test_any_needs_a_list(world):
    request = world.comm.ibarrier()
    with pytest.raises(ArgumentError, match="requests is a tuple, and must be a list, in which"):
        cc.wait_any((request,))
    request.wait()
