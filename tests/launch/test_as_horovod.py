"""``collectives run --as-horovod``: programs that import Horovod run unchanged."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import DEADLINE, command, environment

pytestmark = pytest.mark.any_mpi
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("torch").origin is None, reason="torch is missing"
)

PROGRAM = """\
import sys

import torch
import horovod.torch as hvd
from horovod.torch.mpi_ops import allreduce_async, synchronize
from horovod.common.exceptions import HorovodInternalError

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 3) * (hvd.rank() + 1)).sum().backward()
    optimizer.step()
total = synchronize(allreduce_async(torch.ones(1), op=hvd.Sum))
weights = hvd.allgather(model.weight.detach())
same = all(torch.equal(weights[0], each) for each in weights)
words = int(total), same, sys.argv[1:], HorovodInternalError.__name__, __name__
sys.stdout.write(" ".join(map(str, words)) + "\\n")
"""


@needs_torch
@pytest.mark.parametrize("options", [("--no-mpi",), ()], ids=["without MPI", "with MPI"])
def test_a_program_for_horovod(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    done = command("run", *options, "--as-horovod", "-n", "2", str(path), "--lr", "1")
    assert done.returncode == 0, done.stderr
    wanted = "2 True ['--lr', '1'] HorovodInternalError __main__"
    assert done.stdout.splitlines() == [wanted] * 2


@pytest.mark.parametrize("name", ["mxnet", "torch.nothing"])
def test_what_there_is_not_is_named(name: str) -> None:
    code = f"import collectives.as_horovod\nimport horovod.{name}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 1
    assert f"horovod.{name}" in done.stderr
    assert "ModuleNotFoundError" in done.stderr


def test_other_programs_do_not_see_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import collectives\nimport horovod"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert "No module named 'horovod'" in done.stderr
