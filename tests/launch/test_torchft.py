"""torchft's process group: processes that are members of one job after the other."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from jobs import PATIENCE

pytestmark = pytest.mark.skipif(find_spec("torchft") is None, reason="torchft is not installed")


# Replicas 0 and 2 are in all quorums, 1 is lost after the second, and 3 comes to the last.
# A configuration for a replica that does not come is given up after a second.
PROGRAM = """
import gc, os, sys, threading
from datetime import timedelta
import torch
from torch._C._distributed_c10d import AllreduceOptions
from collectives.torch.torchft import ProcessGroupCollectives

name, place, first = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
group = ProcessGroupCollectives(timeout=timedelta(seconds=60))
QUORUMS = [[0, 1, 2], [2, 0, 1], [0, 2], [0, 2], [0, 3, 2]]


def added(n):
    x = torch.full((n,), 2.0**name)
    work = group.allreduce([x], AllreduceOptions())
    work.get_future()
    work.wait()
    return x[-1].item()


def opened():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


for number, members in list(enumerate(QUORUMS))[first:]:
    if number == 2:
        try:
            added(1_000_000)
        except Exception as error:
            print(name, type(error).__name__)
        group.set_timeout(timedelta(seconds=1))
        try:
            group.configure(f"{place}/absent", "", [0, 2].index(name), 3)
        except Exception as error:
            print(name, type(error).__name__)
        group.set_timeout(timedelta(seconds=60))
    group.configure(f"{place}/{number}", "", members.index(name), len(members))
    assert added(1000) == sum(2.0**each for each in members), number
    if number == 1:
        if name == 1:
            os._exit(0)  # without a word to the others
        many = opened()
assert first or opened() <= many + 3, (opened(), many)
threads = [each.name for each in threading.enumerate()]
assert threads.count("collectives futures") <= 1, threads
print(name, group.getBackendName(), "ends")
"""


@pytest.mark.any_mpi
def test_members_are_lost_and_come(tmp_path):
    """Each configuration adds right; a loss is an error on those that are left."""
    from torch.distributed import TCPStore

    program = tmp_path / "replica.py"
    program.write_text(PROGRAM)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLLECTIVES_PROFILE": "0"}

    def replica(name, first):
        words = [sys.executable, program, str(name), f"127.0.0.1:{store.port}", str(first)]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env=env, stdout=pipe, stderr=pipe, text=True)

    made = [replica(0, 0), replica(1, 0), replica(2, 0), replica(3, 4)]
    try:
        done = [each.communicate(timeout=PATIENCE) for each in made]
    finally:
        for each in made:
            each.kill()
    assert [each.returncode for each in made] == [0, 0, 0, 0], done
    ends = "{0} PeerLostError\n{0} StallError\n{0} torchft-collectives ends\n"
    out = [out for out, _ in done]
    assert out == [ends.format(0), "", ends.format(2), "3 torchft-collectives ends\n"]
