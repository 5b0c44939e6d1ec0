"""Ranks that are stopped while others wait for them: who waits says so, and does not hang."""

import re

import pytest
from commands import command
from jobs import DEADLINE_PASSED
from programs import program

SOON = {"COLLECTIVES_TIMEOUT": "2"}
STOPS_AT_EXIT = """
import atexit, os, signal
import numpy as np, collectives as cc
comm = cc.world()
def stop():
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
atexit.register(stop)
"""


def said(result, pattern):
    """Check that a program failed in time, and that its errors match."""
    assert result.status not in (0, DEADLINE_PASSED), result
    assert re.search(pattern, result.err), result


@pytest.mark.each_mpi("mpich")
def test_a_rank_is_stopped_at_its_end():
    """The others would wait in MPI_Finalize for ever."""
    pattern = (
        r"rank [02] has reached the end of its program and has waited \S+ s for rank 1 "
        r"\(process \d+\), which"
    )
    said(program(STOPS_AT_EXIT, 3, env=SOON), f"{pattern} is stopped")


def test_a_rank_without_mpi_is_stopped_at_its_end():
    done = command("run", "--no-mpi", "-n", "3", "-c", STOPS_AT_EXIT, **SOON)
    assert done.returncode == 1, done
    pattern = r"rank 1 of 3 \(process \d+\) has been stopped for \d+ s, and the others have ended"
    assert re.search(pattern, done.stderr), done


@pytest.mark.any_mpi
def test_a_rank_ends_long_before_the_others():
    """It waits for ranks that run, whatever the deadline."""
    result = program(
        """
        import time, collectives as cc
        comm = cc.world()
        if comm.rank == 1:
            time.sleep(3)
        """,
        env={"COLLECTIVES_TIMEOUT": "1"},
    )
    assert (result.status, result.err) == (0, ""), result


@pytest.mark.any_mpi
def test_a_call_says_who_is_stopped():
    result = program(
        """
        import os, signal
        import numpy as np, collectives as cc
        comm = cc.world()
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        comm.allreduce(np.ones(3))
        """,
        env=SOON,
    )
    said(result, r"StallError: .*; rank 1 \(process \d+, stopped\) has left call 1, barrier")


@pytest.mark.any_mpi
def test_a_meeting_says_who_is_stopped():
    """Also when the rank is inside of MPI."""
    result = program(
        """
        import os, signal
        import collectives as cc
        comm = cc.world()
        if comm.rank == 1:
            comm._meeting.split = lambda *words: os.kill(os.getpid(), signal.SIGSTOP)
        comm.split(0)
        """,
        env=SOON,
    )
    said(
        result,
        r"StallError: split\(\) timed out: .*: rank 1 of COMM_WORLD \(process \d+\) is stopped",
    )


@pytest.mark.each_mpi("mpich")
def test_a_measurement_has_a_deadline():
    """Ranks that measure wait inside of MPI, which waits for ever."""
    result = program("""
        import os, signal
        import collectives as cc
        from collectives.measuring.bench import Bench
        comm = cc.Communicator(timeout=2)
        bench = Bench(comm, comm.mpi.Dup())
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        with bench.watch:
            bench.mpi.Barrier()
        """)
    pattern = r"rank 0 has waited 2 s for other ranks while it measures; rank 1 \(process \d+\)"
    said(result, f"{pattern} is stopped")
