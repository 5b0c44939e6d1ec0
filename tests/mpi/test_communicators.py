"""Groups: how they are made, what they know of themselves, and how they end."""

import copy
import pickle

import numpy as np
import pytest
from mpi4py import MPI

import collectives as cc
from collectives.algorithms.spec import COLLECTIVES
from collectives.errors import ArgumentError, CommunicatorError, MPIError
from collectives.text.words import count


def works(comm):
    y = comm.allreduce(np.full(10, comm.rank + 1))
    return bool((y == comm.size * (comm.size + 1) // 2).all())


def test_ranks_and_sizes(group):
    assert (group.comm.rank, group.comm.size) == (group.mpi.rank, group.mpi.size)
    assert works(group.comm)


def test_hosts(group):
    comm = group.comm
    assert 0 <= comm.local_rank < comm.local_size <= comm.size
    assert 0 <= comm.node < comm.nodes
    where = group.mpi.allgather((comm.node, comm.local_rank))
    assert len(set(where)) == comm.size
    if MPI.COMM_WORLD.size == comm.size == comm.local_size:
        assert comm.nodes == 1


def test_world_is_made_once():
    assert cc.world() is cc.world()


def test_split(world):
    comm = world.comm
    half = comm.split(comm.rank % 2, key=-comm.rank)
    members = range(comm.rank % 2, comm.size, 2)
    assert half.size == len(members)
    assert half.rank == list(reversed(members)).index(comm.rank)
    y = half.allreduce(np.array([comm.rank]))
    assert y[0] == sum(members)
    half.free()


def test_split_without_a_color(world):
    comm = world.comm
    part = comm.split(0 if comm.rank == 0 else None)
    assert (part is None) == (comm.rank != 0)
    if part is not None:
        assert part.size == 1
        assert works(part)


def test_groups_work_at_the_same_time(world):
    """Halves take different numbers of steps, and meet in the whole again."""
    comm = world.comm
    half = comm.split(comm.rank % 2)
    for _ in range(5 if comm.rank % 2 else 15):
        assert works(half)
    assert works(comm)


def test_user_messages_never_meet_ours(world):
    """The program's own messages on the communicator that was passed, of any tag."""
    mpi = world.mpi
    comm = cc.Communicator(mpi)
    right, left = (mpi.rank + 1) % mpi.size, (mpi.rank - 1) % mpi.size
    sends = [mpi.isend(("mine", tag), right, tag) for tag in range(4)]
    assert works(comm)
    for tag in range(4):
        assert mpi.recv(source=left, tag=tag) == ("mine", tag)
    MPI.Request.waitall(sends)
    comm.free()


def test_freed(world):
    comm = world.comm.dup()
    where = f"rank {comm.rank} of {comm.size} on {count(comm.nodes, 'host')} by {comm.transport}"
    assert repr(comm) == f"<collectives.Communicator, {where}>"
    comm.free()
    comm.free()
    assert repr(comm) == "<collectives.Communicator, freed>"
    for call in (comm.barrier, comm.dup, lambda: comm.split(0), lambda: comm.allreduce(np.ones(1))):
        with pytest.raises(CommunicatorError, match="the communicator was freed"):
            call()


def test_context_manager(world):
    with world.comm.dup() as comm:
        assert works(comm)
    with pytest.raises(CommunicatorError, match="freed"):
        comm.barrier()


def test_many_communicators(world):
    """MPI has few thousand contexts: those that are freed are given back."""
    for _ in range(30):
        with world.comm.dup() as comm:
            comm.barrier()


@pytest.mark.parametrize("mpi", [3, "world", None.__class__, MPI.COMM_NULL, MPI.GROUP_EMPTY])
def test_refused(mpi):
    with pytest.raises(ArgumentError, match="must be an mpi4py intracommunicator"):
        cc.Communicator(mpi)


def test_timeout(world, environ):
    with environ(COLLECTIVES_TIMEOUT="12.5"), cc.Communicator() as comm:
        assert comm.timeout == 12.5
        comm.timeout = 7
        assert comm.timeout == 7.0
        with comm.dup() as second:
            assert second.timeout == 7.0
    for text in ("soon", "0", "-1", "nan"):
        with (
            environ(COLLECTIVES_TIMEOUT=text),
            pytest.raises(ArgumentError, match=f"COLLECTIVES_TIMEOUT is '{text}'"),
        ):
            cc.Communicator()


def test_explain(world):
    comm = world.comm
    for collective in COLLECTIVES:
        for nbytes in (0, 8, 2**20):
            decision = comm.explain(collective, nbytes)
            group = "1 rank" if comm.size == 1 else f"{comm.size} ranks"
            assert f" on {group}: {decision.algorithm.name}" in str(decision)
    decision = comm.explain("allreduce", 800, algorithm="ring")
    assert decision.reason == "asked for by the caller"
    with pytest.raises(ArgumentError, match="has no algorithm 'x'"):
        comm.explain("allreduce", algorithm="x")
    assert comm.explain("allreduce", np.int64(800)).nbytes == 800
    with pytest.raises(ArgumentError, match="nbytes is a ndarray, and must be a number of bytes"):
        comm.explain("allreduce", np.ones(2))
    with pytest.raises(ArgumentError, match="nbytes is -1, and cannot be below 0"):
        comm.explain("allreduce", -1)


def test_a_users_algorithm(world):
    """It is proven on its first call, and then runs like any other."""
    comm = world.comm

    @cc.algorithms.algorithm("broadcast", name="sequential")
    def sequential(r, p, root):
        for q in range(p):
            if r == root != q:
                yield cc.algorithms.Exchange(send=(q, 0))
            elif r == q != root:
                yield cc.algorithms.Exchange(recv=(root, 0))

    @cc.algorithms.algorithm("broadcast", name="forgetful")
    def forgetful(r, p, root):
        yield from ()

    try:
        for root in range(comm.size):
            y = comm.broadcast(np.full(9, comm.rank), root=root, algorithm="sequential")
            assert (y == root).all()
        if comm.size > 1:
            with pytest.raises(cc.errors.ProofError):
                comm.broadcast(np.ones(3), algorithm="forgetful")
        assert works(comm)
    finally:
        cc.algorithms.unregister("broadcast", "sequential")
        cc.algorithms.unregister("broadcast", "forgetful")


def test_a_users_algorithm_that_is_replaced(world):
    """A communicator forgets a name when the name gets another meaning."""
    comm = world.comm

    def register(owner):
        @cc.algorithms.algorithm("broadcast", name="mine", replace=True)
        def mine(r, p, root):
            if owner is not None:
                yield from cc.algorithms.get("broadcast", owner).rounds(r, p, root)

    register("tree")
    try:
        assert (comm.broadcast(np.full(3, comm.rank), algorithm="mine") == 0).all()
        register("flat")
        assert (comm.broadcast(np.full(3, comm.rank), algorithm="mine") == 0).all()
        register(None)
        if comm.size > 1:
            with pytest.raises(cc.errors.ProofError, match="ends without block 0"):
                comm.broadcast(np.ones(3), algorithm="mine")
    finally:
        cc.algorithms.unregister("broadcast", "mine")
    with pytest.raises(cc.errors.ArgumentError, match="no algorithm 'mine'"):
        comm.broadcast(np.ones(3), algorithm="mine")


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_communicator_cannot_be_copied(world, copied):
    for each in (world.comm, {"model": [world.comm]}):
        if copied is copy.copy and each is not world.comm:
            continue
        with pytest.raises(CommunicatorError) as caught:
            copied(each)
        assert str(caught.value).startswith(
            "a communicator cannot be pickled or copied, because it belongs to its process; "
            "comm.dup() makes another one of the same ranks"
        )
    assert works(world.comm)


@pytest.mark.several
def test_a_broken_communicator_says_so(world, fresh, stalls):
    comm = fresh(validate=False, timeout=0.3)
    if comm.rank == 0:
        with stalls(comm, "timed out after 0.3 s"):
            comm.allreduce(np.ones(3))
        assert ", broken: r" in repr(comm)
    world.comm.barrier()


def test_free_of_what_the_program_has_freed():
    comm = cc.Communicator()
    comm.mpi.Free()
    with pytest.raises(MPIError, match=r"free\(\): MPI says"):
        comm.free()
    comm.free()
    assert "freed" in repr(comm)
