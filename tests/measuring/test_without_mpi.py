"""``collectives bench`` and ``tune`` where no MPI starts the ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import command

from collectives.choice import profile
from collectives.measuring.operations import OPERATIONS


def test_bench_measures_all_operations(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    words = f"bench {','.join(OPERATIONS)} --no-mpi -n 2 -b 800 -e 800 --iters 2 --repeat 1"
    done = command(*words.split(), "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert "x MPI" not in done.stdout
    assert "# 2 ranks on 1 host" in done.stdout
    run = json.loads(path.read_text())["runs"][0]
    assert run["mpi"] == "shared memory"
    assert [row["collective"] for row in run["rows"]] == list(OPERATIONS)
    assert {row["algorithm"] for row in run["rows"]} == {"auto"}
    assert {row["ratio"] for row in run["rows"]} == {None}
    assert {row["wrong"] for row in run["rows"]} <= {0, None}


def test_ranks_that_run_measure() -> None:
    words = "bench allgather,gather -b 8 -e 16 --iters 2 --repeat 1"
    done = command("run", "--no-mpi", "-n", "3", "-m", "collectives", *words.split())
    assert done.returncode == 0, done.stderr
    assert "# allgather" in done.stdout
    assert "# gather" in done.stdout
    assert "x MPI" not in done.stdout


def test_wrong_elements_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "lazy.py"
    path.write_text(
        "from collectives.measuring.operations import Arrays\n"
        "Arrays.ours = lambda self, comm, algorithm: lambda: None\n"
    )
    words = "bench allgather --no-mpi -n 2 -b 800 -e 800 --iters 1 --repeat 1"
    done = command(*words.split(), "--load", str(path))
    assert done.returncode == 1, done.stderr
    assert "1600 wrong elements" in done.stderr  # 200 in each of 4 buffers, on both ranks


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--markdown", "--markdown prints times divided by MPI's, and there is no MPI"),
        ("--mpiexec mpiexec", "--mpiexec and --mpiexec-args have no meaning with --no-mpi"),
    ],
)
def test_options_about_mpi_are_refused(words: str, told: str) -> None:
    done = command("bench", "allreduce", "--no-mpi", *words.split())
    assert done.returncode == 2
    assert told in done.stderr


def test_tune_writes_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    words = "tune --no-mpi -n 2 --collectives gather,barrier -b 8 -e 4K -f 512 --budget 20"
    done = command(*words.split(), "--profile", str(path))
    assert done.returncode == 0, done.stderr
    (section,) = profile.parse(path.read_text()).sections
    assert (section.transport, section.library) == ("shm", "")
    assert "# 2 ranks in shared memory" in done.stdout
    assert set(section.rows) == {"gather", "barrier"}
