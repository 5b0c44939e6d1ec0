"""Jobs that are started again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from collectives.launch import restarting

LOSES = """#!/bin/sh
printf '%s' ' 50 %|     |' >&2
printf 'PRTE has lost commun' >&2
sleep 0.05
echo 'ication with a remote daemon.' >&2
sleep 3 &  # as ssh to a host that is lost, which keeps the stream
exit {status}
"""


@pytest.mark.parametrize("status", [0, 3])
def test_a_launcher_that_has_lost_a_host_has_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], status: int
) -> None:
    path = tmp_path / "mpiexec"
    path.write_text(LOSES.format(status=status))
    path.chmod(0o755)
    assert restarting.child([str(path)], restarting.LOST) == (status or 1)
    assert capfd.readouterr().err == " 50 %|     |" + restarting.LOST[0] + ".\n"
    assert restarting.child([str(path)]) == status


def test_a_launcher_that_has_lost_nothing() -> None:
    code = "import sys; sys.stderr.write('A daemon failed to report\\n')"
    assert restarting.child([sys.executable, "-c", code], restarting.LOST) == 0
    assert restarting.child([sys.executable, "-c", "raise SystemExit(7)"], restarting.LOST) == 7
