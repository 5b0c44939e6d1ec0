"""Messages without MPI, in shared memory and by UCX: they tell their dtype and their call."""

import ast

import pytest
from commands import command

SPREAD = "import os; os.environ['COLLECTIVES_HOST'] = os.environ['COLLECTIVES_RANK']\n"
HEAD = """
import numpy as np, collectives as cc
from collectives.errors import CollectivesError, MismatchError
comm = cc.Communicator(timeout=10)
r, p = comm.rank, comm.size

def told(call):
    try:
        return f"returned {call()}"
    except CollectivesError as error:
        return f"{type(error).__name__}: {error}"
"""


@pytest.fixture(params=["host", "messages", "hosts"])
def ranks(request, tmp_path):
    """Return a function that runs a program on ranks of one host, with and without shared memory
    for collectives, or on ranks of hosts of their own; it returns a line of each rank.
    """
    if request.param == "hosts":
        request.getfixturevalue("has_ucx")

    def run(text, n):
        path = tmp_path / "program.py"
        path.write_text((SPREAD if request.param == "hosts" else "") + HEAD + text)
        more = {"COLLECTIVES_SHM": "0"} if request.param == "messages" else {}
        done = command("run", "--no-mpi", "--prefix", "-n", str(n), str(path), **more)
        assert done.returncode == 0, done
        return [line.split("] ", 1)[1] for line in sorted(done.stdout.splitlines())]

    return run


@pytest.mark.parametrize("count", [0, 1, 100_000])
@pytest.mark.any_mpi
def test_a_message_is_not_read_as_another_dtype(ranks, count):
    sender, receiver = ranks(
        f"""
x, out = np.arange({count}), np.zeros({count})
print(told(lambda: comm.recv(out, 0) if r else comm.send(x, 1)))
assert not out.any()
""",
        2,
    )
    assert (
        f"rank 0 sends int64 ({8 * count} bytes), and this rank receives float64 "
        f"({8 * count} bytes); pass arrays of one dtype, or views of their bytes"
    ) in receiver
    assert sender in ("returned None", "") or "receives float64, and this rank sends" in sender


@pytest.mark.any_mpi
def test_bytes_are_read_as_bytes(ranks):
    said = ranks(
        """
x, out = np.arange(1, 4), np.zeros(24, np.uint8)
print(told(lambda: comm.recv(out, 0).view(int) if r else comm.send(x.view(np.uint8), 1)))
""",
        2,
    )
    assert said == ["returned None", "returned [1 2 3]"]


CALLS = {
    "alltoallv": "comm.alltoallv(x, [2] * p, receive_counts=[2] * p)",
    "ialltoallv": "comm.ialltoallv(x, [2] * p, receive_counts=[2] * p).wait()",
    "allgatherv": "comm.allgatherv(x, counts=[2 * p] * p)",
    "allreduce": "comm.allreduce(x)",
}


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.any_mpi
def test_dtypes_differ(ranks, n):
    """No rank gets the bits of another dtype."""
    said = ranks(
        f"""
x = np.ones(2 * p, np.int32 if r == 1 else np.float32)
every = [cc.Communicator(timeout=10) for _ in {list(CALLS)}]
calls = {", ".join(f"lambda comm: {call}" for call in CALLS.values())}
print([told(lambda: call(comm)) for call, comm in zip(calls, every)])
""",
        n,
    )
    for texts in zip(*map(ast.literal_eval, said), strict=True):
        assert not any("returned" in each for each in texts), texts
        assert any("MismatchError" in each and "int32" in each for each in texts), texts


@pytest.mark.any_mpi
def test_a_forked_child_does_not_wait_for_the_lock_of_messages(ranks):
    """Another thread of the parent may have it at the fork, and does not exist in the child."""
    assert ranks(
        """
import os, signal, threading, time
from collectives import _core
start = comm._meeting.start_recv
other, waiting = start(bytearray(1), 1 - r, 1), start(bytearray(1), 1 - r, 2)
is_over = False

def poll():
    while not is_over:
        _core.advance_all()
        other.Test()

thread = threading.Thread(target=poll)
thread.start()
for _ in range(40):
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        waiting = None
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("a child waits")
        break
is_over = True
thread.join()
comm.barrier()
print("over")
""",
        2,
    ) == ["over", "over"]
