"""Collectives between two hosts: network namespaces, where this machine lets root make them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jobs
import pytest
from jobs import environment_of
from namespaces import Hosts, Unavailable, two_hosts
from ranks import is_alive

EACH = 2  # ranks of a host

PROGRAM = """
import os, platform
os.environ["COLLECTIVES_SHM"] = {memory!r}
os.environ["COLLECTIVES_MESSAGES"] = {messages!r}
import numpy as np, collectives as cc
comm = cc.Communicator(timeout=20)
rank, size = comm.rank, comm.size
assert (comm.nodes, comm.local_size, comm.node) == (2, 2, rank // 2)
assert (comm.transport == "ucx") == ({messages!r} == "ucx")
assert platform.node() == ("host1", "host2")[comm.node]
x, long = np.arange(5.0) + rank, np.full(100_001, rank + 1.0, np.float32)
total = size * (size + 1) / 2
names = None, "ring", "hierarchical(direct,ring)", "hierarchical(flat,butterfly)"
for name in names:
    assert (comm.allreduce(x, algorithm=name) == size * np.arange(5) + sum(range(size))).all()
    assert (comm.allreduce(long, algorithm=name) == total).all()
assert (comm.allgather(x)[:, 0] == np.arange(size)).all()
assert (comm.broadcast(long, root=3) == 4).all()
assert (comm.alltoall(np.full(size, rank)) == np.arange(size)).all()
assert comm.allgather_object(rank) == list(range(size))
if rank in (1, 2):
    got = comm.sendrecv(long, 3 - rank, np.empty_like(long), 3 - rank)
    assert (got == 4 - rank).all()
comm.barrier()
os.write(1, f"{{rank}} is done\\n".encode())
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if not (environment_of(sys.executable) / "mpiexec").exists():
        pytest.skip("there is no mpiexec")
    try:
        with two_hosts(tmp_path_factory.mktemp("hosts")) as made:
            yield made
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_hosts_need_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="hosts need root"), two_hosts(tmp_path):
        pass


@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize(
    ("memory", "messages"),
    [("auto", "mpi"), ("0", "mpi"), ("auto", "ucx"), ("0", "ucx")],
    ids=["shared_memory", "messages", "ucx", "only_ucx"],
)
def test_collectives_between_hosts(hosts: Hosts, memory: str, messages: str) -> None:
    done = hosts.run(EACH, "-c", PROGRAM.format(memory=memory, messages=messages))
    assert done.status == 0, done
    assert sorted(done.out.split("\n")) == ["", *(f"{rank} is done" for rank in range(4))], done


@pytest.mark.each_mpi("mpich")
def test_doctor_knows_the_way_between_hosts(hosts: Hosts) -> None:
    done = hosts.run(EACH, "-m", "collectives", "doctor")
    assert done.status in (0, 1), done  # on a busy machine, one direction may be slow
    assert "job           4 ranks on 2 hosts" in done.out, done
    assert "host1 to host2  TCP, eth0 10.83.0.1 to eth0 10.83.0.2" in done.out
    assert "allreduce     right on 4 ranks" in done.out


FAILING_DEVICE = """
import sys
sys.path[:0] = sys.argv[1:]
import torch
from fake_accelerator import Accelerator
import collectives as cc
from collectives import background
from collectives.errors import CollectivesError

def told(comm, ranks):
    background.start(comm)
    with Accelerator("fast") as device:
        x = torch.ones(8, device="fake")
        background.submit("allreduce", x, x, name="first", group=comm).wait()
        if comm.rank == 1:
            device.driver.fail_next("launch", RuntimeError("an illegal access"), on_device=True)
        text = None
        try:
            if comm.rank in ranks:
                background.submit("allreduce", x * 2, name="second", group=comm).wait()
        except CollectivesError as error:
            text = str(error)
        device.driver.forget()
    return text

comm = cc.Communicator(timeout=600)
text = told(comm, range(4))
comm.barrier()  # else rank 1 leaves before the others hear of it, where they take longer than GRACE
assert ("rank 1: " in text) == (comm.rank != 1), text
assert "the device has failed: RuntimeError: an illegal access" in text, text
other = cc.Communicator(timeout=600)
text = told(other, range(2))
if comm.rank == 1:
    background.stop(other)  # while a request waits for the ranks of the other host
assert comm.rank > 1 or "the device has failed: RuntimeError: an illegal access" in text, text
comm.ibarrier().wait()  # moves all requests in flight
"""


@pytest.mark.slow
@pytest.mark.each_mpi("mpich")
def test_ranks_of_other_hosts_hear_of_a_device_that_fails(hosts: Hosts) -> None:
    """They hear it in the next round, long before the deadline of the communicator."""
    pytest.importorskip("torch")
    tests = Path(__file__).resolve().parents[1]
    done = hosts.run(
        EACH,
        *("-c", FAILING_DEVICE, str(tests / "frontends" / "torch_accelerators")),
        str(tests / "devices"),
    )
    assert done.status == 0, done


CUT = """
import os, sys, time
import collectives as cc
from collectives.errors import StallError
comm = cc.Communicator(timeout=2)
with open(f"{sys.argv[1]}/process{comm.rank}", "w") as file:
    file.write(str(os.getpid()))
comm.barrier()
if comm.rank == 3:
    duplicate = comm._meeting.duplicate

    def late():
        time.sleep(0.5)  # the others are inside
        os.system("ip link set eth0 down")
        return duplicate()

    comm._meeting.duplicate = late
try:
    comm.dup()
except StallError as error:
    with open(f"{sys.argv[1]}/told{comm.rank}", "w") as file:
        file.write(str(error))
    raise
"""


@pytest.mark.any_mpi
def test_the_link_is_cut_while_a_communicator_is_made(tmp_path: Path) -> None:
    """MPICH keeps a thread of some ranks inside for ever; they hear of it, and end."""
    done = cut(CUT, tmp_path)
    assert done.status != 0, done
    for rank in range(4):
        assert "dup() timed out: rank" in (tmp_path / f"told{rank}").read_text()


def cut(program: str, folder: Path) -> jobs.Result:
    """Run a program that cuts the link between two hosts; see that all of its ranks end."""
    with contextlib.ExitStack() as stack:
        try:
            hosts = stack.enter_context(two_hosts(folder))
        except Unavailable as reason:
            pytest.skip(str(reason))
        done = hosts.run(EACH, "-c", program, str(folder))
        processes = [int((folder / f"process{rank}").read_text()) for rank in range(4)]
        limit = time.monotonic() + 100
        while any(map(is_alive, processes)) and time.monotonic() < limit:
            time.sleep(0.05)
        left = [process for process in processes if is_alive(process)]
        for process in left:
            os.kill(process, signal.SIGKILL)
        assert not left, done
    return done
