"""Programs that a rank starts: they inherit its variables, and are no ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import command, environment
from jobs import PATIENCE

from collectives.process import environment as process_environment
from collectives.process import processes

pytestmark = pytest.mark.each_mpi

TOLD = "this process is no rank: rank 1 of 2 (process "
PARENT = """
import subprocess, sys
{first}
barrier()
if rank() == 1:
    done = subprocess.run({words}, stderr=subprocess.PIPE, text=True, timeout=60)
    sys.stdout.write(f"{{done.returncode}} {{done.stderr}}")
barrier()
"""
OURS = "from collectives import barrier, rank"
ACCELERATED = """
from collectives.mpi4py import accelerate
from mpi4py import MPI
barrier, rank = accelerate(MPI.COMM_WORLD).Barrier, MPI.COMM_WORLD.Get_rank
"""
CHILDREN = {
    "ours": "import collectives as cc; cc.allreduce_object(1)",
    "accelerated": "from collectives.mpi4py import accelerate",
}


def _direct(code: str) -> str:
    return f"[sys.executable, '-c', {code!r}]"


def _by_a_shell(code: str) -> str:
    script = '"$0" -c "$1"; exit $?'
    return f"['sh', '-c', {script!r}, sys.executable, {code!r}]"


@pytest.mark.parametrize(
    "launcher", ["mpi", "no-mpi", pytest.param("torchrun", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("first", "child", "words"),
    [
        (OURS, "ours", _direct),
        (OURS, "ours", _by_a_shell),
        (OURS, "accelerated", _direct),
        (ACCELERATED, "ours", _direct),
    ],
    ids=["ours", "by a shell", "accelerated", "of an accelerated rank"],
)
def test_a_child_is_told(
    tmp_path: Path, mpi: None, launcher: str, first: str, child: str, words: Callable[[str], str]
) -> None:
    if first is ACCELERATED and launcher != "mpi":
        pytest.skip("it needs MPI")
    path = tmp_path / "parent.py"
    path.write_text(PARENT.format(first=first, words=words(CHILDREN[child])))
    done = _run(path, launcher)
    assert done.returncode == 0, done
    assert done.stdout.startswith("1 Traceback"), done
    assert TOLD in done.stdout


def _run(path: Path, launcher: str) -> subprocess.CompletedProcess[str]:
    if launcher != "torchrun":
        words = ["--no-mpi"] if launcher == "no-mpi" else []
        return command("run", *words, "-n", "2", str(path))
    pytest.importorskip("torch")
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(path)],
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


UNGUARDED = """
import multiprocessing
import sys
import collectives as cc

cc.barrier()
if cc.rank() == 1:
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()
    assert process.exitcode == 1
cc.barrier()
"""


@pytest.mark.parametrize("launcher", ["mpi", "no-mpi"])
def test_a_program_that_multiprocessing_imports(tmp_path: Path, mpi: None, launcher: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(UNGUARDED)
    done = _run(path, launcher)
    assert done.returncode == 0, done
    assert TOLD in done.stderr
    assert 'put what only ranks do under `if __name__ == "__main__":`' in done.stderr


def test_a_rank_of_another_job_is_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that runs in a rank has set other variables, or has another parent."""
    parent = os.getppid()
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv(processes.MARK, f"{parent} {process_environment.identity()}")
    assert processes.parent_rank() == parent
    monkeypatch.setenv("PMI_RANK", "0")
    assert processes.parent_rank() == 0
    monkeypatch.setenv(processes.MARK, f"{os.getpid()} {process_environment.identity()}")
    assert processes.parent_rank() == 0
    monkeypatch.setenv(processes.MARK, f"{parent} {process_environment.identity()}")
    monkeypatch.setattr(processes, "LAUNCHERS", {processes.name(parent)})
    assert processes.parent_rank() == 0
