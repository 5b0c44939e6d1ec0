"""The errors that beginners meet first, with and without MPI, in shared memory and by messages."""

import re

import pytest
from commands import command
from programs import alone, program

HEAD = """
import time, warnings
import numpy as np, collectives as cc
warnings.simplefilter("error", cc.errors.StallWarning)
x = np.ones(3)

def told(call):
    try:
        return f"returned {call()}"
    except (cc.CollectivesError, cc.errors.StallWarning) as error:
        return f"{type(error).__name__}: {error}"
"""

# In each case, another communicator.
CASES = """
for name, call in calls.items():
    comm = cc.Communicator(timeout=2)
    r = comm.rank
    print(f"{name}| {told(call)}", flush=True)
"""

ALLREDUCE = r"rank 0 called allreduce\(count=3, dtype=float64, op=SUM, algorithm=\w+\)"
LATE = "rank 1 has not called this allreduce yet: is the call under an if?"
CIRCLE = (
    r"StallWarning: {0} 'direct' on 2 ranks: rank (\d) has waited [\d.]+ s: deadlock: "
    r"rank \1 waits in {0} for rank (\d), and rank \2 waits in {0} for rank \1; round 1, segment 1 "
    r"of 1 waits for rank \2 to {1}$"
)
STALL = "StallError: {} 'direct' on 2 ranks: rank {} timed out after {} s: round 1, .* 1 of 1 waits"
LENGTHS = "MismatchError: {} 'direct' on 2 ranks: rank {}, round 1: out is too {}; both must pass"
SHORT = (
    "short: rank 0 sends (32 bytes, and rank 1 receives 24|more than the 24 bytes that rank 1 .*)"
)

# The call of rank `r` of two, and the text on one of the ranks, with shared memory and without.
TOLD = {
    "another": (
        "comm.barrier() if r else comm.allreduce(x)",
        rf"MismatchError: .*{ALLREDUCE}; rank 1 called barrier\(.*\): is one of these calls under",
        r"MismatchError: .*(under an if\?$|COLLECTIVES_VALIDATE=1 says who\)$)",
    ),
    "later": (
        "time.sleep(2) if r else comm.allreduce(x, algorithm='ring', timeout=0.5)",
        rf"StallError: .* \(call 1; rank 0 .*\); {re.escape(LATE)}$",
        rf"StallError: .* waits for rank 1 to send\. Perhaps {re.escape(LATE)}$",
    ),
    "split": (
        "time.sleep(2) if r else (setattr(comm, 'timeout', 0.5), comm.split(0))",
        r"StallError: split\(\): .*; rank 1 has not called this split yet: is the call under an if",
        r"StallError: split\(\): .*\. Perhaps rank 1 has not called this split yet: is the call",
    ),
    "both receive": (
        "comm.recv(x, 1 - r)",
        CIRCLE.format("recv", "send"),
        STALL.format("recv", r"\d", "2") + r" for rank \d to send$",
    ),
    "both send": (
        "comm.send(np.ones(1 << 20), 1 - r)",
        CIRCLE.format("send", "receive"),
        STALL.format("send", r"\d", "2") + r" for rank \d to receive$",
    ),
    "receives from itself": (
        "comm.recv(x, 1) if r else None",
        "StallWarning: .* deadlock: rank 1 waits in recv for rank 1; round 1",
        "StallWarning: .* deadlock: rank 1 waits in recv for rank 1; round 1",
    ),
    "receives instead": (
        "comm.recv(x, 0) if r else comm.allreduce(x, algorithm='ring')",
        "StallWarning: .* deadlock: rank 0 waits in allreduce for rank 1, and rank 1 waits in recv",
        rf"StallError: .* to send\. Perhaps {re.escape(LATE)}$|" + STALL.format("recv", 1, 2),
    ),
    "computes": (
        "time.sleep(2) if r else comm.recv(x, 1, timeout=0.5)",
        STALL.format("recv", 0, "0.5") + r" for rank 1 to send \(rank 1 \(process \d+\) has called",
        STALL.format("recv", 0, "0.5") + " for rank 1 to send$",
    ),
    "short": (
        "comm.recv(x, 0) if r else comm.send(np.ones(4), 1)",
        LENGTHS.format("recv", 1, SHORT),
        LENGTHS.format("recv", 1, SHORT),
    ),
    "long": (
        "comm.recv(x, 0) if r else comm.send(np.ones(2), 1)",
        LENGTHS.format("recv", 1, "long: rank 0 sends 16 bytes, and rank 1 receives 24"),
        LENGTHS.format("recv", 1, "long: rank 0 sends 16 bytes, and rank 1 receives 24"),
    ),
}
WITHOUT_MPI = {
    "short and offered": (
        "comm.recv(x, 0) if r else comm.send(np.ones(1 << 20), 1)",
        LENGTHS.format("send", 0, "short: rank 0 sends 8388608 bytes, and rank 1 receives fewer"),
        LENGTHS.format("send", 0, "short: rank 0 sends 8388608 bytes, and rank 1 receives fewer"),
    ),
}


