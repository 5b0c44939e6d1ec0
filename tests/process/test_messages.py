"""Messages between hosts by UCX, of ranks that MPI has started."""

import re

import pytest
from programs import fails, passes

pytestmark = [pytest.mark.each_mpi("openmpi"), pytest.mark.usefixtures("has_ucx")]

BY_UCX = {"COLLECTIVES_MESSAGES": "ucx"}

HEAD = """
import os, sys
from mpi4py import MPI
rank, p = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
os.environ["COLLECTIVES_HOST"] = f"host{rank % 2}"
import numpy as np, collectives as cc
from collectives.errors import CollectivesError
"""


def test_messages_of_mpi_go_on_while_a_rank_waits_for_those_of_ucx():
    """A long message of the program must arrive before the other rank joins the collective."""
    passes(
        """
        comm, n = cc.world(), 4 << 20
        assert comm.transport == "ucx"
        for start in comm.barrier, comm.ibarrier:
            for k in range(3):
                if rank == 0:
                    sent = MPI.COMM_WORLD.Isend(np.full(n, k, np.uint8), 1)
                    request = start()
                    if request is not None:
                        while not request.test():
                            pass
                    sent.Wait()
                else:
                    MPI.COMM_WORLD.Recv(came := np.empty(n, np.uint8), 0)
                    assert (came == k).all()
                    comm.barrier()
        """,
        2,
        env=BY_UCX,
        head=HEAD,
    )


def test_communicators_share_connections():
    """They are made in any order, of ranks that some earlier ones have in common."""
    passes(
        """
        from collectives.process import mails
        pairs = [cc.Communicator(MPI.COMM_WORLD.Split(rank // 2)) for _ in range(2)]
        assert len(mails._beside) == 1
        everybody = cc.Communicator()
        rest = MPI.COMM_WORLD.Split(0 if rank else MPI.UNDEFINED)
        last = cc.Communicator(rest) if rank else None
        assert len(mails._beside) == 2
        twin, half = everybody.dup(), everybody.split(rank % 2)
        assert len(mails._beside) == 2 and half.transport == "shm"
        x = np.full(1000, rank + 1.0)
        for comm, ranks in (
            (pairs[0], [rank // 2 * 2, rank // 2 * 2 + 1]),
            (pairs[1], [rank // 2 * 2, rank // 2 * 2 + 1]),
            (everybody, range(p)), (last, range(1, p)), (twin, range(p)),
        ):
            if comm is not None:
                assert comm.transport == "ucx", comm
                assert (comm.allreduce(x) == sum(each + 1 for each in ranks)).all()
                assert comm.mpi.size == comm.size
        requests = [comm.iallreduce(x) for comm in (everybody, twin)]
        assert all((each.wait() == p * (p + 1) / 2).all() for each in reversed(requests))
        pairs[0].free()
        twin.free()
        assert (pairs[1].allreduce(x) == 2 * (rank // 2 * 2) + 3).all()
        """,
        4,
        env=BY_UCX,
        head=HEAD,
    )


def test_a_program_may_finalise_mpi_itself():
    """The last messages of a rank arrive."""
    passes(
        """
        comm = cc.world()
        if rank == 0:
            comm.send(np.full(300_000, 5.0), 1)
        else:
            assert (comm.recv(np.empty(300_000), 0) == 5).all()
        MPI.Finalize()
        """,
        2,
        env=BY_UCX,
        head=HEAD,
    )


def test_a_child_that_ends_leaves_the_connections_of_its_parent():
    passes(
        """
        comm = cc.world()
        comm.barrier()
        child = os.fork()
        if child == 0:
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        for _ in range(3):
            assert (comm.allreduce(np.full(100_000, rank + 1.0)) == 3).all()
        """,
        2,
        env=BY_UCX,
        head=HEAD,
    )


def test_a_rank_that_gives_up_tells_the_others_why():
    result = fails(
        """
        os.environ["COLLECTIVES_ABORT"] = "0"
        comm = cc.world()
        comm.barrier()
        if rank == 1:
            raise ValueError("a fault of the program")
        try:
            comm.barrier()
        except CollectivesError as error:
            print(rank, type(error).__name__, error, flush=True)
            os._exit(1)
        """,
        3,
        env=BY_UCX,
        head=HEAD,
    )
    told = r"[02] PeerAbortedError rank 1 on host1 gave up: ValueError: a fault of the program"
    assert re.search(told, result.out), result  # the launcher may end one of them earlier


def test_the_word_must_be_the_same_on_all_ranks():
    result = fails(
        """
        os.environ["COLLECTIVES_MESSAGES"] = "ucx" if rank else "mpi"
        cc.world()
        """,
        2,
        head=HEAD,
    )
    assert "ArgumentError: COLLECTIVES_MESSAGES is mpi on rank 0 and ucx on rank 1" in result.err


def test_an_unknown_word_is_refused():
    result = fails("cc.world()", 2, env={"COLLECTIVES_MESSAGES": "tcp"}, head=HEAD)
    said = "COLLECTIVES_MESSAGES is 'tcp', and must be one of mpi, ucx"
    assert said in result.err, result


MISSING = """
    if rank == 1:
        os.environ["COLLECTIVES_UCX"] = "/nowhere/libucp.so.0"
"""


def test_ucx_may_be_missing_on_a_rank():
    result = fails(MISSING + "    cc.world()\n", 2, env=BY_UCX, head=HEAD)
    said = r"CommunicatorError: COLLECTIVES_MESSAGES is ucx, and rank 1 on host1 has no UCX: "
    assert re.search(said + "UCX cannot be loaded: /nowhere/libucp.so.0: ", result.err), result
    passes(MISSING + "    assert cc.world().transport != 'ucx'\n", 2, head=HEAD)


def test_ranks_that_ucx_does_not_reach_are_named():
    """The network of rank 1 does not exist."""
    result = fails(
        """
        if rank == 1:
            os.environ["UCX_NET_DEVICES"] = "none0"
        cc.world().allreduce(np.full(1000, rank + 1.0))
        """,
        3,
        env={**BY_UCX, "UCX_TLS": "tcp,self"},
        head=HEAD,
    )
    assert re.search(r"PeerLostError: .* rank \d .* has died while", result.err), result
