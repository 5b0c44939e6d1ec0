"""Clients that are slow, stopped or dead, and a rank 0 that dies: processes without a launcher."""

import os
import subprocess
import sys

DEADLINE = 60  # seconds

# All but rank 0 have a client. Each client adds its own number to all parameters: which of them are
# in a mean is seen from it.
BEGIN = """
import os, signal, sys, threading, time
signal.alarm(50)
import numpy as np
from collectives import Communicator, federated
from collectives.errors import CollectivesError, PeerAbortedError, PeerLostError, StallError
rank = int(sys.argv[2])
comm = Communicator.from_rendezvous(sys.argv[1], rank, int(sys.argv[3]), timeout=20)
pids = comm.allgather_object(os.getpid())

def fit(parameters, task):
    if rank == 1:
        trouble(task)
    return [each + 10.0**rank for each in parameters], 1

def train(rounds, deadline, **more):
    x = np.zeros(100_000)  # of 800 kB
    result = federated.run(
        comm, [x], fit, rounds=rounds, deadline=deadline, clients=int(rank > 0), **more
    )
    assert (x == x[0]).all()
    assert (result.parameters[0] == x).all()
    return x[0], result.rounds, result.lost

def leave():
    # As a program whose launcher is gone would; the others may be stopped or dead.
    sys.stdout.flush()
    os._exit(0)
"""


def run(folder, text, size=3):
    """Run a program on some ranks; return the exit status and the output of each."""
    path = folder / "program.py"
    path.write_text(BEGIN + text)
    env = {**os.environ, "COLLECTIVES_ABORT": "0", "COLLECTIVES_VALIDATE": "0"}
    ranks = [
        subprocess.Popen(
            [sys.executable, path, str(folder / "meet"), str(rank), str(size)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [each.communicate(timeout=DEADLINE)[0] for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    return [(each.returncode, text) for each, text in zip(ranks, outputs, strict=True)]


SLOW_AND_STOPPED = """
flag, stalled, done = (sys.argv[1] + each for each in (".over", ".stalled", ".done"))
means = {(): 0.0, (0,): 10.0, (1,): 100.0, (0, 1): 55.0}

def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.001)

def note(parameters, round):
    open(flag, "w").close()

def trouble(task):
    if task.round == 1:
        wait_for(flag)  # until the round is closed

value, rounds, lost = train(3, 3.0, evaluate=note)
if rank == 0:
    assert 0 not in rounds[0].taken and 0 in rounds[0].missed, rounds
    assert 0 in rounds[1].taken and 0 in rounds[2].taken, rounds
    assert value == sum(means[tuple(each.taken)] for each in rounds)
    assert lost == {}
    print("slow", flush=True)
comm.barrier()

def trouble(task):
    wait_for(stalled)

comm.timeout = 2
try:
    train(1, None)
except StallError as error:
    assert rank == 0
    assert "round 1: rank 0 has waited 2 s for rank" in str(error), error
    open(stalled, "w").close()
except PeerAbortedError as error:
    assert rank > 0
    assert "rank 0, which coordinates, does not answer" in str(error), error
comm.timeout = 20
comm.barrier()

def trouble(task):
    if task.round == 2:
        os.kill(os.getpid(), signal.SIGSTOP)

text = "the training has ended, and rank 1 was not there"
if rank == 1:
    try:
        train(3, 1.5)
    except CollectivesError as error:
        assert type(error) is PeerAbortedError and text in str(error), error
    print("back", flush=True)
    open(done, "w").close()
    leave()
value, rounds, lost = train(3, 1.5)
if rank == 0:
    assert all(0 not in each.taken for each in rounds[1:]), rounds
    assert value == sum(means[tuple(each.taken)] for each in rounds)
    assert lost[1] == text, lost
    os.kill(pids[1], signal.SIGCONT)
    wait_for(done)
    print("stopped", flush=True)
leave()
"""


def test_slow_and_stopped_clients(tmp_path):
    """One after the other; a slow one takes part again, a stopped one is missing to the end."""
    ended = run(
        tmp_path,
        SLOW_AND_STOPPED,
    )
    assert [status for status, _ in ended] == [0, 0, 0], ended
    assert [text for _, text in ended] == ["slow\nstopped\n", "back\n", ""]


FAILING_AND_DEAD = """
whole, second = comm, comm.dup()
pair = comm.split(0 if rank < 2 else None)
other = comm.split(0 if rank in (0, 2) else None, -rank)

def trouble(task):
    if task.round == 2:
        raise KeyError("no such sample")

try:
    value, rounds, lost = train(3, None)
    assert rank != 1
except KeyError:
    assert rank == 1
if rank == 0:
    assert [each.taken for each in rounds] == [[0, 1, 2], [1, 2], [1, 2]], rounds
    assert value == 370.0 + 2 * 550.0, value
    assert lost == {1: "rank 1 gave up: KeyError: 'no such sample'"}, lost

def trouble(task):
    pass

def die():
    os.kill(os.getpid(), signal.SIGKILL)

comm, fit_before = second, fit
if rank == 3:
    def fit(parameters, task):
        return fit_before(parameters, task) if task.round == 1 else die()
value, rounds, lost = train(2, None)
if rank == 0:
    assert [each.taken for each in rounds] == [[0, 1, 2], [0, 1]], rounds
    assert value == 370.0 + 55.0, value
    assert lost == {3: f"rank 3 (process {pids[3]}) has died"}, lost

def trouble(task):
    die()

if rank < 2:
    comm = pair
    try:
        train(2, None)
    except PeerLostError as error:
        assert "no client is left; rank 1: " in str(error) and "has died" in str(error)
        print("alone", flush=True)
if rank == 2:
    federated.run(other, [np.zeros(3)], lambda parameters, task: die())
try:
    federated.run(other, [np.zeros(3)], lambda parameters, task: (parameters, 1))
except PeerLostError as error:
    assert "rank 0, which coordinates, does not answer" in str(error), error
    print("left", flush=True)
leave()
"""


def test_clients_that_fail_or_die_and_a_rank_0_that_dies(tmp_path):
    """The others go on, without waiting for a deadline; there is none."""
    ended = run(
        tmp_path,
        FAILING_AND_DEAD,
        size=4,
    )
    assert [status for status, _ in ended] == [0, -9, -9, -9], ended
    assert ended[0][1] == "alone\nleft\n", ended
