"""Hugging Face's accelerate and Trainer, and Lightning: the examples train as under gloo."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import environment
from jobs import run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# `tests/versions.py` installs the packages, in full runs.
pytestmark = [pytest.mark.any_mpi, pytest.mark.slow]


def losses(name: str, backend: str, ranks: int = 2) -> list[str]:
    """Run an example without MPI; return its lines, but for the last one."""
    words = "run", "--no-mpi", "-n", str(ranks), str(EXAMPLES / name), "--backend", backend
    result = run([sys.executable, "-m", "collectives", *words], env=environment())
    assert result.status == 0, result
    *lines, last = re.findall(r"^(?:epoch|step) \d+: .*|^\d ranks?, .*", result.out, re.MULTILINE)
    assert last == f"{ranks} ranks, {backend}", result
    return lines


@pytest.mark.parametrize("package", ["accelerate", "transformers", "lightning"])
def test_training_is_that_under_gloo(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    name = {"transformers": "torch_trainer.py"}.get(package, f"torch_{package}.py")
    ours, theirs = losses(name, "collectives"), losses(name, "gloo")
    assert ours == theirs
    values = [float(line.rpartition(" ")[2]) for line in ours]
    assert len(values) >= 2
    assert values[-1] < 0.6 * values[0]


def test_accelerate_has_the_same_losses_on_more_ranks() -> None:
    pytest.importorskip("accelerate")
    assert losses("torch_accelerate.py", "collectives", 3) == losses(
        "torch_accelerate.py", "collectives"
    )
