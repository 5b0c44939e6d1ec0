"""Ranks of several hosts that no MPI launcher started: their rendezvous, and its faults."""

import contextlib
import pickle
import socket
import tempfile
import threading
import time

import pytest
from ports import free_port
from test_rendezvous import Attack, alike, meet, ranks

from collectives.errors import ArgumentError, CommunicatorError, StallError
from collectives.process import rendezvous, rendezvous_server
from collectives.process.rendezvous import Served
from collectives.process.rendezvous_server import WHO, Server

SECRET = b"a secret that ranks know"


def at(server, host="127.0.0.1"):
    return f"tcp:{host}:{server.port}"


def test_ranks_meet_by_tcp():
    server = Server(3, 0, SECRET)
    try:
        for got in meet(server, 3, address=at(server), secret=SECRET):
            assert [[each[:2] for each in round] for round in got] == [
                [(number, i) for number in range(3)] for i in range(3)
            ]
    finally:
        server.close()


def test_a_wrong_secret_is_told_on_both_sides():
    server = Server(2, 0, SECRET)
    try:
        with pytest.raises(CommunicatorError, match="has another secret: it is the rendezvous of"):
            Served(at(server), 1, 2, 10, b"another")
        first = Served(at(server), 0, 2, 0.3, SECRET)
        with pytest.raises(
            StallError, match=r"rank 1 has not come; a process at 127.0.0.1 was refused: it does"
        ):
            first.allgather(1)
    finally:
        server.close()


def test_a_number_is_for_one_process_by_tcp_too():
    server = Server(2, 0, SECRET)
    try:
        first = Served(at(server), 1, 2, 10, SECRET)
        with pytest.raises(CommunicatorError, match="cannot be rank 1 of 2: it is there already"):
            Served(at(server), 1, 2, 10, SECRET)
        first.close()
    finally:
        server.close()


def test_strangers_at_a_port_hold_nobody_up_and_are_not_unpickled(tmp_path):
    """One sends nothing, one sends a part of the expected bytes, one sends an object."""
    server = Server(2, 0, SECRET)
    bad = pickle.dumps(Attack(tmp_path / "executed"))
    held = []
    try:
        for text in (b"", b"x" * 10, bad * 5):
            held.append(socket.create_connection(("127.0.0.1", server.port)))
            held[-1].sendall(text)
        began = time.monotonic()
        got = meet(server, 2, address=at(server), secret=SECRET)
        assert [each[0][0][:2] for each in got] == [(0, 0), (0, 0)]
        assert time.monotonic() - began < 5
        assert not (tmp_path / "executed").exists()
    finally:
        for each in held:
            each.close()
        server.close()


