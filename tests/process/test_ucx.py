"""Ranks of several hosts that no MPI launcher started: messages by UCX, and ranks that end.

Ranks believe to be on different hosts. In two network namespaces they are.
"""

import os
import re
import subprocess
import sys
import sysconfig
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
from namespaces import ADDRESSES, Unavailable, two_hosts
from test_rendezvous import alike, ranks

from collectives import _core
from collectives.errors import BindingError
from collectives.process import ucx

pytestmark = pytest.mark.usefixtures("has_ucx")

TCP = {"UCX_TLS": "tcp,self"}

BEGIN = """
import os, signal, sys, time
rank, each = int(os.environ["RANK_HERE"]), int(sys.argv[2])
os.environ["COLLECTIVES_HOST"] = f"h{rank // each}"
import numpy as np, collectives as cc
from collectives.errors import CollectivesError, PeerLostError, StallError
"""

ALONE = """
comm = cc.Communicator.from_rendezvous(sys.argv[1], rank, int(sys.argv[3]), timeout=20)
p = comm.size
"""


def run(text, folder, hosts, each, env=TCP):
    """Run a program on ranks of some hosts; return the exit status and the output of each."""
    text = BEGIN + ALONE + textwrap.dedent(text)
    size = hosts * each
    return ranks(text, folder / "meeting", each, size, size=size, env=env)


EVERYTHING = """
    assert (comm.transport, comm.nodes, comm.local_size) == ("ucx", p // each, each)
    assert "mpi4py.MPI" not in sys.modules
    for n in (0, 1, 1000, 20_000, 300_000):
        x = np.full(n, rank + 1.0)
        for name in (None, "ring", "butterfly", "round_robin"):
            assert (comm.allreduce(x, algorithm=name) == p * (p + 1) / 2).all()
        assert (comm.broadcast(x, root=p - 1) == p).all()
    assert (comm.allgather(np.full(5, rank))[:, 0] == np.arange(p)).all()
    assert (comm.alltoall(np.arange(p) + rank * p) == np.arange(p) * p + rank).all()
    requests = [comm.iallreduce(np.full(50_000, float(k))) for k in range(8)]
    for k, request in reversed(list(enumerate(requests))):
        assert (request.wait() == k * p).all()
    half, twin = comm.split(rank % 2, -rank), comm.dup()
    to, source = (rank + 1) % p, (rank - 1) % p
    came = twin.sendrecv(np.full(200_000, rank), to, np.empty(200_000, int), source)
    assert (came == source).all()
    print(comm.allgather_object(["x" * 2000])[-1] == ["x" * 2000], half.allreduce_object(1))
"""


