"""Daemon threads that are in a call when their program ends."""

import re

import pytest
from programs import fails, program

pytestmark = pytest.mark.each_mpi("openmpi")

BEGIN = """
import atexit, os, threading, time
noted = threading.Event()
# Registered before the library's own function, it is called after it.
atexit.register(noted.wait, PATIENCE)
import numpy as np, collectives as cc
comm, other = cc.world(), cc.world().dup()
inside = threading.Event()
def note(text):
    # What a thread prints at the end of Python may be lost.
    os.write(1, f"rank {comm.rank}: {text}\\n".encode())
    noted.set()
def work():
    inside.set()
    try:
        while True:
            CALL
    except cc.CollectivesError as error:
        note(f"{type(error).__name__}: {error}")
        raise
threading.Thread(target=work, daemon=True).start()
inside.wait()
"""


def begin(call, patience=0):
    """Return the program's begin. At its end, Python waits so many seconds for the output of the
    thread.
    """
    return BEGIN.replace("CALL", call).replace("PATIENCE", str(patience))


ENDS = "CommunicatorError: the program ends, and only its main thread may still communicate"

CALLS = {
    "blocking": "comm.allreduce(np.ones(3))",
    "waiting": "comm.barrier() if comm.rank else (noted.set(), time.sleep(600))",
    "request": "comm.iallreduce(np.ones(3)).wait()",
    "message": "comm.recv(np.empty(3), 1 - comm.rank)",
    "large": "comm.allreduce(np.ones(500_000), algorithm='ring')",
}


@pytest.mark.parametrize("shm", ["auto", "0"])
@pytest.mark.parametrize("call", list(CALLS))
def test_the_program_ends_quietly(call, shm):
    waits = call in ("waiting", "message")  # others may be between two calls
    end = f"other.barrier()\ntime.sleep({1.0 if waits else 0.3})\nother.barrier()\n"
    text = begin(CALLS[call], patience=30 if waits else 0) + end
    result = program(text, env={"COLLECTIVES_SHM": shm, "COLLECTIVES_TIMEOUT": "600"})
    assert (result.status, result.err) == (0, ""), result
    if waits:
        # Of two ranks that end, one may hear of the other's end first.
        assert ENDS in result.out or re.search(r"PeerLostError: .* has left ", result.out)


@pytest.mark.parametrize("pause", [0.001, 30])
def test_who_asks_again_and_again(pause):
    """A thread that looks whether a request is complete, and is between two looks at the end."""
    text = f"""
    request = comm.irecv(np.empty(3), 1 - comm.rank)
            while not request.test():
                time.sleep({pause})
    """
    end = "other.barrier()\ntime.sleep(0.3 + comm.rank / 2)\n"
    result = program(begin(text.strip()) + end, env={"COLLECTIVES_TIMEOUT": "600"})
    assert (result.status, result.err) == (0, ""), result


def test_requests_of_threads_that_have_ended_end_the_job():
    text = (
        begin("time.sleep(600)")
        + """
def start():
    comm.irecv(np.empty(3), 1 - comm.rank)
thread = threading.Thread(target=start)
thread.start()
thread.join()
"""
    )
    result = fails(text, env={"COLLECTIVES_TIMEOUT": "600"})
    assert "exits with operations in flight: recv" in result.err, result


def test_who_waits_for_its_turn():
    """Threads that queue for a communicator."""
    text = (
        begin("comm.recv(np.empty(3), 1 - comm.rank)")
        + """
waiting = cc.world().dup()
for _ in range(3):
    threading.Thread(target=waiting.allreduce, args=(np.ones(3),), daemon=True).start() if (
        comm.rank == 0) else None
other.barrier()
time.sleep(0.3)
other.barrier()
"""
    )
    result = program(text, env={"COLLECTIVES_TIMEOUT": "600"})
    assert (result.status, result.err) == (0, ""), result


def test_other_errors_of_daemon_threads_end_the_job():
    text = begin("comm.barrier(); comm.allreduce(np.ones(3), algorithm='none')")
    result = fails(text + "time.sleep(600)\n", env={"COLLECTIVES_TIMEOUT": "600"})
    assert re.search("ends? the job because of an uncaught exception", result.err), result


def test_a_fold_that_failed_in_a_request_nobody_waits_for():
    """The job ends with its error."""
    result = fails(
        """
        import numpy as np, collectives as cc
        comm = cc.world()
        def fold(incoming, accumulator):
            raise ValueError("bad \\udc80 name")
        request = comm.iallreduce(np.ones(3), op=cc.reduction(fold), algorithm="all_to_all")
        """,
        env={"COLLECTIVES_TIMEOUT": "600"},
    )
    assert "exits with operations in flight: ValueError: bad" in result.err