def fake_server(answers):
    """Listen at a port, and answer a connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        made, _ = listener.accept()
        with made, listener, contextlib.suppress(OSError):
            for answer in answers:
                made.sendall(answer)
                made.recv(1000)

    threading.Thread(target=serve, daemon=True).start()
    return f"tcp:127.0.0.1:{listener.getsockname()[1]}"


def test_a_server_that_does_not_know_the_secret_is_not_believed(tmp_path):
    bad = pickle.dumps(Attack(tmp_path / "executed"))
    address = fake_server([b"collectives rdv1" + bytes(32), bytes(32) + bad])
    with pytest.raises(CommunicatorError, match="it has another secret"):
        Served(address, 0, 2, 5, SECRET)
    with pytest.raises(CommunicatorError, match="is no rendezvous of this library"):
        Served(fake_server([b"SSH-2.0-OpenSSH_9.2" + bytes(60)]), 0, 2, 5, SECRET)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("tcp:127.0.0.1:1", "no program listens at port 1 of 127.0.0.1, or a firewall refuses"),
        ("tcp:no-such-host.invalid:4000", "host name 'no-such-host.invalid' does not resolve"),
    ],
)
def test_a_server_that_is_not_reached(address, text):
    with pytest.raises(CommunicatorError, match=text):
        Served(address, 1, 2, 5, SECRET)


def test_connections_that_are_dropped(monkeypatch):
    def connect(*_):
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(CommunicatorError, match="does not answer at port 4000: a firewall"):
        Served("tcp:10.0.0.1:4000", 1, 2, 0.1, SECRET)


def test_a_program_at_the_port_that_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"tcp:127.0.0.1:{found.getsockname()[1]}"
        with pytest.raises(CommunicatorError, match="program that listens there does not answer"):
            Served(address, 1, 2, 0.3, SECRET)


def test_rank_0_says_that_others_look_for_it_elsewhere():
    port = free_port()
    text = "rank 1 has not come; 192.0.2.1, where the others look for rank 0, is no address of"
    with pytest.raises(StallError, match=text):
        Served(f"first:192.0.2.1:{port}", 0, 2, 0.3, SECRET).allgather(1)


def test_rank_0_serves_and_others_wait_for_it():
    port = free_port()
    text = """
        import os, time
        rank = int(os.environ["RANK_HERE"])
        os.environ["COLLECTIVES_RANK"] = str(rank)
        time.sleep(0.5 * (rank == 0))
        import numpy as np, collectives as cc
        print(cc.allreduce(np.ones(2)), cc.size())
    """
    env = {
        "COLLECTIVES_RENDEZVOUS": f"first:localhost:{port}",
        "COLLECTIVES_SIZE": "3",
        "COLLECTIVES_SECRET": SECRET.decode(),
    }
    assert alike(ranks(text, size=3, env=env)) == "[3. 3.] 3\n"


def test_two_jobs_on_one_port():
    server = Server(2, 0, SECRET)
    address = f"first:localhost:{server.port}"
    try:
        with pytest.raises(CommunicatorError, match=r"cannot serve .*perhaps because another job"):
            Served(address, 0, 2, 1, b"of another job")
        with pytest.raises(CommunicatorError, match="it is the rendezvous of another job"):
            Served(address, 1, 2, 1, b"of another job")
    finally:
        server.close()


def test_a_rank_that_never_comes_is_named_by_the_first():
    port = free_port()
    with pytest.raises(StallError, match=r"has waited 0.3 s .*: ranks 1-2 have not come"):
        Served(f"first:localhost:{port}", 0, 3, 0.3, SECRET).allgather(1)


def test_all_hear_who_is_missing_when_the_server_gives_up():
    """Rank 0 serves, and ends at its deadline."""
    port = free_port()
    text = """
        import os
        os.environ["COLLECTIVES_RANK"] = rank = os.environ["RANK_HERE"]
        os.environ["COLLECTIVES_TIMEOUT"] = "1" if rank == "0" else "30"
        import collectives as cc
        try:
            cc.world()
        except cc.errors.StallError as error:
            print(error, flush=True)
        os._exit(0)
    """
    env = {
        "COLLECTIVES_RENDEZVOUS": f"first:localhost:{port}",
        "COLLECTIVES_SIZE": "4",
        "COLLECTIVES_SECRET": SECRET.decode(),
    }
    (_, first), *others = ranks(text, size=3, env=env)
    assert (
        first
        == "rank 0 of 4 has waited 1 s for the others at the rendezvous: rank 3 has not come\n"
    )
    for rank, (_, told) in enumerate(others, 1):
        assert told == (
            f"rank {rank} of 4 cannot meet the others: one of them has waited for too long: rank 3 "
            f"has not come\n"
        )


def test_an_answer_on_its_way_is_the_only_one():
    """A rank whose deadline passes as the last one comes gets no second answer."""
    server = Server(2, 0, SECRET)
    try:
        first, second = (Served(at(server), rank, 2, 10, SECRET) for rank in range(2))
        first._channel.send(pickle.dumps("a"))
        second._channel.send(pickle.dumps("b"))
        assert pickle.loads(second._channel.receive()) == [pickle.dumps(each) for each in "ab"]
        first._channel.send(WHO)
        assert first._heard() == [pickle.dumps(each) for each in "ab"]
        for each in (first, second):
            each._channel.send(pickle.dumps("c"))
        assert first._heard() == second._heard() == [pickle.dumps("c")] * 2
    finally:
        server.close()


@pytest.mark.parametrize(
    ("rank", "size", "why"), [(0, 3, "it is there already"), (1, 2, "there are 3 ranks")]
)
def test_others_hear_of_a_process_that_cannot_be_a_rank(rank, size, why):
    server = Server(3, 0, SECRET)
    try:
        first = Served(at(server), 0, 3, 0.3, SECRET)
        with pytest.raises(CommunicatorError, match=f"cannot be rank {rank} of {size}: {why}"):
            Served(at(server), rank, size, 10, SECRET)
        text = f"have not come; a process at 127.0.0.1 was refused as rank {rank} of {size}: {why}"
        with pytest.raises(StallError, match=text):
            first.allgather(1)
    finally:
        server.close()


@pytest.mark.parametrize("secret", [None, "short"])
def test_a_network_wants_a_secret(monkeypatch, secret):
    monkeypatch.setenv("COLLECTIVES_RENDEZVOUS", "tcp:host:4000")
    monkeypatch.setenv("COLLECTIVES_RANK", "0")
    monkeypatch.setenv("COLLECTIVES_SIZE", "2")
    if secret:
        monkeypatch.setenv("COLLECTIVES_SECRET", secret)
    with pytest.raises(ArgumentError, match=r"so COLLECTIVES_SECRET must have .*16 characters"):
        rendezvous.from_environment(1)


@pytest.mark.parametrize("address", ["tcp:4000", "tcp:host:", "first:host:99999"])
def test_a_wrong_address(address):
    with pytest.raises(ArgumentError, match="must be unix:NAME, tcp:HOST:PORT, first:HOST:PORT"):
        Served(address, 1, 2, 1, SECRET)


def test_a_flood_of_connections_does_not_keep_ranks_from_meeting(monkeypatch):
    """It begins before rank 0 listens. Connections are held, or say something wrong, and are more
    than the server keeps.
    """
    monkeypatch.setattr(rendezvous_server, "MOST_STRANGERS", 64)
    port = free_port()
    is_over = threading.Event()

    def flood():
        held = []
        while not is_over.is_set():
            try:
                held.append(socket.create_connection(("127.0.0.1", port), 1))
                if len(held) % 2:
                    held[-1].sendall(bytes(200))
            except OSError:
                for each in held:
                    each.close()
                held.clear()
                time.sleep(0.001)
        for each in held:
            each.close()

    threads = [threading.Thread(target=flood, daemon=True) for _ in range(4)]
    for each in threads:
        each.start()
    try:
        got = meet(None, 3, address=f"first:127.0.0.1:{port}", secret=SECRET)
        assert [[each[:2] for each in round] for round in got[0]] == [
            [(number, i) for number in range(3)] for i in range(3)
        ]
    finally:
        is_over.set()
        for each in threads:
            each.join()


def test_ranks_meet_again_after_an_error():
    """The port of an attempt that has failed is free for the next one."""
    port = free_port()
    text = """
        import os, time
        os.environ["COLLECTIVES_RANK"] = rank = os.environ["RANK_HERE"]
        os.environ["COLLECTIVES_TIMEOUT"] = "1" if rank == "0" else "30"
        import collectives as cc, threading
        failed = 0
        while True:
            try:
                if rank == "1" and not os.path.exists(os.environ["FAILED"]):
                    time.sleep(0.05)
                    continue
                comm = cc.world()
                break
            except cc.errors.StallError:
                os.environ["COLLECTIVES_TIMEOUT"] = "30"
                failed += 1
                open(os.environ["FAILED"], "w").close()
        assert failed == (rank == "0"), failed
        print(comm.allreduce_object(1))
    """
    with tempfile.TemporaryDirectory() as folder:
        env = {
            "COLLECTIVES_RENDEZVOUS": f"first:localhost:{port}",
            "COLLECTIVES_SIZE": "2",
            "COLLECTIVES_SECRET": SECRET.decode(),
            "FAILED": f"{folder}/failed",
        }
        assert alike(ranks(text, size=2, env=env)) == "2\n"


def test_a_rank_whose_connection_is_dropped_tries_again():
    """The server has too many connections, and closes some."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.settimeout(20)
    servers = []

    def drop():
        for _ in range(3):
            listener.accept()[0].close()
        listener.close()
        servers.append(Server(2, port, SECRET))

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        made = Served(f"first:127.0.0.1:{port}", 1, 2, 20, SECRET)
        thread.join()
        made.close()
    finally:
        thread.join()
        servers[0].close()
