"""``torchrun`` on two hosts, which are network namespaces: no MPI, messages by UCX."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from namespaces import Unavailable, two_hosts
from test_as_horovod import PROGRAM

pytestmark = [
    pytest.mark.any_mpi,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_ddp.py"

CHECKED = """
import atexit, os, runpy, sys
import collectives as cc

def check():
    assert "mpi4py.MPI" not in sys.modules
    os.write(1, f"by {cc.world().transport} on {cc.world().nodes} hosts\\n".encode())

atexit.register(check)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def lines(folder: Path, *words: str) -> list[str]:
    """Run a program on two ranks of each of two hosts; return the lines that it prints."""
    checked = folder / "checked.py"
    checked.write_text(CHECKED)
    words = tuple(str(checked) if word == "CHECKED" else word for word in words)
    env = {"OMP_NUM_THREADS": "1", "COLLECTIVES_PROFILE": "0"}
    try:
        with two_hosts(folder) as hosts:
            done = hosts.torchrun(2, *words, folder=folder, env=env)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert [each.status for each in done] == [0, 0], done
    printed = [line for each in done for line in each.out.splitlines()]
    assert printed.count("by ucx on 2 hosts") == 4, done
    return printed


def test_a_program_of_ddp_on_two_hosts(tmp_path):
    """The loss is that of one process."""
    printed = lines(tmp_path, "CHECKED", str(EXAMPLE), "--epochs", "20")
    assert "epoch 20: loss 0.490" in printed


@pytest.mark.slow
def test_a_program_of_horovod_on_two_hosts(tmp_path):
    """Nothing in it is changed."""
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    printed = lines(tmp_path, "-m", "collectives.as_horovod", "CHECKED", str(path), "--lr", "1")
    wanted = "4 True ['--lr', '1'] HorovodInternalError __main__"
    assert printed.count(wanted) == 4
