"""The script that makes the table of faults."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import PATIENCE, run

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "faults.py"
MOUNT = [
    "unshare",
    "-m" if os.geteuid() == 0 else "-rm",
    "mount",
    "-t",
    "tmpfs",
    "none",
    "/dev/shm",
]


@pytest.mark.any_mpi
@pytest.mark.skipif(
    not shutil.which("unshare") or run(MOUNT, deadline=60).status != 0,
    reason="this user cannot mount file systems of its own (unshare -m)",
)
def test_a_line_of_the_table():
    words = [sys.prefix, "--only", "sys.exit() between", "--mpi", "no MPI"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done
    title, _, line = done.stdout.splitlines()
    assert title.split(" | ")[-1] == "left behind |"
    assert line.startswith("| sys.exit() | between calls | no MPI | `PeerLostError`: allreduce ")
    assert line.endswith(" | nothing |")