def cases(told):
    calls = ", ".join(f"{name!r}: lambda: {call}" for name, (call, *_) in told.items())
    return f"calls = {{{calls}}}{CASES}"


def check(out, told, shm):
    lines = [line.partition("| ") for line in out.splitlines()]
    for name, (_, *patterns) in told.items():
        texts = [text for found, _, text in lines if found == name]
        assert len(texts) == 2, out
        assert any(re.match(patterns[not shm], each) for each in texts), (name, texts)
        assert "nonblocking" not in out


@pytest.fixture(params=[True, False], ids=["shared", "messages"])
def shm(request):
    return request.param


@pytest.fixture
def env(shm):
    return {} if shm else {"COLLECTIVES_SHM": "0"}


@pytest.mark.each_mpi
def test_with_mpi(shm, env):
    result = program(cases(TOLD), env=env, head=HEAD)
    assert result.status == 0, result
    check(result.out, TOLD, shm)


def without_mpi(path, text, env):
    """Run a program on two ranks; return the lines that they print."""
    path.write_text(HEAD + text)
    done = command("run", "--no-mpi", "--prefix", "-n", "2", str(path), **env)
    assert done.returncode == 0, done
    return re.sub(r"(?m)^\[\S*\] ", "", done.stdout)


@pytest.mark.any_mpi
def test_without_mpi(tmp_path, shm, env):
    told = {**TOLD, **WITHOUT_MPI}
    check(without_mpi(tmp_path / "program.py", cases(told), env), told, shm)


ENDS = """
comm = cc.Communicator(timeout=2)
if comm.rank == 0:
    print(told(lambda: comm.allreduce(x, algorithm="ring")))
"""
NEVER = (
    r"PeerLostError: allreduce 'ring' on 2 ranks: rank 1 (\(process \d+\) |on \S+ )?has left and "
    r"never called this allreduce: is the call under an if\? Rank 0 waits: round 1"
)
NOT_YET = rf"StallError: .* waits for rank 1 to send\. Perhaps {re.escape(LATE)}\n$"


@pytest.mark.each_mpi
def test_a_rank_ends_without_the_call(shm, env):
    result = program(ENDS, env=env, head=HEAD)
    assert re.match(NEVER if shm else NOT_YET, result.out), result


@pytest.mark.any_mpi
def test_a_rank_ends_without_the_call_and_without_mpi(tmp_path, shm, env):
    told = without_mpi(tmp_path / "program.py", ENDS, env)
    assert re.match(NEVER if shm else NOT_YET, told)


SPREAD = "import os\nos.environ['COLLECTIVES_HOST'] = os.environ['COLLECTIVES_RANK']\n"


