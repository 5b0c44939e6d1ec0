"""A program may survive losses that it was told of; all others are reported when it ends."""

import pytest
from programs import OPEN_MPI, fails, passes

pytestmark = pytest.mark.each_mpi

LOST = """
import sys, time, numpy as np, collectives as cc
comm = cc.world()
comm.barrier()
if comm.rank == 1:
    sys.exit()
"""


@pytest.mark.parametrize(
    "call",
    [
        "comm.allreduce_many([np.ones(1 << 20), np.ones(1 << 20)])",
        "cc.wait_all([comm.iallreduce(np.ones(1 << 20)) for _ in range(2)])",
        "q = comm.iallreduce(np.ones(9)), comm.allreduce(np.ones(9))",
    ],
)
def test_a_loss_that_is_caught(call):
    """The other operations of the communicator do not end the ranks that save their results."""
    result = passes(
        f"""
            try:
                {call}
            except cc.errors.PeerLostError:
                print("caught", flush=True)
            time.sleep(comm.rank / 2)
            print("saved", flush=True)
            """,
        head=LOST,
        ranks=3,
    )
    assert result.out.count("caught") == result.out.count("saved") == 2


def test_a_difference_that_is_caught():
    result = passes("""
        import numpy as np, collectives as cc
        from mpi4py import MPI
        comm = cc.world()
        x = np.arange(12.0)
        try:
            comm.allreduce_many([x, x.astype("f4") if comm.rank else x])
        except cc.errors.MismatchError:
            print("caught", flush=True)
        MPI.COMM_WORLD.Barrier()
        print("end", flush=True)
        """)
    assert result.out.count("end") == 2


def test_a_loss_that_nobody_heard_of():
    result = fails(LOST + "q = comm.iallreduce(np.ones(1 << 20))\ntime.sleep(1)\n")
    assert "rank 0 exits with operations in flight: " in result.err
    assert ", started at <string>:" in result.err


def test_a_loss_that_another_request_noticed():
    """The communicator broke when other operations started, and no call has said so."""
    result = fails("""
        import time, numpy as np, collectives as cc
        comm = cc.world()
        alone = comm.split(comm.rank)
        q = comm.iallreduce(np.ones(3 + comm.rank))
        del q
        for k in range(40):
            alone.iallreduce(np.ones(3)).wait()
            time.sleep(0.01)
        """)
    assert "exits with operations in flight: " in result.err
    assert "MismatchError" in result.err or "the ranks do not agree" in result.err


def test_a_rank_that_ends_alone():
    """Under COLLECTIVES_ABORT=0, what a rank leaves in flight does not end the others."""
    result = fails(
        """
        import time, numpy as np, collectives as cc
        comm = cc.world()
        q = comm.iallreduce(np.ones(1 << 20))
        if comm.rank == 1:
            time.sleep(0.5)
            raise ValueError("on rank 1 only")
        try:
            q.wait()
        except cc.errors.CollectivesError as error:
            print(type(error).__name__, flush=True)
        time.sleep(1)
        print("saved", flush=True)
        """,
        ranks=3,
        env={"COLLECTIVES_ABORT": "0"},
    )
    assert result.out.count("PeerAbortedError") == result.out.count("saved") == 2
    assert "in flight" not in result.err


def test_a_rank_that_forgets_a_request_ends_alone():
    result = fails(
        """
        import time, numpy as np, collectives as cc
        comm = cc.world()
        comm.barrier()
        if comm.rank == 1:
            comm.iallreduce(np.ones(1 << 20))
        else:
            time.sleep(2)
            try:
                comm.allreduce(np.ones(1 << 20))
            except cc.errors.PeerAbortedError as error:
                print(error, flush=True)
        """,
        env={"COLLECTIVES_ABORT": "0"},
    )
    assert "rank 1 exits with operations in flight: allreduce" in result.err
    assert OPEN_MPI or "rank 1 gave up: it exits with operations in flight" in result.out
