"""Reports on ranks of other hosts, and the files of a job that ends early."""

import re
import signal

import pytest
from commands import command
from jobs import DEADLINE_PASSED
from programs import OPEN_MPI, alone, fails, program

from collectives.process import host


@pytest.mark.each_mpi
def test_an_error_names_the_hosts_of_a_pair():
    """And whose message it is that has not come."""
    result = fails(
        """
        import os, time
        from mpi4py import MPI
        os.environ["COLLECTIVES_HOST"] = f"host {MPI.COMM_WORLD.rank}"
        import numpy as np, collectives as cc
        comm = cc.world()
        if comm.rank == 1:
            time.sleep(20)
        comm.allreduce(np.ones(3), algorithm="ring")
        """,
        env={"COLLECTIVES_TIMEOUT": "2"},
    )
    assert "waits for rank 1 on host 1 to send to rank 0 on host 0" in result.err, result


@pytest.mark.each_mpi
@pytest.mark.parametrize(
    ("validate", "call", "wanted"),
    [
        ("0", "comm.dup()", "or have ended; nothing was heard from rank 2 on host 2"),
        (
            "1",
            "comm.barrier()",
            "after 3 s of waiting for rank 2 on host 2 to call anything",
        ),
    ],
)
def test_an_error_names_who_has_not_come_inside_of_mpi(validate, call, wanted):
    result = fails(
        f"""
        import os, time
        from mpi4py import MPI
        os.environ["COLLECTIVES_HOST"] = f"host {{MPI.COMM_WORLD.rank}}"
        import collectives as cc
        comm = cc.world()
        if comm.rank == 2:
            if comm._engine.agree is not None:
                time.sleep(600)
            comm._meeting.duplicate = lambda: time.sleep(600)
        {call}
        """,
        3,
        env={"COLLECTIVES_TIMEOUT": "3", "COLLECTIVES_VALIDATE": validate},
    )
    assert wanted in result.err, result


def test_hosts_have_different_names():
    names = ["node1 b0 ", "node1 b0 ", "node2 b1 ", "twin 12345678-90 ", "twin abcdefgh-90 "]
    assert host.shown(names) == ["node1"] * 2 + ["node2", "twin (12345678)", "twin (abcdefgh)"]


@pytest.mark.skipif(OPEN_MPI, reason="MPICH's files are meant")
@pytest.mark.parametrize("end", ["raise ValueError", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_files_of_mpich(end):
    """They are in no folder any more when a job is killed."""
    result = fails(f"""
        import os, signal
        import collectives as cc
        comm = cc.world()
        comm.barrier()
        with open("/proc/self/maps") as maps:
            lines = [line.split("/", 1)[1] for line in maps if "mpich_shm_" in line]
        print(f"files {{len(lines)}} {{[line.strip() for line in lines]}}\\n", end="", flush=True)
        comm.barrier()
        if comm.rank == 1:
            {end}
        comm.barrier()
        """)
    found = re.findall(r"^files \d+ (.*)", result.out, re.M)
    assert found
    assert all("mpich_shm_" in each and "(deleted)" in each for each in found), found


@pytest.mark.skipif(OPEN_MPI, reason="no MPI is asked")
def test_an_abort_that_does_not_come_back():
    """The launcher cannot be reached, and a handler of the program does not help."""
    result = alone("""
        import signal, time
        from types import SimpleNamespace
        from collectives.process import abort
        signal.signal(signal.SIGALRM, lambda *_: None)
        world = SimpleNamespace(Abort=lambda status: time.sleep(600))
        abort.LAST = 1
        abort._abort(SimpleNamespace(COMM_WORLD=world), 1)
        """)
    assert result.status == -signal.SIGALRM, result


@pytest.mark.skipif(OPEN_MPI, reason="no MPI is asked")
def test_a_rank_without_mpi_has_no_descriptors_left():
    """It says nothing of an MPI."""
    done = command(
        "run",
        "--no-mpi",
        "-n",
        "2",
        "-c",
        "import contextlib, os, resource, numpy as np, collectives as cc\n"
        "comm = cc.world()\n"
        "if comm.rank == 1:\n"
        "    used = max(map(int, os.listdir('/proc/self/fd')))\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))\n"
        "    with contextlib.suppress(OSError):\n"
        "        while True:\n"
        "            os.dup(0)\n"
        "assert comm.split(0).allreduce(np.ones(2))[0] == 2\n",
    )
    assert done.returncode == 0, done
    assert (
        "cannot share memory and communicate through messages, which is slower: rank 1"
        in done.stderr
    )


@pytest.mark.each_mpi
@pytest.mark.parametrize("validate", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_a_call_that_not_all_ranks_have_made_is_named_at_the_end(validate):
    result = program(
        """
        import numpy as np, collectives as cc
        cc.allreduce(np.ones(3))
        if cc.rank() == 0:
            cc.broadcast(np.ones(4))
        """,
        3,
        env={"COLLECTIVES_VALIDATE": validate},
    )
    if validate == "0":
        assert result.status == 0, result
        lines = [line for line in result.err.splitlines() if line.startswith("collectives:")]
        assert len(lines) == 1, result
        assert "rank 0 called broadcast(count=4, dtype=float64, root=0" in lines[0], result
        told = "and ranks 1-2 ended without that call: is it under an if?"
        assert lines[0].endswith(told), result
    else:
        assert result.status not in (0, DEADLINE_PASSED), result
