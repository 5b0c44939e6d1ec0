"""The benchmarks run: each once, on small arrays, without being timed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import PATIENCE

from collectives.cli import parser, run

pytestmark = pytest.mark.any_mpi

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PATH = os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ.get("PATH", "")])


def pytest_of_benchmarks(*words: str) -> subprocess.CompletedProcess[str]:
    # pytest-benchmark does not time where tests run side by side, as these may.
    env = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words],
        cwd=BENCHMARKS,
        env={**env, "PATH": PATH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_all_kinds_of_benchmarks_run() -> None:
    chosen = "kernels or calls or (plans and 8) or (collectives and (barrier or scatterv))"
    done = pytest_of_benchmarks("--benchmark-disable", "-k", chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


def test_the_quality_of_the_choice_is_told(tmp_path: Path) -> None:
    path = tmp_path / "choice" / "one.json"
    words = "--collectives gather,barrier --begin 64 --end 4K --factor 64 --seconds 0.05"
    done = subprocess.run(
        [sys.executable, "measure_choice.py", str(path), *words.split()],
        cwd=BENCHMARKS,
        env={**os.environ, "COLLECTIVES_PROFILE": "0"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())
    assert [point["bytes"] for point in found["rows"][:3]] == [64, 4096, 0]
    for point in found["rows"]:
        assert point["none"]["over"] >= 1
        assert point["best_us"] > 0
        assert "profile" not in point
    (share,) = found["shares"]["none"].values()
    near = sum(point["none"]["over"] <= 1.3 for point in found["rows"])
    assert share["within_30"] == near / len(found["rows"])
    assert "within 30 %: " in done.stdout


def test_peers_are_measured_beside_the_library(tmp_path: Path) -> None:
    """The MPI of this environment, on two ranks."""
    path = tmp_path / "peers" / "mine.json"
    words = "--ranks 2 --sizes 64 --seconds 0 --peers mpich,impi,openmpi"
    done = subprocess.run(
        [sys.executable, "measure_peers.py", str(path), *words.split()],
        cwd=BENCHMARKS,
        env={**os.environ, "PATH": PATH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(path.read_text())
    # The state of the machine may change: each state has a row.
    for row in document["rows"]:
        assert row["peer"] == document["mpi"]
        assert (row["ranks"], row["bytes"]) == (2, 64)
        assert row["turns"] > 0
        assert row["peer_us"] > 0
        assert row["ours_us"] > 0
    assert f"{document['mpi']}, 2 ranks" in done.stdout


def test_rounds_of_collectives_are_the_blocks_that_were_timed(tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark")
    path = tmp_path / "measured.json"
    done = pytest_of_benchmarks("-k", "collectives and barrier", f"--benchmark-json={path}")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(path.read_text())["benchmarks"]
    assert len(rows) == 2
    for row in rows:
        assert row["stats"]["rounds"] == 5
        # The rounds are medians over ranks of blocks; the reported times of ranks are near to them.
        assert row["stats"]["min"] <= row["extra_info"]["median_us"] * 1e-6 <= row["stats"]["max"]


# Those of which the pages show times, and those of gloo.
WITH_GLOO = ("mpich-2.json", "mpich-gloo-2.json", "mpich-shared-2.json")


def test_results_say_which_command_makes_them() -> None:
    """The table names each file that is there, with the command that is in the file."""
    folder = BENCHMARKS / "results"
    table = dict(re.findall(r"\| `(.*?)` \| `(.*?)` \|", (folder / "README.md").read_text()))
    assert len(table) >= 3
    for name, command in table.items():
        words = [word for word in shlex.split(command) if "=" not in word or word[0] == "-"]
        options = parser().parse_args(run.joined(words[1:]))
        assert words[0] == "collectives"
        assert options.json == f"benchmarks/results/{name}"
        assert options.peers == (name in WITH_GLOO)
    for path in folder.glob("*.json"):
        document = json.loads(path.read_text())
        assert document["command"] == table[path.name][table[path.name].index("collectives ") :]
        for each in document["runs"]:
            assert {"mpi", "thread_level", "buffers"} <= set(each)
            assert ("gloo" in each) == (path.name in WITH_GLOO)
            for row in each["rows"]:
                assert {"state", "round_trip_ns", "limit_us", "of_limit", "ratios"} <= set(row)
                assert not row["wrong"]


def test_pages_have_the_tables_of_the_results() -> None:
    """The pages have the tables that `tables.py` would write into them."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        tables = importlib.import_module("tables")
    finally:
        sys.path.remove(str(BENCHMARKS))
    for page in tables.PAGES:
        text = (tables.ROOT / page).read_text()
        assert "<!-- [results] " in text
        assert tables.filled(text) == text, "python benchmarks/tables.py writes them anew"
    assert (tables.ROOT / tables.FIGURE).read_text() == tables.figure()
