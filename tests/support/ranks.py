"""Ranks that may die: each writes down its outcome, and nothing of them is left."""

import json
import os
import time
from textwrap import dedent

from programs import OPEN_MPI, program

BOUND = 10  # seconds in which all others know of a death; a quiet machine needs 0.1

# The beginning of each program. A rank notes its result in a file, as launchers lose the
# output of ranks that outlive others. MPICH's ends them, so there they have sessions of their own.
BEGIN = """
import json, os, signal, sys, threading, time
signal.alarm(300)
if "ALONE" in os.environ:
    child = os.fork()
    if child:
        os._exit(os.waitpid(child, 0)[1] != 0)
    os.setsid()
if "CORE" in os.environ:
    os.sched_setaffinity(0, {int(os.environ["CORE"])})
import numpy as np, collectives as cc
from mpi4py import MPI
comm = cc.world()
rank, size = comm.rank, comm.size

def note(**what):
    path = f"{os.environ['NOTES']}/{rank}"
    with open(path + ".new", "w") as file:
        json.dump({"pid": os.getpid(), "at": time.time(), **what}, file)
    os.rename(path + ".new", path)

def note_end(call):
    try:
        call()
        note(error=None)
    except Exception as error:
        note(error=type(error).__name__, text=str(error))

def leave():
    # When all others have noted their end; without MPI's farewell, which waits for the dead.
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        paths = [f"{os.environ['NOTES']}/{each}" for each in range(size)]
        if all("nothing yet" not in open(path).read() for path in paths):
            break
        time.sleep(0.02)
    os._exit(0)

def die():
    note(error="killed")
    os.kill(os.getpid(), signal.SIGKILL)

def work(seconds=60):
    limit = time.monotonic() + seconds
    x, long = np.full(1000, rank + 1.0), np.full(300000, rank + 1.0, np.float32)
    total = size * (size + 1) / 2
    while True:
        assert (comm.allreduce(x) == total).all()
        assert (comm.allreduce(long, algorithm="round_robin") == total).all()
        assert (comm.iallgather(x).wait()[:, 0] == np.arange(1, size + 1)).all()
        if comm.broadcast(np.array([time.monotonic() > limit]))[0]:
            return
note(error="nothing yet")
"""


class Ranks:
    """Start a program on some ranks; collect what they note, and see that nothing is left."""

    def __init__(self, folder):
        self.folder = folder
        self.result = None

    def __call__(self, text, ranks=3, *, env=None, survive=False, **launch):
        env = {"NOTES": str(self.folder), "COLLECTIVES_TIMEOUT": "30", **(env or {})}
        if survive and not OPEN_MPI:
            env["ALONE"] = "1"
        source = BEGIN + dedent(text)
        self.result = program(source, ranks, env=env, survive=survive, **launch)
        limit = time.monotonic() + BOUND
        while self.alive() and time.monotonic() < limit:
            time.sleep(0.05)
        notes = self.notes()
        assert len(notes) == ranks, (notes, self.result)
        assert not self.alive(), notes
        assert not self.left_behind(), self.left_behind()
        return notes

    def notes(self):
        files = [each for each in self.folder.iterdir() if each.name.isdigit()]
        return {int(each.name): json.loads(each.read_text()) for each in files}

    def alive(self):
        return [each["pid"] for each in self.notes().values() if is_alive(each["pid"])]

    def left_behind(self):
        pids = {str(each["pid"]) for each in self.notes().values()}
        return [
            name
            for name in os.listdir("/dev/shm")
            if name.startswith("collectives-") and name.split("-")[1] in pids
        ]


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while it is read
        return False
