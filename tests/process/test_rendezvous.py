"""Ranks that no MPI launcher started: their rendezvous, and its faults."""

import errno
import os
import pickle
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from jobs import line_of

from collectives.errors import ArgumentError, CommunicatorError, PeerLostError, StallError
from collectives.process import rendezvous, segment
from collectives.process.rendezvous import Folder, Keyed, Served
from collectives.process.rendezvous_server import Server

DEADLINE = 60  # seconds


def ranks(text, *arguments, size=2, env=None, server=None):
    """Run a program on some ranks; return the exit status and the output of each."""
    program = [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)]
    clean = {
        "COLLECTIVES_VALIDATE": "0",
        "COLLECTIVES_TIMEOUT": "20",
        "COLLECTIVES_PROFILE": "0",
        **(env or {}),
    }
    children = []
    for rank in range(size):
        own = server.environment(rank) if server is not None else {"RANK_HERE": str(rank)}
        children.append(
            subprocess.Popen(
                program,
                env={**os.environ, **clean, **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        outputs = [child.communicate(timeout=DEADLINE)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    return [(child.returncode, each) for child, each in zip(children, outputs, strict=True)]


def alike(run):
    """Return the output of ranks that all ended well, and said the same."""
    assert all(status == 0 for status, _ in run), run
    assert len({text for _, text in run}) == 1, run
    return run[0][1]


BY_FOLDER = """
    import os, sys
    import numpy as np, collectives as cc
    rank = int(os.environ["RANK_HERE"])
    comm = cc.Communicator.from_rendezvous(sys.argv[1], rank, 3)
    total = comm.allreduce(np.full(3, rank + 1.0))
    half = comm.split(rank % 2, -rank)
    twin = comm.dup()
    to, source = (rank + 1) % 3, (rank - 1) % 3
    came = twin.sendrecv(np.full(50_000, rank), to, np.empty(50_000, int), source)
    assert (came == source).all() and half.rank == (1, 0, 0)[rank]
    assert (cc.rank(), cc.size(), cc.local_size()) == (rank, 3, 3)
    assert comm.transport == "shm" and "mpi4py.MPI" not in sys.modules
    print(total, comm.allgather_object(["x" * 2000])[0] == ["x" * 2000])
"""


@pytest.mark.parametrize("shm", ["auto", "file", "0"])
def test_ranks_meet_in_a_folder(tmp_path, shm):
    text = BY_FOLDER if shm != "0" else BY_FOLDER.replace('== "shm"', '== "host"')
    run = ranks(text, tmp_path / "new", size=3, env={"COLLECTIVES_SHM": shm})
    assert alike(run) == "[6. 6. 6.] True\n"


def test_a_folder_is_for_one_job(tmp_path):
    Keyed(Folder(str(tmp_path), 1), 0, 1).allgather(1)
    with pytest.raises(CommunicatorError, match=r"is there already: .*Give each job a new one"):
        Keyed(Folder(str(tmp_path), 1), 0, 1).allgather(1)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_a_folder_whose_file_system_has_no_hard_links(tmp_path, monkeypatch, number):
    def link(*paths, **_):
        raise OSError(number, os.strerror(number), *paths[:1])

    monkeypatch.setattr(os, "link", link)
    stores = [Folder(str(tmp_path), 10) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        ranks = [pool.submit(Keyed(stores[r], r, 2).allgather, r) for r in range(2)]
        assert [each.result() for each in ranks] == [[0, 1]] * 2
    with pytest.raises(CommunicatorError, match=r"is there already: .*Give each job a new one"):
        Keyed(stores[1], 1, 2).allgather(1)
    assert not list(tmp_path.glob(f".*.{os.getpid()}"))


def test_a_folder_that_is_full(tmp_path, monkeypatch):
    def link(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(CommunicatorError, match="cannot be written: No space left on device"):
        Folder(str(tmp_path), 1).set("key", b"")


def test_a_folder_of_others_is_not_trusted(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(CommunicatorError, match="others may write to it"):
        Folder(str(tmp_path), 1)


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(CommunicatorError, match="link is no folder, or a link"):
        Folder(str(tmp_path / "link"), 1)


def test_a_folder_that_is_exchanged_is_not_read(tmp_path):
    """The owner of the folder above it can put another one in its place."""
    mine = Folder(str(tmp_path / "job"), 0.1)
    (tmp_path / "job").rename(tmp_path / "old")
    other = Folder(str(tmp_path / "job"), 0.1)
    other.set("key", b"from another folder")
    with pytest.raises(StallError, match="nothing came to"):
        mine.get("key")
    mine.set("key", b"mine")
    assert (mine.get("key"), other.get("key")) == (b"mine", b"from another folder")


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_only_files_are_read_in_a_folder(tmp_path, kind):
    folder = Folder(str(tmp_path / "job"), 1)
    (tmp_path / "secret").write_bytes(b"secret")
    if kind == "link":
        (tmp_path / "job" / "key").symlink_to(tmp_path / "secret")
    else:
        os.mkfifo(tmp_path / "job" / "key")
    with pytest.raises(CommunicatorError, match=r"key (cannot be read|is not a file of this user)"):
        folder.get("key")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
def test_a_file_of_another_user_is_not_read(tmp_path):
    folder = Folder(str(tmp_path), 1)
    folder.set("key", b"value")
    os.chown(tmp_path / "key", 65534, 65534)
    with pytest.raises(CommunicatorError, match="key is not a file of this user"):
        folder.get("key")


@pytest.mark.parametrize("offer", ["/proc/self/environ", "{file}", "{link}"])
def test_only_memory_of_this_user_is_opened(tmp_path, offer):
    """A user who writes to a store can offer a path, from which objects are unpickled later."""
    (tmp_path / "file").write_bytes(bytes(100))
    with open(tmp_path / "file", "rb") as file:
        link = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        path = offer.format(file=tmp_path / "file", link=link)
        with pytest.raises(segment._Failure, match="not the memory of a rank"):
            segment._opened(path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
def test_memory_of_another_user_is_not_opened():
    file = os.memfd_create("collectives")
    try:
        os.close(segment._opened(f"/proc/{os.getpid()}/fd/{file}"))
        os.fchown(file, 65534, 65534)
        with pytest.raises(segment._Failure, match="belongs to another user"):
            segment._opened(f"/proc/{os.getpid()}/fd/{file}")
    finally:
        os.close(file)


def test_a_rank_that_does_not_come_is_missed(tmp_path):
    with pytest.raises(StallError, match=r"nothing came to .*collectives-0-1 in 0.2 s"):
        Keyed(Folder(str(tmp_path), 0.2), 0, 2).allgather(1)


def test_errors_of_a_store_are_told():
    class Store(dict):
        set = dict.__setitem__

        def get(self, key):
            raise KeyError(key)

    with pytest.raises(StallError, match="rank 1 of 2 has not heard from rank 0 at the rendezvous"):
        Keyed(Store(), 1, 2).allgather(1)


@pytest.mark.parametrize(
    ("rank", "size", "text"),
    [(2, 2, "rank is 2 of 2, and must be from 0 to 1"), (-1, 2, "rank is -1"), ("a", 2, "whole")],
)
def test_ranks_are_checked(rank, size, text):
    import collectives as cc

    with pytest.raises(ArgumentError, match=text):
        cc.Communicator.from_rendezvous("nowhere", rank, size)


def meet(server, size, rounds=3, address=None, secret=b""):
    """Have threads of this process meet; return what each got."""
    got = [None] * size

    def rank(number):
        try:
            served = Served(address or server.address, number, size, 10, secret)
            got[number] = [served.allgather((number, i, "x" * 300_000)) for i in range(rounds)]
            served.close()
        except Exception as error:
            got[number] = error

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(DEADLINE)
    return got


def test_a_server_gives_all_what_each_says():
    server = Server(4)
    try:
        for got in meet(server, 4):
            assert [[each[:2] for each in round] for round in got] == [
                [(number, i) for number in range(4)] for i in range(3)
            ]
    finally:
        server.close()


def test_a_second_process_with_a_number_is_refused():
    server = Server(2)
    try:
        first = Served(server.address, 0, 2, 10)
        with pytest.raises(CommunicatorError, match="cannot be rank 0 of 2: it is there already"):
            Served(server.address, 0, 2, 10)
        with pytest.raises(CommunicatorError, match="cannot be rank 2 of 3: there are 2 ranks"):
            Served(server.address, 2, 3, 10)
        first.close()
    finally:
        server.close()


def test_silent_connections_do_not_hold_up_a_server():
    """Their greetings are not waited for."""
    server = Server(2)
    silent = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    try:
        for each in silent:
            each.connect("\0" + server.address.removeprefix("unix:"))
        began = time.monotonic()
        assert [got[0][0][:2] for got in meet(server, 2)] == [(0, 0), (0, 0)]
        assert time.monotonic() - began < 10  # one greeting was waited for so long
    finally:
        for each in silent:
            each.close()
        server.close()


CROWD = """
    import os, socket, sys
    os.setgid(65534), os.setuid(65534)
    held = []
    print("started", flush=True)
    while True:
        each = socket.socket(socket.AF_UNIX)
        each.settimeout(0.05)
        try:
            each.connect("\\0" + sys.argv[1])
            held = [*held[-500:], each]
        except OSError:
            each.close()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_another_user_does_not_hold_up_a_server():
    """Addresses are in /proc/net/unix, and anybody can connect to them, again and again."""
    server = Server(2)
    words = [sys.executable, "-c", textwrap.dedent(CROWD), server.address.removeprefix("unix:")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as crowd:
        try:
            line_of(crowd)
            assert [got[0][0][:2] for got in meet(server, 2)] == [(0, 0), (0, 0)]
        finally:
            crowd.kill()
            server.close()


def test_the_deadline_holds_where_the_queue_is_full():
    listener = socket.socket(socket.AF_UNIX)
    name = f"collectives-test-{os.getpid()}"
    listener.bind("\0" + name)
    listener.listen(0)
    others = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    with listener:
        for each in others:
            each.setblocking(False)
            each.connect_ex("\0" + name)
        with pytest.raises(CommunicatorError, match="the launcher of rank 0 of 2 is gone"):
            Served(f"unix:{name}", 0, 2, 0.3)
    for each in others:
        each.close()


def test_a_rank_that_has_ended_is_told_of():
    server = Server(2)
    try:
        served = Served(server.address, 0, 2, 10)
        threading.Timer(0.1, server.lose, (1,)).start()
        with pytest.raises(PeerLostError, match="the process of rank 1 has ended"):
            served.allgather(1)
    finally:
        server.close()


def test_no_server(monkeypatch):
    server = Server(1)
    for name, value in server.environment(0).items():
        monkeypatch.setenv(name, value)
    server.close()
    with pytest.raises(CommunicatorError, match="the launcher of rank 0 of 1 is gone"):
        rendezvous.from_environment(1)


def test_wrong_variables(monkeypatch):
    monkeypatch.setenv("COLLECTIVES_RENDEZVOUS", "unix:nobody")
    monkeypatch.setenv("COLLECTIVES_RANK", "2")
    monkeypatch.setenv("COLLECTIVES_SIZE", "2")
    with pytest.raises(ArgumentError, match="COLLECTIVES_RANK is '2' and COLLECTIVES_SIZE '2'"):
        rendezvous.from_environment(1)


def served(text, size=2, **env):
    server = Server(size)
    try:
        return ranks(text, size=size, env=env, server=server)
    finally:
        server.close()


def test_the_environment_makes_a_job():
    text = """
        import numpy as np, collectives as cc
        print(cc.allreduce(np.ones(2)), cc.size(), cc.world().mpi.Get_size())
    """
    assert alike(served(text)) == "[2. 2.] 2 2\n"


def test_a_process_that_a_rank_has_started_is_none():
    text = """
        import os, subprocess, sys
        code = "import collectives as cc; cc.size()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        print("perhaps by one of them" in done.stderr)
        import collectives as cc
        print(cc.allreduce_object(1))
    """
    assert alike(served(text)) == "True\n2\n"


class Attack:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_what_others_put_into_a_store_is_not_executed(tmp_path):
    store = Folder(str(tmp_path / "store"), 1)
    store.set("collectives/0/1", pickle.dumps(Attack(tmp_path / "executed")))
    with pytest.raises(StallError, match=r"rank 1 at the rendezvous: .*mkdir is refused"):
        Keyed(store, 0, 2).allgather(("host", 1, b"", [None, {2.0}]))
    assert not (tmp_path / "executed").exists()


def test_a_number_in_a_store_is_for_one_process():
    class Store(dict):
        set = dict.__setitem__

        def check(self, keys):
            return all(key in self for key in keys)

    store = Store()
    Keyed(store, 0, 1).allgather(1)
    with pytest.raises(CommunicatorError, match="another process is rank 0 of 1 already"):
        Keyed(store, 0, 1).allgather(1)


def test_a_wrong_kind_of_memory():
    text = """
        import collectives as cc
        try:
            cc.world()
        except cc.errors.ArgumentError as error:
            print(error)
    """
    wanted = "COLLECTIVES_SHM is 'bogus', and must be auto, memfd, file or 0\n"
    assert alike(served(text, COLLECTIVES_SHM="bogus")) == wanted


def test_a_killed_rank_is_noticed():
    """Also while a communicator is made, and by a receive."""
    text = """
        import os, signal
        import numpy as np, collectives as cc
        comm = cc.world()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        told = []
        for call in (lambda: comm.recv(np.empty(3), 1), lambda: cc.Communicator()):
            try:
                call()
            except cc.errors.PeerLostError as error:
                told.append("has died" in str(error) or "died" in str(error))
        print(told, flush=True)
        os._exit(0)
    """
    (status, output), (killed, _) = served(text)
    assert (status, output, killed) == (0, "[True, True]\n", -9)


def test_an_uncaught_exception_ends_its_rank_with_a_report():
    text = """
        import collectives as cc
        comm = cc.world()
        if comm.rank == 1:
            raise ValueError("no data")
        try:
            comm.barrier()
        except cc.errors.PeerLostError as error:
            print("heard of it")
    """
    (status, output), (failed, report) = served(text)
    assert (status, output) == (0, "heard of it\n")
    assert failed == 1
    assert "ValueError: no data" in report
    assert "collectives: rank 1 of 2 ends the job because of an uncaught exception" in report


def test_mpi_and_a_job_without_it_do_not_mix(tmp_path):
    pytest.importorskip("mpi4py.MPI")
    text = """
        import sys
        import collectives as cc
        if sys.argv[2] == "first":
            cc.world()
        try:
            comm = cc.Communicator.from_rendezvous(sys.argv[1], 0, 1)
            from mpi4py import MPI
            cc.Communicator(MPI.COMM_WORLD)
        except cc.CollectivesError as error:
            print(error)
    """
    ((status, output),) = ranks(text, tmp_path / "a", "first", size=1)
    assert status == 0
    assert output.startswith("this process communicates through MPI already, and cannot be")
    ((status, output),) = ranks(text, tmp_path / "b", "then", size=1)
    assert status == 0
    assert "this process is a rank of a job without MPI: leave it out" in output


def test_forked_children_cannot_communicate():
    text = """
        import os
        import numpy as np, collectives as cc
        cc.allreduce(np.ones(1))
        child = os.fork()
        if child == 0:
            try:
                cc.allreduce(np.ones(1))
            except cc.errors.CommunicatorError as error:
                assert "communication does not survive a fork" in str(error), error
            os._exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), cc.allreduce(np.ones(1)))
    """
    assert alike(served(text)) == "5 [2.]\n"


def test_two_jobs_of_one_process(tmp_path):
    """A second rendezvous, in which the ranks have other numbers."""
    text = """
        import os, sys
        import numpy as np, collectives as cc
        rank = int(os.environ["RANK_HERE"])
        one = cc.Communicator.from_rendezvous(sys.argv[1] + "1", rank, 2)
        other = cc.Communicator.from_rendezvous(sys.argv[1] + "2", 1 - rank, 2)
        requests = [c.iallgather(np.full((), c.rank)) for c in (one, other)]
        assert (one.rank, other.rank, cc.rank()) == (rank, 1 - rank, rank)
        for comm in (other, one):
            comm.send(np.array([7]), 1 - comm.rank)
        for comm in (one, other):
            comm.recv(np.empty(1, int), 1 - comm.rank)
        print(*(request.wait() for request in requests))
        other.free()
        one.free()
    """
    assert alike(ranks(text, tmp_path / "job")) == "[0 1] [0 1]\n"
