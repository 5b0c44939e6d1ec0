"""Jobs that are started again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import PATIENCE

from collectives.launch import session

DASHES = "-" * 74

LOSES = f"""#!/bin/sh
echo ' 50 %|     |' >&2
echo '{DASHES}' >&2
printf 'PRTE has lost commun' >&2
sleep 0.05
echo 'ication with a remote daemon.' >&2
sleep 3 &  # as ssh to a host that is lost, which keeps the stream
exit STATUS
"""


@pytest.mark.parametrize("status", [0, 3])
def test_a_launcher_that_has_lost_a_host_has_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], status: int
) -> None:
    path = tmp_path / "mpiexec"
    path.write_text(LOSES.replace("STATUS", str(status)))
    path.chmod(0o755)
    assert session.stand_in([str(path)], session.LOST) == (status or 1)
    said = "PRTE has lost communication with a remote daemon."
    assert capfd.readouterr().err == f" 50 %|     |\n{DASHES}\n{said}\n"
    assert session.stand_in([str(path)]) == status


def test_a_launcher_that_has_lost_nothing() -> None:
    """A program may quote what it says elsewhere."""
    code = "import sys; sys.stderr.write('log: A daemon failed to report back after\\n')"
    assert session.stand_in([sys.executable, "-c", code], session.LOST) == 0
    assert session.stand_in([sys.executable, "-c", "raise SystemExit(7)"], session.LOST) == 7


def test_a_launcher_that_was_sent_a_signal() -> None:
    """Whatever status it has then, its job is not started again."""
    code = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
time.sleep(0.3)  # its parent has begun to wait
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(30)
"""
    assert session.stand_in([sys.executable, "-c", code]) == 128 + signal.SIGTERM


def test_what_a_launcher_says_last_is_not_lost() -> None:
    """The reader is slow, and stderr does not block."""
    code = """
import os, sys
from collectives.launch import session
os.set_blocking(2, False)
program = "import sys; sys.stderr.write('x' * 300_000 + 'end')"
sys.exit(session.stand_in([sys.executable, "-c", program], session.LOST))
"""
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    time.sleep(2)
    _, said = child.communicate(timeout=PATIENCE)
    assert (child.returncode, len(said), said[-3:]) == (0, 300_003, b"end")
