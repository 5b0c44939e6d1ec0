"""``collectives run --as-horovod``: programs that import Horovod run unchanged."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from commands import command, environment
from jobs import PATIENCE

from collectives.cli import horovodrun, run
from collectives.errors import ArgumentError

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
@pytest.mark.parametrize(
    "options",
    [("--no-mpi",), pytest.param((), marks=pytest.mark.slow)],
    ids=["without MPI", "with MPI"],
)
def test_a_program_for_horovod(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    done = command("run", *options, "--as-horovod", "-n", "2", str(path), "--lr", "1")
    assert done.returncode == 0, done.stderr
    wanted = "2 True ['--lr', '1'] HorovodInternalError __main__"
    assert done.stdout.splitlines() == [wanted] * 2


def python(code: str, prefix: str = "import collectives.as_horovod") -> Any:
    words = [sys.executable, "-c", f"{prefix}\n{code}"]
    return subprocess.run(
        words, env=environment(), capture_output=True, text=True, timeout=PATIENCE
    )


@pytest.mark.parametrize(
    "name",
    ["mxnet", "ray.elastic", "spark.keras", pytest.param("torch.nothing", marks=pytest.mark.slow)],
)
def test_what_there_is_not_is_named(name: str) -> None:
    done = python(f"import horovod.{name}")
    assert done.returncode == 1
    assert f"horovod.{name}" in done.stderr
    assert "ModuleNotFoundError" in done.stderr


NAMES = """
import importlib.metadata
assert importlib.metadata.version("horovod") == "0.28.1"
from horovod.common import util
from horovod.common.elastic import run_fn
with util.env(HOROVOD_TRIED="1"):
    assert os.environ["HOROVOD_TRIED"] == "1"
assert "HOROVOD_TRIED" not in os.environ
assert util.is_version_greater_equal_than("2.10.0", "2.4.0")
assert util.mpi_built(verbose=True) and not util.nccl_built() and not util.gloo_built()
calls = []
class State:
    sync = restore = lambda self: None
    on_reset = lambda self: calls.append("on_reset")
def train(state):
    if not calls:
        from horovod.common.exceptions import HostsUpdatedInterrupt
        raise HostsUpdatedInterrupt(True)
    return calls
assert run_fn(train, lambda: calls.append("reset"))(State()) == ["reset", "on_reset"]
import horovod.runner
assert horovod.run is horovod.runner.run
from horovod.ray import RayExecutor
from horovod.ray.runner import RayExecutor as same
assert RayExecutor is same and RayExecutor.create_settings(9).timeout_s == 9
import horovod.spark.runner
assert horovod.spark.run is horovod.spark.runner.run
def place(word):
    import horovod.common.basics as hvd
    hvd.init()
    return word, hvd.rank(), hvd.size()
assert horovod.run(place, args=("a",), np=2) == [("a", 0, 2), ("a", 1, 2)]
try:
    horovod.run(place, hosts="there:2")
except NotImplementedError as error:
    print(error)
"""


def test_programs_find_the_names_that_they_look_for() -> None:
    done = python("import os\n" + NAMES)
    assert done.returncode == 0, done.stderr
    assert "takes no hosts: start the program with collectives run --as-horovod" in done.stdout


HANDLERS = """
import torch
import horovod.torch as hvd
from horovod.torch.elastic import state as states
from horovod.torch.optimizer import _DistributedOptimizer
hvd.init()
class Counter:
    n = 1
class Handler(states.StateHandler):
    def save(self): self.saved = self.value.n
    def restore(self): self.value.n = self.saved
    def sync(self): self.save()
states.get_handler_registry().insert(0, (Counter, Handler))
net, counter = torch.nn.Linear(1, 1), Counter()
state = states.TorchState(net, counter=counter)
state.sync()
counter.n = 2
state.restore()
assert counter.n == 1 and state.counter is counter
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1))
assert isinstance(optimizer, _DistributedOptimizer)
"""


@pytest.mark.slow
@needs_torch
def test_handlers_of_a_program_keep_its_objects() -> None:
    done = python(HANDLERS)
    assert done.returncode == 0, done.stderr


def test_other_programs_do_not_see_it() -> None:
    done = python("import horovod", prefix="import collectives")
    assert "No module named 'horovod'" in done.stderr


SCRIPT = """
set -e
horovodrun -np 2 -H localhost:2 --cycle-time-ms 5 --fusion-threshold-mb 32 python train.py --lr 1
horovodrun -np 1 --check-build python train.py
"""
LAUNCHED = """
import os, sys
import collectives as cc
import horovod.common.util
words = cc.rank(), cc.size(), sys.argv[1:], os.environ["HOROVOD_FUSION_THRESHOLD"]
os.write(1, f"{words}\\n".encode())
"""


def test_a_script_that_calls_horovodrun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LAUNCHED)
    (tmp_path / "job.sh").write_text(f"cd {tmp_path}\n{SCRIPT}")
    done = command("run", "--as-horovod", "bash", str(tmp_path / "job.sh"))
    assert done.returncode == 2, done.stderr  # of the second one
    lines = [f"({rank}, 2, ['--lr', '1'], '32M')" for rank in range(2)]
    assert sorted(done.stdout.splitlines()) == lines
    assert done.stderr.splitlines() == [
        "horovodrun: --cycle-time-ms has no effect here: submissions run without cycles",
        "horovodrun: --check-build has no meaning here: see collectives doctor",
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("-np 4 -H a:2,b:2 python t.py -p 1", "-n 4 -H a:2,b:2 --no-mpi python t.py -p 1"),
        ("--num-proc=4 --mpi -m t", "-n 4 -m t"),
        ("-np 2 --mpi-args=--x t.py", "-n 2 --mpiexec-args --x t.py"),
        ("--min-np 2 --host-discovery-script ./h t.py", None),
        ("-prefix-timestamp --no-torus-allreduce -np 1 t.py", "-n 1 --no-mpi t.py"),
        ("--gloo --blacklist-cooldown-range 1 2 -np 1 t.py", "-n 1 --no-mpi t.py"),
    ],
)
def test_the_words_of_horovodrun(given: str, words: str | None) -> None:
    words = f"{given.removesuffix('t.py')}--no-mpi t.py" if words is None else words
    translated = horovodrun.translate(given.split()).words
    assert translated == ["run", "--as-horovod", *words.split()]
    assert run.split(translated)[1][0] in ("python", "t.py", "-m")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("-p 22 -np 1 t.py", "-p has no meaning here: write the Port"),
        ("--nothing -np 1 t.py", "'--nothing' is no option of horovodrun"),
        ("-np", "-np needs a value"),
    ],
)
def test_words_that_horovodrun_refuses(given: str, wanted: str) -> None:
    with pytest.raises(ArgumentError, match=wanted):
        horovodrun.translate(given.split())


def test_a_python_program_without_a_number_of_ranks(tmp_path: Path) -> None:
    done = command("run", "--as-horovod", str(tmp_path / "train.py"))
    assert (done.returncode, done.stdout) == (2, "")
    done = command("run", "--as-horovod", sys.executable, "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    done = command("run", "--as-horovod", "--report", "--restarts", "2", "bash", "job.sh")
    assert done.returncode == 2
    assert "--report --restarts 2 would have no effect on a command that calls" in done.stderr
    done = command("run", "--as-horovod", "no-such-command")
    assert done.stderr == "collectives: there is no command 'no-such-command' to run\n"
