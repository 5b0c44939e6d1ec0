"""Programs with submissions in the background that end: well, early, by a signal, in a child."""

import pytest
from programs import fails, passes
from ranks import Ranks
from stress_background import ENDS, storm
from usual import FULL

pytestmark = pytest.mark.each_mpi("mpich")


@pytest.fixture
def ranks(tmp_path):
    return Ranks(tmp_path)


@pytest.mark.parametrize("end", ENDS)
def test_mixed_submissions_of_four_threads(ranks, end):
    """Nothing happens to a rank, or it is killed, or stopped; more of it: `stress_background`."""
    storm(ranks, 3, 10_000 if FULL else 200, seed=1, end=end, limit=400 if FULL else 60)


BEGIN = """
    import time
    import numpy as np
    import collectives as cc
    from collectives import background
    comm = cc.world()
    background.start()
"""


def test_a_program_that_does_not_wait():
    """Submitted calls are completed while the program ends."""
    result = passes(
        """
    def tell(handle):
        assert (handle.wait() == 2).all()
        print("right\\n", end="", flush=True)
    for k in range(50):
        handle = background.submit("allreduce", np.ones(1000))
    handle.add_done_callback(tell)
    """,
        head=BEGIN,
    )
    assert result.out.count("right") == 2


def test_a_joined_rank_hears_why_the_others_have_left():
    result = passes(
        """
    from collectives.errors import MismatchError, PeerLostError
    try:
        if comm.rank == 0:
            background.join()
        else:
            background.submit("allgather", np.ones(1), name="refused").wait()
    except MismatchError:
        assert comm.rank == 1
    except PeerLostError as error:
        print(error)
    """,
        head=BEGIN,
    )
    assert "rank 1 " in result.out
    assert "; before, a call of the other ranks failed: 'refused' is allgather" in result.out


def test_a_submission_that_is_never_complete():
    """Nobody waits for it: the error is said at the end."""
    result = fails(
        """
    if comm.rank == 0:
        handle = background.submit("allreduce", np.ones(1), name="lonely")
    """,
        head=BEGIN,
    )
    text = result.out + result.err
    assert "collectives: rank 0 " in text
    assert "'lonely'" in text
    assert "rank 1" in text


def test_a_forked_child():
    """It cannot submit, and does not disturb the parent."""
    result = passes(
        """
    import os
    background.submit("allreduce", np.ones(1)).wait()
    child = os.fork()
    if child == 0:
        try:
            background.submit("allreduce", np.ones(1))
        except cc.CollectivesError as error:
            os._exit(7 if "forked" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert background.submit("allreduce", np.ones(1)).wait()[0] == 2
    print("right\\n", end="", flush=True)
    """,
        head=BEGIN,
    )
    assert result.out.count("right") == 2


def test_a_forked_child_that_exits_while_the_parent_waits():
    """Calls in flight are the parent's, and the child's exit status is its own."""
    result = passes(
        """
    import os, sys
    if comm.rank == 1:
        time.sleep(0.5)
    handle = background.submit("allreduce", np.ones(1))
    if comm.rank == 0 and os.fork() == 0:
        sys.exit(5)
    if comm.rank == 0:
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 5
    assert handle.wait()[0] == 2
    print("right\\n", end="", flush=True)
    """,
        head=BEGIN,
    )
    assert result.out.count("right") == 2


@pytest.mark.parametrize("first", ["mpi", "library"])
def test_the_program_finalises_mpi(first):
    """After all was waited for; nothing can be submitted after that."""
    result = passes(
        f"""
    assert background.submit("allreduce", np.ones(1)).wait()[0] == 2
    print("right\\n", end="", flush=True)
    if "{first}" == "library":
        background.stop()
    from mpi4py import MPI
    MPI.Finalize()
    try:
        background.submit("allreduce", np.ones(1))
    except cc.CollectivesError as error:
        assert "finalised" in str(error)
        print("refused\\n", end="", flush=True)
    """,
        head=BEGIN,
    )
    assert result.out.count("right") == 2
    assert result.out.count("refused") == 2
