"""The variables of torchrun, which every launcher of this library sets: frameworks that look for
these alone would train a model of their own on each rank.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from commands import command, environment
from jobs import line_of

import collectives as cc
from collectives.engines import rank as ranks

NAMES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"]
ADDRESS = ["MASTER_ADDR", "MASTER_PORT"]
SHOW = (
    f"import os, sys; sys.stdout.write(' '.join(map(os.environ.get, {NAMES + ADDRESS})) + chr(10))"
)
GONE = f"import os, sys; found = [n for n in {NAMES + ADDRESS} if n in os.environ]; "
GONE += "sys.stdout.write(str(found) + chr(10))"


def test_ranks_of_this_host() -> None:
    done = command("run", "--no-mpi", "-n", "2", "-c", SHOW, RANK="5", MASTER_ADDR="elsewhere")
    first, second = sorted(done.stdout.splitlines())
    *place, port = first.split()
    assert place == ["0", "2", "0", "2", "0", "127.0.0.1"], done
    assert second.split() == ["1", "2", "1", "2", "0", "127.0.0.1", port]


def test_two_jobs_have_different_ports() -> None:
    """Each launcher keeps its port, even while nobody listens there."""
    code = f"{SHOW}; sys.stdout.flush(); sys.stdin.read()"
    words = [sys.executable, "-m", "collectives", "run", "--no-mpi", "-n", "1", "-c", code]
    with contextlib.ExitStack() as stack:
        ports = set()
        for _ in range(3):
            job = stack.enter_context(
                subprocess.Popen(
                    words,
                    env=environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert job.stdin is not None
            stack.callback(job.stdin.close)
            ports.add(line_of(job).split()[-1])
    assert len(ports) == 3


def test_they_can_be_left_out() -> None:
    done = command("run", "--no-mpi", "--no-torch-variables", "-n", "2", "-c", GONE)
    assert done.stdout == "[]\n" * 2, done


def test_a_job_that_grows_has_none() -> None:
    """The numbers of its ranks change."""
    done = command("run", "--no-mpi", "--min-np", "2", "--max-np", "2", "-c", GONE)
    assert done.stdout == "[]\n" * 2, done


def values() -> list[str | None]:
    return [os.environ.get(name) for name in NAMES + ADDRESS]


def inherited() -> str | None:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE")


def test_ranks_of_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # of another job
    monkeypatch.setenv("RANK", "7")
    first, second = cc.spawn(values, 2)
    assert first[:-1] == ["0", "2", "0", "2", "0", "127.0.0.1"]
    assert second == ["1", "2", "1", *first[3:]]
    assert cc.spawn(inherited, 1) == [None]
    assert os.environ["RANK"] == "7"


class Store(dict[str, bytes]):
    set = dict.__setitem__
    get = dict.__getitem__  # type: ignore[assignment]


def test_ranks_of_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their processes live longer than a job."""
    monkeypatch.setenv("RANK", "7")
    before = values()
    with ranks.job(ranks.by_store(Store(), 0, 1)):
        assert values()[:-1] == ["0", "1", "0", "1", "0", "127.0.0.1"]
        assert values()[-1] is not None
    assert values() == before


TRAIN = """
import os, subprocess, sys
import torch
from torch import distributed as dist

def total():
    x = torch.ones(1)
    dist.all_reduce(x)
    return int(x[0])

dist.init_process_group("gloo")
found = [dist.get_rank(), total()]
dist.destroy_process_group()
import collectives.torch
for backend in ("collectives", "gloo", "collectives"):
    dist.init_process_group(backend)
    found += [dist.get_rank(), total()]
    dist.destroy_process_group()
dist.init_process_group("collectives", rank=found[0], world_size=2)
found.append(total())
sys.stdout.write(f"{found}\\n")
"""


def test_torch_meets_by_them_and_by_the_launcher(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    done = command("run", "--no-mpi", "-n", "2", str(path), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done
    wanted = [f"{[rank, 2] * 4 + [2]}" for rank in range(2)]
    assert sorted(done.stdout.splitlines()) == wanted, done


CHILD = """
import subprocess, sys
import collectives as cc
code = '''
import collectives.torch, torch
torch.distributed.init_process_group("collectives")
'''
done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
told = "it was started by another process than the ranks, perhaps by one of them"
sys.stdout.write(f"{done.returncode} {told in done.stderr} {cc.allreduce_object(1)}\\n")
"""


def test_a_child_of_a_rank_is_no_rank_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "parent.py"
    path.write_text(textwrap.dedent(CHILD))
    done = command("run", "--no-mpi", "-n", "2", str(path), OMP_NUM_THREADS="1")
    assert done.stdout == "1 True 2\n" * 2, done