@pytest.mark.parametrize(("hosts", "each"), [(2, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("env", [TCP, {}], ids=["tcp", "any"])
def test_collectives_between_hosts(tmp_path, hosts, each, env):
    done = run(EVERYTHING, tmp_path, hosts, each, env)
    assert all(status == 0 and text.startswith("True ") for status, text in done), done


def test_messages_of_one_pair_keep_their_order(tmp_path):
    """Long ones are asked for, short ones are not, and some come before they are received."""
    text = """
        sizes = [3, 200_000, 1, 9_000, 60_000, 0, 2] * 4
        if rank == 0:
            sent = [comm.isend(np.full(n, k), 1) for k, n in enumerate(sizes)]
            comm.barrier()
            [each.wait() for each in sent]
        else:
            comm.barrier()
            for k, n in enumerate(sizes):
                assert (comm.recv(np.empty(n, int), 0) == k).all()
        print("done")
    """
    assert alike(run(text, tmp_path, 2, 1)) == "done\n"


def test_a_child_that_ends_leaves_the_connections_of_its_parent(tmp_path):
    text = """
        comm.barrier()
        child = os.fork()
        if child == 0:
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        for _ in range(3):
            assert (comm.allreduce(np.full(100_000, rank + 1.0)) == 3).all()
    """
    assert alike(run(text, tmp_path, 2, 1)) == "3\n"


@pytest.mark.parametrize("long", [10, 300_000])
def test_a_message_that_is_too_long_is_told(tmp_path, long):
    text = f"""
        if rank == 0:
            comm.send(np.ones({long}), 1)
        else:
            try:
                comm.recv(np.empty(5), 0)
            except CollectivesError as error:
                print(type(error).__name__, error)
    """
    _, (status, told) = run(text, tmp_path, 2, 1)
    assert status == 0
    assert re.match(r"MismatchError .*: out is too short: rank 0 sends \d+ bytes, and ", told), told


LOSS = """
    comm.allreduce(np.ones(10), algorithm="ring")
    comm.barrier()
    if rank == 1:
        {end}
    try:
        for _ in range(2):
            comm.allreduce(np.ones(1000), algorithm="ring")
    except PeerLostError as error:
        began = time.monotonic()
        left = comm.shrink()
        print(error, "|", left.size, left.allreduce(np.ones(1))[0], left.agree(7))
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("end", "how"),
    [("os.kill(os.getpid(), 9)", "has died while r"), ("sys.exit()", "has left and .*if\\? R")],
)
@pytest.mark.parametrize(("hosts", "each"), [(4, 1), (2, 2)])
def test_all_ranks_hear_of_an_end_and_go_on(tmp_path, end, how, hosts, each):
    done = run(LOSS.format(end=end), tmp_path, hosts, each)
    for rank, (status, text) in enumerate(done):
        if rank != 1:
            assert status == 0
            assert re.search(rf"rank 1 .*{how}ank \d waits: round .* \| 3 3.0 7\n$", text)


def test_the_advice_for_a_nonblocking_call_is_not_about_mpi(tmp_path):
    text = """
        comm.barrier()
        request = comm.iallreduce(np.ones(2_000_000), algorithm="ring")
        if rank == 0:
            time.sleep(3)
        try:
            request.wait(timeout=1)
        except StallError as error:
            print(error)
        sys.stdout.flush()
        os._exit(0)
    """
    _, (_, told) = run(text, tmp_path, 2, 1)
    assert told.endswith(
        ". Perhaps a link between the hosts is cut, or a firewall drops messages"
        ". If rank 0 started this with a nonblocking call, it moves on only inside the library: "
        "call wait() in time, or set COLLECTIVES_PROGRESS=thread\n"
    )


def test_a_rank_that_gives_up_tells_other_hosts(tmp_path):
    text = """
        comm.barrier()
        if rank == 0:
            time.sleep(3)
            os._exit(0)
        try:
            comm.allreduce(np.ones(3), algorithm="ring", timeout=0.5 if rank == 1 else 30)
        except CollectivesError as error:
            print(type(error).__name__, error)
        sys.stdout.flush()
        os._exit(0)
    """
    _, (_, first), (_, second) = run(text, tmp_path, 3, 1)
    assert first.startswith("StallError allreduce 'ring' on 3 ranks: rank 1 timed out after 0.5 s")
    assert second.startswith("PeerAbortedError rank 1 on h1 gave up: StallError: allreduce"), second


def test_an_exception_that_ends_one_rank_is_told_on_other_hosts(tmp_path):
    text = """
        try:
            comm.barrier()  # rank 1 may end before another rank has left it
            if rank == 1:
                raise ValueError("a bad batch")
            comm.allreduce(np.ones(3), algorithm="ring")
        except CollectivesError as error:
            print(type(error).__name__, error)
    """
    done = run(text, tmp_path, 3, 1, {**TCP, "COLLECTIVES_ABORT": "0"})
    for rank in (0, 2):
        assert done[rank][1].startswith("PeerAbortedError rank "), done
        assert "rank 1 on h1 gave up: ValueError: a bad batch\n" in done[rank][1]


def test_a_rank_that_leaves_a_communicator_by_an_exception_is_told_on_other_hosts(tmp_path):
    text = """
        made = comm.dup()
        try:
            with made:
                if rank == 1:
                    raise ValueError("a bad batch")
                made.allreduce(np.ones(3), algorithm="ring")
        except CollectivesError as error:
            print(type(error).__name__, error)
        except ValueError:
            pass
        comm.barrier()
    """
    done = run(text, tmp_path, 3, 1, TCP)
    for rank in (0, 2):
        assert done[rank][1].startswith("PeerAbortedError rank "), done
        assert "rank 1 on h1 gave up: ValueError: a bad batch\n" in done[rank][1]


def test_a_rank_that_does_not_come_to_make_a_communicator_is_told(tmp_path):
    text = """
        comm.timeout = 1
        if rank == 1:
            time.sleep(3)
        else:
            try:
                comm.dup()
            except StallError as error:
                print(error)
        sys.stdout.flush()
        os._exit(0)
    """
    (_, told), _ = run(text, tmp_path, 2, 1)
    start = "dup(): allgather 'direct' on 2 ranks: rank 0 timed out after 1 s: round 1, "
    assert told.startswith(start)
    assert "waits for rank 1 on h1 to send to rank 0 on h0" in told


def test_ranks_without_ucx_are_told_of_it(tmp_path):
    text = """
        os.environ["COLLECTIVES_UCX"] = "/no/libucp.so.0"
        cc.Communicator.from_rendezvous(sys.argv[1], rank, 2)
    """
    done = ranks(BEGIN + textwrap.dedent(text), tmp_path / "meeting", 1, env=TCP)
    for status, told in done:
        assert status == 1
        assert (
            "CommunicatorError: the ranks are on several hosts (h0, h1), which without MPI "
            "use UCX, but rank 0 on h0 has no UCX: UCX cannot be loaded: /no/libucp.so.0: "
        ) in told
        assert "pip install 'collectives-mpi[ucx]', or set COLLECTIVES_UCX to the file" in told


def test_a_setting_with_which_ucx_would_crash_is_told(tmp_path):
    text = """
        if rank:
            os.environ["UCX_TCP_RX_SEG_SIZE"] = "8K"
        cc.Communicator.from_rendezvous(sys.argv[1], rank, 2)
    """
    done = ranks(BEGIN + textwrap.dedent(text), tmp_path / "meeting", 1, 2, env=TCP)
    for status, told in done:
        assert status == 1
        assert (
            "which without MPI use UCX, but UCX crashes if hosts have different values of "
            "UCX_TCP_RX_SEG_SIZE: 256K on h0 and 8K on h1. Set the same value on all hosts"
        ) in told


@pytest.mark.parametrize("networks", [{"UCX_TLS": "sm,self"}, {"UCX_NET_DEVICES": "none0"}])
def test_ranks_on_different_networks_are_told_of_it(tmp_path, networks):
    text = f"""
        if rank:
            os.environ.update({networks!r})
    """
    text = BEGIN + textwrap.dedent(text) + ALONE + "print(comm.allreduce(1))"
    done = ranks(text, tmp_path / "meeting", 1, 2, env=TCP)
    assert [status for status, _ in done] == [1, 1]
    for other, (_, told) in zip((1, 0), done, strict=True):
        assert f"PeerLostError: the connection to rank {other} is lost; no message " in told
        assert "UCX_NET_DEVICES and UCX_TLS must name networks that connect all hosts" in told


def test_different_versions_are_told_if_ranks_do_not_reach_each_other(tmp_path):
    text = """
        from collectives.process import ucx
        load = ucx.load
        if rank:
            os.environ["UCX_NET_DEVICES"] = "none0"
            ucx.load = lambda: load() and "1.99.0"
    """
    text = BEGIN + textwrap.dedent(text) + ALONE + "print(comm.allreduce(1))"
    done = ranks(text, tmp_path / "meeting", 1, 2, env=TCP)
    for _, told in done:
        text = r"The ranks have different versions of UCX, [\d.]+ on h0 and 1.99.0 on h1: install"
        assert re.search(text, told), told


def test_an_old_ucx_is_refused(monkeypatch):
    monkeypatch.setattr(_core, "load_ucx", lambda path: (1, 11, 2))
    with pytest.raises(BindingError, match=r"is UCX 1.11.2, and 1.12 or newer is needed: pip"):
        ucx.load.__wrapped__()


def test_the_place_of_ucx_may_be_a_folder(monkeypatch, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / ucx.FILE).touch()
    for wish in (tmp_path, tmp_path / "lib", tmp_path / "lib" / ucx.FILE):
        monkeypatch.setenv("COLLECTIVES_UCX", str(wish))
        assert ucx._places(None) == [str(tmp_path / "lib" / ucx.FILE)]


def test_the_binary_interface_is_that_of_the_headers(tmp_path):
    """The folder of the package libucx, which has the headers."""
    package = find_spec("libucx")
    sources = Path(__file__).parents[2] / "collectives" / "_core" / "ucx"
    if package is None or package.origin is None or not sources.exists():
        pytest.skip("the headers of UCX, or the sources of the core, are not here")
    include = Path(package.origin).parent / "include"
    compiler = sysconfig.get_config_var("CC").split()[0]
    check = Path(__file__).parent / "ucx_interface.c"
    command = [compiler, "-c", "-o", tmp_path / "out.o", "-I", include, "-I", sources, check]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


LATE = """
import os, sys, time
import collectives as cc
rank, folder = int(os.environ["RANK_HERE"]), sys.argv[1]
comm = cc.Communicator.from_rendezvous(f"{folder}/meeting", rank, 4, timeout=3)
comm.barrier()
def wait():
    while not all(os.path.exists(f"{folder}/told{each}") for each in range(3)):
        time.sleep(0.05)
    os._exit(0)

if rank == 3:
    comm._meeting.duplicate = wait
told = ""
try:
    comm.dup()
except cc.errors.StallError as error:
    told = str(error)
with open(f"{folder}/told{rank}", "w") as file:
    file.write(told)
os._exit(0)
"""


TOLD = """
import os, sys
import numpy as np, collectives as cc
from collectives.errors import CollectivesError
rank, folder = int(os.environ["RANK_HERE"]), sys.argv[1]
try:
    comm = cc.Communicator.from_rendezvous(f"{{folder}}/meeting", rank, 4, timeout={timeout})
    comm.barrier()
    if rank == 3:
        os.system("ip link set eth0 down")
    while True:
        comm.allreduce(np.ones(100_000))
except CollectivesError as error:
    with open(f"{{folder}}/told{{rank}}", "w") as file:
        file.write(f"{{type(error).__name__}} {{error}}")
os._exit(0)
"""


def told(folder, program, number=4, drops=False):
    """Return the errors of the first `number` of four ranks on two hosts. The hosts may drop all
    that comes from each other, as a firewall does.
    """
    try:
        with two_hosts(folder) as hosts:
            for host, other in enumerate(reversed(ADDRESSES)) if drops else ():
                words = f"ip neigh replace {other} lladdr 02:00:00:00:00:01 dev eth0 nud permanent"
                subprocess.run(hosts.inside(host, *words.split()), check=True)
            children = []
            for rank in range(4):
                words = [sys.executable, "-c", program, str(folder)]
                env = {**os.environ, "RANK_HERE": str(rank), "COLLECTIVES_PROFILE": "0"}
                command = hosts.inside(rank // 2, *words)
                children.append(subprocess.Popen(command, env=env))
            try:
                for child in children:
                    child.wait(60)
            finally:
                for child in children:
                    child.kill()
    except Unavailable as reason:
        pytest.skip(str(reason))
    return [(folder / f"told{rank}").read_text() for rank in range(number)]


def test_a_cut_link_is_noticed(tmp_path):
    """Nothing closes a connection, and data are on their way in both directions."""
    for text in told(tmp_path, TOLD.format(timeout=20)):
        assert re.match("PeerLostError .* has died while rank", text)


MIXED = """
import os, sys
rank, folder = int(os.environ["RANK_HERE"]), sys.argv[1]
os.environ["COLLECTIVES_UCX"] = {places!r}[rank // 2]
import numpy as np, collectives as cc
from collectives.process import ucx
comm = cc.Communicator.from_rendezvous(f"{{folder}}/meeting", rank, 4, timeout=20)
for n in (1, 1000, 300_000):
    assert (comm.allreduce(np.full(n, rank + 1.0)) == 10).all()
open(f"{{folder}}/told{{rank}}", "w").write(ucx.load())
"""


def test_hosts_may_have_different_versions(tmp_path):
    """One is in the package libucx, the other in the package of MPICH."""
    package, other = find_spec("libucx"), Path(sys.prefix, "lib", "mpich", ucx.FILE)
    if package is None or package.origin is None or not other.exists():
        pytest.skip("the packages libucx and mpich are not both here")
    found = told(tmp_path, MIXED.format(places=[str(Path(package.origin).parent), str(other)]))
    assert found[0] == found[1] != found[2] == found[3]


def test_a_firewall_that_drops_messages_is_told_by_the_deadline(tmp_path):
    """Without a setting of its own, UCX waits for minutes inside the call that connects."""
    for rank, text in enumerate(told(tmp_path, TOLD.format(timeout=3), drops=True)):
        first, host = (2, 2) if rank < 2 else (0, 1)
        others = f"rank {first} on host{host}, rank {first + 1} on host{host}"
        assert text.startswith(
            f"StallError Communicator() timed out: rank {rank} of 4 has waited 3 s"
        )
        assert f"; nothing was heard from {others}: firewalls must allow TCP between" in text


def test_a_rank_of_another_host_that_does_not_come_is_named(tmp_path):
    for text in told(tmp_path, LATE, 3):
        assert re.search("; nothing was heard from rank 3 on host ?2$", text), text
