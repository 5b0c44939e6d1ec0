"""Ranks that are stopped while others wait for them: who waits says so, and does not hang."""

import re
import subprocess
import sysconfig

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


# Each yield lasts as long as on a very busy machine, once the program says so.
SLOW_YIELDS = """
#include <time.h>
int is_slow;
int sched_yield(void)
{
    const struct timespec moment = {0, 100000000};
    return is_slow ? nanosleep(&moment, 0) : 0;
}
"""


@pytest.mark.any_mpi
@pytest.mark.parametrize("wait", ["recv", "wait", "wait_all"])
def test_a_wait_that_yields_for_long_is_no_stop(tmp_path, wait):
    """Polls of MPI may yield, too, and time for which this process was stopped does not count."""
    made, told = tmp_path / "yields.so", tmp_path / "told"
    compiler = sysconfig.get_config_var("CC").split()[0]
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", made]
    subprocess.run(command, input=SLOW_YIELDS, text=True, check=True)
    result = program(
        f"""
        import ctypes, os, time
        import numpy as np, collectives as cc
        comm = cc.Communicator(timeout=1)
        comm.barrier()
        ctypes.c_int.in_dll(ctypes.CDLL(None), "is_slow").value = 1
        limit = time.monotonic() + 20
        while comm.rank == 0 and not os.path.exists({str(told)!r}) and time.monotonic() < limit:
            time.sleep(0.01)
        if comm.rank == 1:
            begin = comm.recv if {wait!r} == "recv" else comm.irecv
            try:
                request = begin(np.empty(1), 0)
                request.wait() if {wait!r} == "wait" else cc.wait_all([request, request])
            except cc.errors.StallError as error:
                print(error, flush=True)
            open({str(told)!r}, "w").close()
        os._exit(0)
        """,
        env={"LD_PRELOAD": str(made), "OMPI_MCA_mpi_yield_when_idle": "1"},
    )
    assert "rank 1 timed out after 1 s: " in result.out, result
