"""Parameter servers whose ranks die or are stopped: the ranks that continue, and the messages."""

import pytest
from ranks import BOUND, Ranks

pytestmark = pytest.mark.any_mpi

# Groups of three: a server and two workers. In each, rank 2 is killed or stopped, or the server.
GROUPS = ("dropped", "named", "server", "stopped")

PROGRAM = f"""
from collectives import server
names = {GROUPS}
kind, comm = names[rank // 3], comm.split(rank // 3)
policy = server.Asynchronous() if kind == "dropped" else server.Synchronous()

def stop():
    note(error="stopped")
    os.kill(os.getpid(), signal.SIGSTOP)

def train():
    w = np.zeros(1000)
    timeout = 1 if kind == "stopped" else 30
    with server.ParameterServer(
        comm, [w], optimizer=server.SGD(1.0), policy=policy, timeout=timeout
    ) as ps:
        if kind == "server" and ps.is_server:
            threading.Timer(0.2, die).start()
        for step in range(10**6 if ps.is_worker else 0):
            ps.pull()
            if comm.rank == 2 and step == 5 and kind in ("dropped", "named"):
                die()
            if comm.rank == 2 and step == 5 and kind == "stopped":
                # Its deadline does not pass meanwhile.
                pid = os.getpid()
                if os.fork() == 0:
                    os.closerange(0, 3)
                    time.sleep(2.5)
                    os.kill(pid, signal.SIGCONT)
                    os._exit(0)
                stop()
            ps.push([np.full(1000, -1.0)])
            if kind == "dropped" and ps.version >= 400:
                break
            if kind == "dropped" and step == 20:
                time.sleep(0.5)  # until it is noticed
    if ps.is_server:
        note(error=None, text=str(ps.statistics), updates=int(w[0]), version=ps.version)
        leave()

note_end(train)
leave()
"""


def test_workers_and_servers_are_killed_and_stopped(tmp_path):
    notes = Ranks(tmp_path)(PROGRAM, 3 * len(GROUPS), survive=True)
    said = {
        name: [notes[3 * number + rank] for rank in range(3)] for number, name in enumerate(GROUPS)
    }
    # Asynchronous: the server counts it as lost, and nobody else hears of it.
    served, worker, _ = said["dropped"]
    assert "worker 1 was lost: rank 2 (process" in served["text"]
    assert served["updates"] == served["version"] >= 400
    assert worker["error"] is None
    # Synchronous: both others name it.
    for each in said["named"][:2]:
        assert each["error"] == "PeerLostError"
        assert (
            "worker 1 (rank 2) is lost, and Synchronous() needs it: rank 2 (process "
            in each["text"]
        )
        assert each["at"] - said["named"][2]["at"] < BOUND
    # A server: all workers name it.
    for each in said["server"][1:]:
        assert each["error"] == "PeerLostError"
        assert "server 0: rank 0 (process" in each["text"]
        assert "has died" in each["text"]
    # A stopped worker is not dead, and waited for until the deadline.
    for each in said["stopped"][:2]:
        assert each["error"] == "StallError"
        assert "for worker 1 (rank 2)" in each["text"]
    assert said["stopped"][2]["error"] == "StallError"
