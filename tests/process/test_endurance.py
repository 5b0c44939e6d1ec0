"""Many calls, after which nothing has grown."""

from pathlib import Path

import pytest
from commands import command

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "endurance.py"


@pytest.mark.slow
@pytest.mark.each_mpi
@pytest.mark.usefixtures("mpi")
@pytest.mark.parametrize("ranks", [2, 4])
def test_many_calls_are_right_and_nothing_grows(ranks):
    done = command("run", "-n", str(ranks), str(PROGRAM))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100000 small calls are right" in done.stdout
    assert "12000 mixed calls are right" in done.stdout
