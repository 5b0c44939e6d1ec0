"""The training job of the manual: its commands on two hosts, which are network namespaces."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jobs
import pages
import pytest
from namespaces import ADDRESSES, NAMES, Hosts, Unavailable, two_hosts

pytestmark = [
    pytest.mark.any_mpi,
    pytest.mark.slow,
    pytest.mark.usefixtures("has_ucx"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "training" / "job.md"
LOSE = "--lose", "120"
RANKS = 4

# In place of srun: options, and a command that becomes two tasks on each host. The first that fails
# ends all (--kill-on-bad-exit).
SRUN = """#!/bin/bash
while [ "${{1#-}}" != "$1" ]; do shift; done
number=0
for keeper in {keepers}; do
    for _ in 1 2; do
        SLURM_PROCID=$number SLURM_STEP_ID=$$ \\
            nsenter -t $keeper -n -m -u -i env -C "$PWD" "$@" &
        tasks="$tasks $!"
        number=$((number + 1))
    done
done
for task in $tasks; do
    wait -n || {{ kill $tasks; wait; exit 1; }}
done
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    try:
        with two_hosts(tmp_path_factory.mktemp("hosts")) as made:
            yield made
    except Unavailable as reason:
        pytest.skip(str(reason))


class Job:
    """A folder on both hosts, with the example and with programs in place of ssh and srun."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        (folder / "examples").mkdir()
        for name in ("torch_job.py", "torch_job.sbatch"):
            shutil.copy(ROOT / "examples" / name, folder / "examples")
        for name in ("bin", "venv/bin"):
            (folder / name).mkdir(parents=True)
        (folder / "venv" / "bin" / "activate").touch()
        (folder / "bin" / "ssh").symlink_to(hosts.agent)
        srun = folder / "bin" / "srun"
        srun.write_text(SRUN.format(keepers=" ".join(map(str, hosts.keepers))))
        srun.chmod(0o755)
        path = [folder / "bin", Path(sys.executable).parent, os.environ["PATH"]]
        self.env = {
            "PATH": os.pathsep.join(map(str, path)),
            "OMP_NUM_THREADS": "1",
            "COLLECTIVES_PROFILE": "0",
            "COLLECTIVES_TIMEOUT": "60",
            "HOME": str(folder),
            "XDG_CONFIG_HOME": "",
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_STEP_NODELIST": "host[1-2]",
        }

    def run(self, *words: str, host: int = 0, **env: str) -> jobs.Result:
        command = self.hosts.inside(host, "env", "-C", str(self.folder), *words)
        return jobs.run(command, env={**self.env, **env})

    def on_each_host(self, *words: str) -> list[jobs.Result]:
        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(self.run, *words, host=host) for host in range(len(NAMES))]
        return [run.result() for run in runs]

    def saved(self, name: str = "job.pt") -> dict[str, Any]:
        import torch

        state: dict[str, Any] = torch.load(self.folder / name, weights_only=True)
        return state


@pytest.fixture
def job(hosts: Hosts, tmp_path: Path) -> Job:
    return Job(hosts, tmp_path)


@pytest.fixture(scope="module")
def whole(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last checkpoint of a job that is not interrupted, on one host."""
    made = Job(hosts, tmp_path_factory.mktemp("whole"))
    words = shlex.split(shown("collectives run --no-mpi -n 2").replace("-n 2", f"-n {RANKS}"))
    done = made.run(*words)
    assert done.status == 0, done
    return made.saved("here.pt")


def blocks() -> list[tuple[str, str, dict[str, str]]]:
    """Return the commands of the page, each with its output and the marks of its block."""
    _, found = pages.blocks(PAGE.read_text(encoding="utf-8"), PAGE.name)
    return [
        (command, output, block.marks)
        for block in found
        if block.language == "console"
        for command, output in pages.commands(block, PAGE.name)
    ]


def shown(begin: str) -> str:
    """Return the command of the page that begins in some way."""
    (command,) = [command for command, *_ in blocks() if command.startswith(begin)]
    return command


def check(state: dict[str, Any], whole: dict[str, Any]) -> None:
    """Check that a checkpoint is that of the whole job, bit for bit."""
    import torch

    assert state["step"] == whole["step"] == 200
    assert state["net"].keys() == whole["net"].keys()
    for name, each in whole["net"].items():
        assert torch.equal(state["net"][name], each), name


def test_a_killed_job_that_is_started_again(job: Job, whole: dict[str, Any]) -> None:
    """The commands are those of the page, and so is the output."""
    several = [each for each in blocks() if " -H " in each[0]]
    assert len(several) == 2
    for command, output, marks in several:
        done = job.run("bash", "-c", f"exec 2>&1\n{command}")
        assert (done.status != 0) == ("fails" in marks), done
        # Torch cannot resolve the addresses of this test.
        printed = "".join(line for line in done.out.splitlines(True) if "[c10d]" not in line)
        assert pages.equal(output, printed, marks), done
        if "fails" in marks:
            assert job.saved()["step"] == 100
    check(job.saved(), whole)


def test_torchrun_starts_the_ranks_again(job: Job, whole: dict[str, Any]) -> None:
    """Its store has no password, and the network is that of this test."""
    words = shlex.split(shown("torchrun").replace("host1:", f"{ADDRESSES[0]}:"))
    done = job.on_each_host(*words, *LOSE)
    assert [each.status for each in done] == [0, 0], done
    printed = [line for each in done for line in each.out.splitlines()]
    assert printed.count("start from the checkpoint after step 100") == 1, done
    check(job.saved(), whole)


def test_the_script_for_slurm_starts_the_tasks_again(job: Job, whole: dict[str, Any]) -> None:
    script = shlex.split(shown("sbatch"))[1]
    done = job.run("bash", script, *LOSE, SLURM_STEP_NUM_TASKS=str(RANKS))
    assert done.status == 0, done
    assert done.out.count("start from the checkpoint after step 100\n") == 1, done
    check(job.saved(), whole)