@pytest.mark.any_mpi
@pytest.mark.usefixtures("has_ucx")
def test_a_rank_of_another_host_ends_without_the_call(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(SPREAD + HEAD + ENDS)
    done = command("run", "--no-mpi", "-n", "2", str(path))
    assert re.match(NEVER, done.stdout), done


@pytest.mark.any_mpi
def test_ranks_compare_their_calls():
    text = "comm = cc.world()\nprint(told(lambda: cc.allreduce(x) if comm.rank else cc.barrier()))"
    result = program(text, env={"COLLECTIVES_VALIDATE": "1"}, head=HEAD)
    told = r"MismatchError: the ranks do not agree: rank 0 called barrier\(.*; rank 1 called allred"
    assert len(re.findall(told + r".*\): is one of these calls under an if\?\n", result.out)) == 2


CIRCLE_OF_THREE = """
comm = cc.Communicator(timeout=10)
print(told(lambda: comm.recv(x, (comm.rank + 1) % 3)))
"""


@pytest.mark.any_mpi
def test_three_ranks_wait_in_a_circle():
    result = program(CIRCLE_OF_THREE, 3, head=HEAD)
    assert re.search(
        r"deadlock: rank (.) waits in recv for rank (.), and rank \2 waits in recv for rank (.), "
        r"and rank \3 waits in recv for rank \1; round 1",
        result.out,
    ), result


NO_DEADLOCK = """
import threading
comm = cc.Communicator(timeout=20)
r, other = comm.rank, 1 - comm.rank

def send():
    time.sleep(2.5)
    comm.send(x + r, other)

def by_a_thread():
    thread = threading.Thread(target=send)
    thread.start()
    comm.recv(x, other)
    thread.join()

def one_is_late():
    if r:
        time.sleep(2.5)
        comm.send(x, other)
    else:
        comm.recv(x, other)

def in_flight():
    if r:
        time.sleep(2.5)
    request = comm.isend(np.ones(1 << 20), other)
    comm.recv(np.empty(1 << 20), other)
    request.wait()

print([told(call) for call in (by_a_thread, one_is_late, in_flight)])
"""


@pytest.mark.any_mpi
def test_waits_that_end_are_no_deadlock():
    result = program(NO_DEADLOCK, head=HEAD)
    assert result.out == f"{['returned None'] * 3}\n" * 2, result


# Calls that start others inside; and then one that rank 1 comes too late to.
BLOCKING = """
comm = cc.Communicator(timeout=20)
r, p = comm.rank, comm.size
counts = [2] * p if r == 0 else None
comm.scatterv(np.ones(2 * p) if r == 0 else None, np.empty(2), counts=counts)
comm.broadcast_object(np.ones(300_000) if r == 0 else None)
comm.allgather_object(np.ones(300_000))
comm.scatter_object([np.ones(300_000)] * p if r == 0 else None)
comm.allreduce_many([np.ones(300_000), np.ones(2)])
comm.allreduce(np.ones(1000), compression="int8")
comm.sendrecv(x, (r + 1) % p, np.empty(3), (r - 1) % p)
comm.plan("allreduce", x)()
comm.split(0).barrier()
STARTS
if r == 0:
    print(told(lambda: comm.allreduce(x, algorithm="ring", timeout=0.5)))
time.sleep(2)
"""


@pytest.mark.parametrize("validate", ["0", "1"])
@pytest.mark.any_mpi
def test_blocking_calls_are_no_reason_for_advice(env, validate):
    env["COLLECTIVES_VALIDATE"] = validate
    result = program(BLOCKING.replace("STARTS", ""), env=env, head=HEAD)
    assert "StallError" in result.out, result
    assert "nonblocking" not in result.out, result


STARTED = """
import os
comm = cc.Communicator(timeout=20)
STARTS
if comm.rank == 1:
    q = comm.iallreduce(np.ones(1000), algorithm="ring")
    open(os.environ["STARTED"], "w").close()
    time.sleep(4)
else:
    while not os.path.exists(os.environ["STARTED"]):
        time.sleep(0.01)
    print(told(lambda: comm.allreduce(np.ones(1000), algorithm="ring", timeout=0.5)), flush=True)
os._exit(0)
"""


@pytest.mark.any_mpi
def test_started_calls_are_a_reason_for_advice(shm, env, tmp_path):
    # Without shared memory, a rank only knows its own calls.
    starts = "" if shm else "comm.ibarrier().wait()"
    env["STARTED"] = str(tmp_path / "started")  # else the operation may be complete at its start
    result = program(STARTED.replace("STARTS", starts), env=env, head=HEAD)
    told = r"StallError: .*\. If rank 1 started this with a nonblocking call, it moves on only ins"
    assert re.search(told, result.out), result


ALONE = {
    "comm.send(np.ones(3), 1)": "dest is 1",
    "comm.recv(np.ones(3), 3)": "source is 3",
    "comm.sendrecv(np.ones(3), np.int64(1), np.ones(3), 0)": "dest is ",
    "comm.broadcast(np.ones(3), root=1)": "root is 1",
    "comm.ireduce(np.ones(3), root=1)": "root is 1",
    "comm.gather_object(3, root=1)": "root is 1",
    "comm.scatter_object([1, 2])": "objs has 2 objects",
    "comm.alltoall_object([1, 2])": "objs has 2 objects",
    "comm.allgatherv(np.ones(3), counts=[1, 2])": "counts is ",
    "comm.graph([1], [1])": r"sources\[0\] is 1",
    "comm.cart([2, 1])": r"dims is \(2, 1\)",
    "hvd.init(process_sets=[hvd.ProcessSet([0, 1])])": "the ranks of ",
}
NO_ADVICE = [f"comm.broadcast(np.ones(3), root={root})" for root in (-1, 64, 2**70, "'1'", 1.0)]
ONE = """
import sys
import numpy as np, collectives as cc
import collectives.horovod as hvd
comm = cc.world()
for call in CALLS:
    try:
        eval(call)
    except ValueError as error:
        print(error)
"""


@pytest.mark.any_mpi
def test_one_rank_without_a_launcher(tmp_path):
    path = tmp_path / "ours.py"
    path.write_text(ONE.replace("CALLS", repr([*ALONE, *NO_ADVICE])))
    result = alone(f"import runpy, sys\nsys.argv = [{str(path)!r}]\nrunpy.run_path({str(path)!r})")
    lines = result.out.splitlines()
    assert len(lines) == len(ALONE) + len(NO_ADVICE), result
    for line, (call, text) in zip(lines, ALONE.items(), strict=False):
        ranks = 4 if "3" in text else 2
        advice = rf"\. This program runs as one rank; start it with: collectives run -n {ranks} "
        assert re.search(rf"{text}.*{advice}{path}$", line), (call, line)
    assert "start it with" not in "".join(lines[len(ALONE) :])


@pytest.mark.any_mpi
def test_one_rank_of_a_launcher_knows_it():
    result = program(ONE.replace("CALLS", repr(list(ALONE))), 1)
    assert len(result.out.splitlines()) == len(ALONE), result
    assert "start it with" not in result.out
