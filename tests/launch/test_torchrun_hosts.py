"""``torchrun`` on two hosts, which are network namespaces: no MPI, messages by UCX."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from namespaces import ADDRESSES, Unavailable, two_hosts

pytest.importorskip("torch")

DEADLINE = 110  # seconds; importing torch four times takes most of them on a busy machine
EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_ddp.py"

CHECKED = """
import atexit, os, runpy, sys
import collectives as cc

def check():
    assert "mpi4py.MPI" not in sys.modules
    os.write(1, f"by {{cc.world().transport}} on {{cc.world().nodes}} hosts\\n".encode())

atexit.register(check)
sys.argv = [{example!r}, "--epochs", "20"]
runpy.run_path({example!r}, run_name="__main__")
"""


@pytest.mark.any_mpi
def test_a_program_of_ddp_on_two_hosts(tmp_path):
    """The loss is that of one process."""
    program = tmp_path / "checked.py"
    program.write_text(CHECKED.format(example=str(EXAMPLE)))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLLECTIVES_PROFILE": "0"}
    options = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    options += ["--rdzv-endpoint", f"{ADDRESSES[0]}:29400", "--rdzv-id", "job"]
    agents = []
    try:
        with two_hosts(tmp_path) as hosts:
            for host in range(2):
                words = [sys.executable, "-m", "torch.distributed.run", *options, str(program)]
                agents.append(
                    subprocess.Popen(
                        hosts.inside(host, *words),
                        env=env,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )
            done = [agent.communicate(timeout=DEADLINE) for agent in agents]
    except Unavailable as reason:
        pytest.skip(str(reason))
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], done
    out = "".join(text for text, _ in done)
    assert out.count("by ucx on 2 hosts\n") == 4
    assert "epoch 20: loss 0.490\n" in out
