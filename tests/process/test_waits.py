"""The reports of a long wait, and of one for a rank of the host that will not come."""

import re

import pytest
from programs import fails, passes, program

from collectives.process import waiting

pytestmark = pytest.mark.any_mpi

LATE = """
import time
import numpy as np, collectives as cc
comm = cc.world()
comm.barrier()
for turn in range(2):
    if comm.rank == 1:
        time.sleep(1.5)
    comm.allreduce(np.zeros(3), algorithm="ring")
"""


def waits(call):
    """Return the program in which rank 1 does something else, and rank 0 waits for it."""
    return f"""
import sys
import numpy as np, collectives as cc
comm = cc.world()
comm.barrier()
try:
    {call}
except cc.CollectivesError as error:
    print(f"rank {{comm.rank}}: {{type(error).__name__}}: {{error}}")
except ValueError:
    pass
"""


GIVES_UP = """
def add(a, b):
    if comm.rank == 1:
        raise ValueError("no good on this rank")
    b += a
"""


def test_a_long_wait_is_a_warning_once_for_each_call():
    result = passes(LATE, env={"COLLECTIVES_STALL_WARNING": "0.3"}, options=("-W", "always"))
    texts = re.findall(r":9: StallWarning: (.*)", result.err)
    assert len(texts) == 2, result.err
    for number, text in enumerate(texts, 2):
        assert re.fullmatch(
            r"allreduce 'ring' on 2 ranks: rank 0 has waited [\d.]+ s: round 1, segment 1 of 1 "
            rf"waits for rank 1 to send \(call {number}; rank 0 \(process \d+\) is in call "
            rf"{number}, allreduce\(count=3, dtype=float64, op=SUM, algorithm=ring\); rank 1 "
            rf"\(process \d+\) has left call {number - 1}, \w+\(.*\)\); rank 1 has not called this "
            r"allreduce yet: is the call under an if\?",
            text,
        ), text


def test_a_warning_that_is_an_error_ends_the_wait():
    loud = "import warnings; warnings.simplefilter('error')\n"
    result = fails(loud + LATE, env={"COLLECTIVES_STALL_WARNING": "0.3"})
    assert "StallWarning: allreduce 'ring' on 2 ranks: rank 0 has waited" in result.err


# Rank 1 comes a while after it was stopped, whatever it did when that happened.
STOPPED = """
import os, subprocess, time
import collectives as cc
from collectives import background
looked = time.monotonic()
comm = cc.world()
pids = " ".join(map(str, comm.allgather_object(os.getpid())))
if comm.rank == 0:
    with subprocess.Popen(f"kill -STOP {pids}; sleep 3; kill -CONT {pids}", shell=True):
        CALL
else:
    while time.monotonic() - looked < 2.5:
        looked = time.monotonic()
        time.sleep(0.05)
    time.sleep(0.5)
    CALL
print("all came")
"""


@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize(
    ("call", "validate"),
    [
        ("comm.barrier(timeout=2)", 0),
        ("comm.ibarrier().wait(timeout=2)", 0),
        ("comm.barrier(timeout=2)", 1),
        ("background.submit('barrier').wait(timeout=2)", 0),
    ],
    ids=["blocking", "request", "validated", "background"],
)
def test_a_job_that_is_stopped_has_not_waited(call, validate):
    """As from a shell by Ctrl-Z and `fg`, or by a scheduler that suspends jobs."""
    env = {"COLLECTIVES_VALIDATE": str(validate)}
    result = program(STOPPED.replace("CALL", call), env=env)
    assert (result.status, result.out.count("all came")) == (0, 2), result


@pytest.mark.parametrize(
    "call",
    [
        "sys.exit() if comm.rank else comm.allreduce(np.zeros(3), algorithm='ring')",
        "comm.free() if comm.rank else comm.allreduce(np.zeros(3), algorithm='ring')",
    ],
    ids=["exit", "free"],
)
def test_who_waits_for_a_rank_that_has_left_learns_it(call):
    result = program(waits(call))
    assert re.match(
        r"rank 0: PeerLostError: allreduce 'ring' on 2 ranks: rank 1 \(process \d+\) has left and "
        r"never called this allreduce: is the call under an if\? Rank 0 waits: round 1, segment 1 "
        r"of 1 waits for rank 1 to send\n",
        result.out,
    ), result


def test_the_words_of_a_rank_come_before_that_it_has_left():
    call = "comm.allreduce(np.ones(4), op=cc.reduction(add), algorithm='ring')"
    text = waits(call).replace("comm.barrier()\n", f"comm.barrier()\n{GIVES_UP}")
    for _ in range(3):  # who is faster is chance
        result = program(text)
        told = "rank 0: PeerAbortedError: rank 1 gave up: ValueError: no good on this rank\n"
        assert result.out == told, result


def test_a_wait_in_which_something_moves_after_a_stop_begins_anew():
    wait = waiting.Wait(timeout=2.0)
    wait._looked -= 3.0  # nobody has looked for so long: the process was stopped
    wait.turn(moved=True)
    assert 0 <= wait.passed() < 1


# Rank 1 has the data of its broadcast, and looks for trouble first when its handler is done.
GONE_ON = """
import os, signal, time
import numpy as np, collectives as cc
from collectives.errors import MismatchError
comm = cc.world()

def until(name):
    limit = time.monotonic() + 60
    while not os.path.exists(name):
        assert time.monotonic() < limit, name
        time.sleep(0.01)

def handle(*_):
    if "is in call" in comm._engine.segment.doing([1])[0]:
        open("handled", "w").close()
        until("given_up")

signal.signal(signal.SIGUSR1, handle)
x = np.full(4, 7.0 * (comm.rank == 0))
comm.barrier()
if comm.rank == 0:
    pid = comm.recv(np.empty(1, np.int64), 1)[0]
    while not os.path.exists("handled"):
        os.kill(pid, signal.SIGUSR1)
        time.sleep(0.05)
elif comm.rank == 1:
    comm.send(np.array([os.getpid()]), 0)
x = comm.broadcast(x, algorithm="flat")
try:
    if comm.rank == 2:
        comm.allgather(x)
    else:
        comm.allreduce(x)
except MismatchError as error:
    print(f"rank {comm.rank} has {x[0]:g}: {error}", flush=True)
    open("given_up", "w").close()
"""


def test_a_rank_ends_its_call_before_it_hears_that_others_differ_in_a_later_one(tmp_path):
    result = passes(GONE_ON, ranks=3, cwd=tmp_path)
    for rank in range(3):
        assert f"rank {rank} has 7: the ranks do not agree on call " in result.out, result
