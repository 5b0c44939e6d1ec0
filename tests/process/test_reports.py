"""The report of an uncaught error: once, short, with its ranks, and never in pieces."""

import re
import sys

import pytest
from jobs import DEADLINE_PASSED, run
from programs import CLEAN, fails, program

pytestmark = pytest.mark.any_mpi

PATIENT = {"COLLECTIVES_TIMEOUT": "600"}

TYPO = """
import numpy as np, collectives as cc
comm = cc.world()
comm.barrier()
comm.alreduce(np.ones(3))
"""


def ended(result):
    return result.status not in (0, DEADLINE_PASSED)


@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize("options", [(), ("-m", "mpi4py")], ids=["plain", "mpi4py"])
def test_an_error_of_all_ranks_is_printed_once(options):
    result = fails(TYPO, ranks=3, env=PATIENT, options=options)
    assert result.err.count("has no attribute 'alreduce'") == 1, result
    assert re.search(
        r"^Traceback \(most recent call last\):\n"
        r'  File "<string>", line 5, in <module>\n'
        r"AttributeError: 'Communicator' object has no attribute 'alreduce'.*\n"
        r"collectives: ranks 0-2 of 3 end the job because of an uncaught exception$",
        result.err,
        re.MULTILINE,
    ), result


def test_different_errors_are_printed_by_each_in_one_piece():
    result = fails(
        """
        import collectives as cc
        comm = cc.world()
        comm.barrier()
        raise ValueError(f"{comm.rank} " * 3000)
        """,
        ranks=3,
        env=PATIENT,
    )
    whole = re.findall(
        r"^ValueError: (\d )(?:\1)+\n"
        r"collectives: rank \1?of 3 ends the job because of an uncaught exception$",
        result.err,
        re.MULTILINE,
    )
    assert sorted(whole) == ["0 ", "1 ", "2 "], result


def test_an_error_before_the_first_communicator():
    result = fails("import collectives as cc\nnonsense\n", env=PATIENT)
    assert "NameError: name 'nonsense' is not defined" in result.err
    assert re.search(r"collectives: ranks? (0|1|0-1) of 2 ends? because of an unc", result.err)


def test_the_frames_of_the_library_are_left_out():
    text = """
        import numpy as np, collectives as cc
        comm = cc.world()
        if comm.rank == 1:
            comm.allreduce(np.ones(3), algorithm="nosuch")
        comm.barrier()
        """
    result = fails(text, env=PATIENT)
    assert re.search(
        r'^Traceback .*\n  File "<string>", line 5, in <module>\n'
        r"collectives.errors.ArgumentError: allreduce has no algorithm 'nosuch'; .*\n"
        r"collectives: rank 1 of 2 ends the job because of an uncaught exception$",
        result.err,
        re.MULTILINE,
    ), result
    result = program(text, env=PATIENT | {"COLLECTIVES_TRACEBACK": "full"})
    assert "chooser.py" in result.err, result
    assert "_core" in result.err


def test_an_error_inside_the_library_that_is_none_of_its_own_is_shown_whole():
    result = fails(
        """
        import collectives as cc
        from collectives.choice import chooser
        comm = cc.world()
        chooser.schedule = None
        comm.barrier()
        """,
        env=PATIENT,
    )
    assert "AttributeError: 'NoneType' object has no attribute 'compile'" in result.err
    assert "chooser.py" in result.err


def test_an_error_in_a_users_generator_keeps_its_lines():
    result = fails(
        """
        import numpy as np, collectives as cc
        @cc.algorithms.algorithm("allreduce")
        def mine(r, p):
            yield cc.algorithms.Exchange(send=(1, r // 0))
        cc.allreduce(np.ones(3), algorithm="mine")
        """,
        env=PATIENT,
    )
    assert result.err.count("direct cause of the following exception") == 1
    assert 'File "<string>", line 5, in mine' in result.err
    assert "registry.py" not in result.err


@pytest.mark.each_mpi("mpich")
def test_a_rank_that_cannot_meet_the_others_prints_its_own():
    """Another process has the name, and does not answer."""
    result = fails(
        """
        import socket
        from collectives.process import report
        import collectives as cc
        comm = cc.world()
        report.ANSWER = 0.5
        if comm.rank == 0:
            meeting = report._bound()
        comm.barrier()
        if comm.rank == 1:
            raise ValueError("not lost")
        comm.barrier()
        """,
        env=PATIENT,
    )
    assert result.err.count("ValueError: not lost") == 1
    assert "rank 1 of 2 ends the job" in result.err


def test_without_a_stderr_the_job_ends_all_the_same():
    fails(
        """
        import sys, collectives as cc
        comm = cc.world()
        comm.barrier()
        if comm.rank == 1:
            sys.stderr = None
            raise ValueError("unheard")
        comm.barrier()
        """,
        env=PATIENT,
    )


def test_an_error_whose_text_cannot_be_encoded():
    result = fails(
        """
        import collectives as cc
        comm = cc.world()
        if comm.rank == 1:
            raise ValueError("bad \\udc80 name")
        comm.barrier()
        """,
        env=PATIENT,
    )
    assert r"ValueError: bad \udc80 name" in result.err


DISTRIBUTED = """
import os, torch, torch.distributed as dist
import collectives as cc, collectives.torch as hvd
{start}
total = {total}
if cc.rank() == 1:
    {fails}
x = torch.ones(2 + cc.rank())
{call}
"""
DIST = {
    "start": "hvd.init_process_group()",
    "total": "dist.all_reduce(torch.ones(2))",
    "call": "dist.all_reduce(x)",
}
HOROVOD = {
    "start": "hvd.init()",
    "total": "hvd.allreduce(torch.ones(2))",
    "call": "hvd.allreduce(x)",
}


@pytest.mark.parametrize("interface", [DIST, HOROVOD], ids=["dist", "hvd"])
@pytest.mark.parametrize(
    ("fails", "wanted"),
    [
        ("raise ValueError('no such thing')", "ValueError: no such thing"),
        ("pass", "MismatchError|differs"),
        pytest.param(*("os.kill(os.getpid(), 9)", "SIGKILL|[Kk]illed"), marks=pytest.mark.slow),
    ],
    ids=["exception", "mismatch", "loss"],
)
@pytest.mark.parametrize(
    "launcher", ["mpiexec", pytest.param("no-mpi", marks=pytest.mark.slow), "torchrun"]
)
def test_errors_of_torch_programs_are_printed(launcher, fails, wanted, interface, tmp_path):
    """torch.distributed collects the report of an exception, and prints it after all hooks."""
    pytest.importorskip("torch")
    text = DISTRIBUTED.format(**interface, fails=fails)
    if launcher == "mpiexec":
        result = program(text, env=PATIENT)
    else:
        file = tmp_path / "program.py"
        file.write_text(text)
        words = {
            "no-mpi": ["collectives", "run", "--no-mpi", "-n", "2"],
            "torchrun": ["torch.distributed.run", "--nproc-per-node", "2", "--standalone"],
        }
        command = [sys.executable, "-m", *words[launcher], str(file)]
        result = run(command, env={**CLEAN, **PATIENT})
    assert ended(result), result
    assert re.search(wanted, result.out + result.err), result
    assert "because of an uncaught exception" in result.err or "kill" in fails, result
