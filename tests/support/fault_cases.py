"""Faults and their places: programs that `faults.py` starts. Standard library only."""

from __future__ import annotations

import signal
from typing import NamedTuple

RANKS = 3
FAULTY = 1  # the rank to which it happens
ON_HOSTS, FAULTY_ON_HOSTS = 4, 3
TIMEOUT = 5  # seconds, the library's deadline

MPIS = "MPICH", "Intel MPI", "Open MPI"
HOSTED = "no MPI"
ALL = *MPIS, HOSTED

# The beginning of each program. `ready` tells the script that the ranks have come so far, `now`
# that it happens.
BEGIN = """
import atexit, os, resource, signal, sys, threading, time
NOTES = os.environ["FAULTS_NOTES"]
def note(name):
    open(f"{NOTES}/{name}", "w").close()
import numpy as np, collectives as cc
from collectives import elastic
comm = cc.world()
rank, size, faulty = comm.rank, comm.size, int(os.environ["FAULTS_RANK"])
x = np.ones(1000)
comm.barrier()
note("ready")
"""

FAULTS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSTOP": "os.kill(os.getpid(), signal.SIGSTOP)",
    "an exception": "raise ValueError('no data on this rank')",
    "sys.exit()": "sys.exit()",
    "sys.exit(3)": "sys.exit(3)",
}

PLACES = {
    "in the call": """
if rank == faulty:
    threading.Timer(0.5, fault).start()
while True:
    comm.allreduce(x)
""",
    "in the call (the operation)": """
def add(a, b):
    if rank == faulty:
        fault()
    b += a
comm.allreduce(x, op=cc.reduction(add, name="add"), algorithm="ring")
""",
    "between calls": """
if rank == faulty:
    fault()
comm.allreduce(x)
""",
    "inside MPI": """
if rank == faulty:
    comm._meeting.split = lambda *words: fault()
comm.split(0)
""",
    "at exit": """
@atexit.register
def end():
    if rank == faulty:
        fault()
""",
}


class Case(NamedTuple):
    """A fault, and where it happens.

    Attributes
    ----------
    what, where : str
    text : str
        The program behind `BEGIN`; with `tune`, nothing.
    mpis : tuple of str
        With which it makes sense.
    target : str
        What the script sends a signal to: a ``"rank"``, the ``"launcher"``, or nothing, where the
        program does it itself.
    number : int
        That signal.
    options : tuple of str
        More options of ``collectives run``.
    env : dict
        Variables to add.
    tune : bool
        Whether ``collectives tune`` is run instead of a program.
    after : str
        The note of a rank that the script waits for before it does something.
    hosts : bool
        Whether it needs two hosts. `target` may then be ``"cut"``, ``"slow"``, or a ``"host"``, all
        processes of which get a signal.
    """

    what: str
    where: str
    text: str = ""
    mpis: tuple[str, ...] = ALL
    target: str = ""
    number: int = 0
    options: tuple[str, ...] = ()
    env: dict[str, str] = {}  # noqa: RUF012  a NamedTuple has no mutable attributes of a class
    tune: bool = False
    after: str = "ready"
    hosts: bool = False


def at(what: str, where: str) -> Case:
    """Return the case of a fault that the program itself makes."""
    lines = f"def fault():\n    note('now')\n    {FAULTS[what]}\n"
    return Case(what, where, lines + PLACES[where])


WAITS = "if rank == faulty:\n    time.sleep(60)\ncomm.allreduce(x, timeout=600)\n"
SLEEPS = "time.sleep(60)\n"
GOES_ON = """
def descriptors():
    return len(os.listdir("/proc/self/fd"))
def count(state):
    while state.step < 100:
        state.comm.allreduce(x)
        state.step += 1
        state.commit()
        if state.step == 50 and rank == faulty and state.comm.size == 3:
            note("now")
            os.kill(os.getpid(), signal.SIGKILL)
state = elastic.State(step=0)
before = descriptors()
elastic.run(state, count)
print(f"left: {max(0, descriptors() - before)} descriptors", flush=True)
if state.comm.rank == 0:
    print(f"{state.comm.size} ranks have come to step {state.step}", flush=True)
"""
FILLED = """
path = os.environ["FAULTS_FULL"] + "/file"
if rank == 0:
    note("now")
"""
LIMITED = """
if rank == faulty:
    note("now")
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + (16 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""
NO_FILES = """
if rank == faulty:
    note("now")
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))
"""
# A clock that is set, and one of another time namespace, as in a container that was moved.
LATE = """
import os, sys, time
NOTES = os.environ["FAULTS_NOTES"]
late = int(next((os.environ[n] for n in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "COLLECTIVES_RANK")
                 if n in os.environ), "0")) == 1
if late and {moved}:
    if "FAULTS_LATE" not in os.environ:
        os.environ["FAULTS_LATE"] = "1"
        os.execvp("unshare", ["unshare", "--time", "--fork", "--kill-child", "--monotonic", "3600",
                              "--boottime", "3600", sys.executable, __file__])
