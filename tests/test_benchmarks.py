"""The benchmarks run: each once, on small arrays, without being timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
PATH = os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ.get("PATH", "")])


def pytest_of_benchmarks(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words],
        cwd=BENCHMARKS,
        env={**os.environ, "PATH": PATH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_all_kinds_of_benchmarks_run() -> None:
    chosen = "kernels or calls or (plans and 8) or (collectives and (barrier or scatterv))"
    done = pytest_of_benchmarks("--benchmark-disable", "-k", chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


def test_rounds_of_collectives_are_the_blocks_that_were_timed(tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark")
    path = tmp_path / "measured.json"
    done = pytest_of_benchmarks("-k", "collectives and barrier", f"--benchmark-json={path}")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(path.read_text())["benchmarks"]
    assert len(rows) == 2
    for row in rows:
        assert row["stats"]["rounds"] == 5
        # The rounds are medians over ranks of blocks; what is reported of ranks is near to them.
        assert row["stats"]["min"] <= row["extra_info"]["median_us"] * 1e-6 <= row["stats"]["max"]