elif late:
    of_here = time.time
    time.time = lambda: of_here() + 3600
"""
WORKS = """
note("now")
with comm.timeline(NOTES + "/timeline.json"):
    for _ in range(1000):
        comm.allreduce(x)
comm.split(0).barrier()
"""

CASES = [
    at("SIGKILL", "in the call"),
    at("SIGKILL", "between calls"),
    at("SIGKILL", "inside MPI"),
    Case("SIGKILL", "in tune", tune=True, mpis=MPIS, target="rank", number=signal.SIGKILL),
    at("SIGKILL", "at exit"),
    Case(
        "SIGKILL",
        "in the call, --elastic",
        GOES_ON,
        mpis=("Open MPI", HOSTED),
        options=("--elastic",),
    ),
    at("SIGSTOP", "in the call"),
    at("SIGSTOP", "between calls"),
    at("SIGSTOP", "inside MPI"),
    Case("SIGSTOP", "in tune", tune=True, mpis=MPIS, target="rank", number=signal.SIGSTOP),
    at("SIGSTOP", "at exit"),
    at("an exception", "in the call (the operation)"),
    at("an exception", "between calls"),
    at("an exception", "inside MPI"),
    at("an exception", "at exit"),
    at("sys.exit()", "between calls"),
    at("sys.exit(3)", "between calls"),
    at("sys.exit()", "inside MPI"),
    Case(
        "a full disk", "in a timeline", FILLED + "with comm.timeline(path):\n    comm.barrier()\n"
    ),
    Case("a full disk", "in State.save", FILLED + "elastic.State(x=np.ones(99999)).save(path)\n"),
    Case("a full disk", "in tune", tune=True, mpis=MPIS, target="disk"),
    Case("no /dev/shm", "at the start", "note('now')\ncomm.allreduce(x)\n", target="shm"),
    Case("a memory limit", "in the call", LIMITED + "comm.allreduce(np.ones(8 << 20))\n"),
    Case("a memory limit", "inside MPI", LIMITED + "comm.split(0).allreduce(x)\n"),
    Case("no descriptors", "inside MPI", NO_FILES + "comm.split(0).allreduce(x)\n"),
    Case("a clock 1 h off", "all the time", LATE.format(moved=False) + BEGIN + WORKS),
    Case("another boot clock", "all the time", LATE.format(moved=True) + BEGIN + WORKS, MPIS),
    Case("launcher killed", "in the call", WAITS, target="launcher", number=signal.SIGKILL),
    Case("launcher killed", "between calls", SLEEPS, target="launcher", number=signal.SIGKILL),
    Case(
        "launcher killed", "in tune", tune=True, mpis=MPIS, target="launcher", number=signal.SIGKILL
    ),
]

# Between hosts: ranks 0 and 1 are on one, 2 and 3 on another.
CALLS = "while True:\n    comm.allreduce(np.ones(1 << 20), algorithm='ring')\n"
MAKES = """
if rank == faulty:
    dup = comm._meeting.duplicate
    def late():
        note("come")
        time.sleep(1)
        return dup()
    comm._meeting.duplicate = late
comm.dup()
"""
GOES_ON_ON_HOSTS = """
def count(state):
    while state.step < 100 or state.comm.size == size:
        state.comm.allreduce(np.ones(1 << 16))
        state.step += 1
        state.commit()
state = elastic.State(step=0)
elastic.run(state, count)
if state.comm.rank == 0 and rank == 0:
    print(f"{state.comm.size} ranks have come to step 100", flush=True)
"""
CASES += [
    Case("link cut", "in the call", CALLS, target="cut", hosts=True),
    Case("link cut", "inside MPI", MAKES, target="cut", after="come", hosts=True),
    Case("link at 1 %", "in the call", CALLS, target="slow", hosts=True),
    Case("host dead", "in the call", CALLS, ALL, "host", signal.SIGKILL, hosts=True),
    *(
        at(what, where)._replace(hosts=True)
        for what, where in (
            ("SIGKILL", "in the call"),
            ("SIGSTOP", "in the call"),
            ("SIGSTOP", "between calls"),
            ("SIGSTOP", "inside MPI"),
            ("SIGSTOP", "at exit"),
            ("an exception", "between calls"),
            ("sys.exit()", "between calls"),
        )
    ),
    Case("launcher killed", "between calls", SLEEPS, ALL, "launcher", signal.SIGKILL, hosts=True),
    *(
        Case(
            what,
            "in the call, --elastic",
            GOES_ON_ON_HOSTS,
            (HOSTED,),
            target,
            number,
            options=("--elastic",),
            env={"COLLECTIVES_TIMEOUT": "20"},  # a cut link is noticed before
            hosts=True,
        )
        for what, target, number in (("host dead", "host", signal.SIGKILL), ("link cut", "cut", 0))
    ),
]
