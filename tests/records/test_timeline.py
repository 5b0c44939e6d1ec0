"""Timelines of whole programs: by the environment, of jobs that die, and the command's output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import OPEN_MPI, alone, program

from collectives.records import parts

pytestmark = pytest.mark.any_mpi

CALLS = """
import os, signal, sys, time
import numpy as np, collectives as cc
comm = cc.world()
x = np.ones(1000)
for _ in range(10):
    comm.allreduce(x, algorithm="ring")
"""

# Ranks of MPICH outlive each other in sessions of their own only.
APART = """
import os
if "ALONE" in os.environ:
    child = os.fork()
    if child:
        os._exit(os.waitpid(child, 0)[1] != 0)
    os.setsid()
"""


def events(path):
    return json.loads(Path(path).read_text())["traceEvents"]


def calls(path, name="allreduce"):
    """Return the calls of each rank."""
    found = {}
    for event in events(path):
        if "communicator" in event["args"] and event["name"] == name:
            found.setdefault(event["pid"], []).append(event)
    return found


def command(*words):
    return subprocess.run(
        [sys.executable, "-m", "collectives", "timeline", *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.json"


@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize("name", ["COLLECTIVES_TIMELINE", "HOROVOD_TIMELINE"])
@pytest.mark.parametrize("shm", ["auto", "0"])
def test_a_whole_program(path, name, shm):
    result = program(CALLS, 3, env={name: str(path), "COLLECTIVES_SHM": shm})
    assert (result.status, result.err) == (0, ""), result
    assert {rank: len(found) for rank, found in calls(path).items()} == {0: 10, 1: 10, 2: 10}
    assert os.listdir(path.parent) == ["out.json"]


def test_our_variable_counts(path):
    env = {"COLLECTIVES_TIMELINE": str(path), "HOROVOD_TIMELINE": f"{path}.other"}
    assert program(CALLS, 2, env=env).status == 0
    assert os.listdir(path.parent) == ["out.json"]


def test_our_variable_does_not_count_if_it_is_empty(path):
    env = {"COLLECTIVES_TIMELINE": "", "HOROVOD_TIMELINE": str(path)}
    assert program(CALLS, 2, env=env).status == 0
    assert os.listdir(path.parent) == ["out.json"]


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"COLLECTIVES_TIMELINE": ""},
        {"HOROVOD_TIMELINE": "DYNAMIC"},
    ],
)
def test_off(tmp_path, env):
    """There is no file, and the modules of timelines are not imported."""
    text = f"""
    import os
    os.chdir({str(tmp_path)!r})
    {CALLS.replace(chr(10), chr(10) + "    ")}
    assert "collectives.records.tape" not in sys.modules
    """
    result = program(text, 2, env=env)
    assert result.status == 0, result
    assert os.listdir(tmp_path) == []


def test_one_process_without_a_launcher(path):
    result = alone(CALLS, env={"COLLECTIVES_TIMELINE": str(path)})
    assert result.status == 0, result
    assert len(calls(path)[0]) == 10


def test_no_such_folder(tmp_path):
    path = tmp_path / "no" / "out.json"
    result = program(CALLS, 2, env={"COLLECTIVES_TIMELINE": str(path)})
    assert result.status != 0
    assert f"the timeline {path} cannot be written: No such file or directory" in result.err


def test_a_file_of_an_earlier_job_is_overwritten(path):
    env = {"COLLECTIVES_TIMELINE": str(path)}
    assert program(CALLS, 3, env=env).status == 0
    assert program(CALLS, 2, env=env).status == 0
    assert set(calls(path)) == {0, 1}


@pytest.mark.each_mpi("mpich")
def test_a_job_that_is_killed(path):
    """All at once: the file is valid, and the command adds the remaining records."""
    text = CALLS + "comm.barrier()\nos.kill(os.getpid(), signal.SIGKILL)\n"
    result = program(text, 3, env={"COLLECTIVES_TIMELINE": str(path)})
    assert result.status != 0
    assert {event["pid"] for event in events(path)} == {0, 1, 2}
    said = command(path)
    assert said.returncode == 0, said
    assert f"{path}: added what rank" in said.stdout
    assert {rank: len(found) for rank, found in calls(path).items()} == {0: 10, 1: 10, 2: 10}
    assert os.listdir(path.parent) == ["out.json"]
    again = command(path)
    assert "added" not in again.stdout
    assert again.stdout in said.stdout


@pytest.mark.each_mpi("mpich")
def test_a_rank_is_killed_and_others_go_on(path):
    """The rank that ends last has added the records of the dead one, or the command does."""
    text = (
        APART
        + CALLS
        + """
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        comm.allreduce(x, algorithm="ring")
except cc.CollectivesError as error:
    assert type(error).__name__ in ("PeerLostError", "PeerAbortedError"), error
comm._engine.timeout = 1
from collectives.process import abort
abort.run_before_end()  # as at the end of the program; without MPI's farewell, which waits
os._exit(0)
"""
    )
    env = {"COLLECTIVES_TIMELINE": str(path)}
    if not OPEN_MPI:
        env["ALONE"] = "1"
    result = program(text, 3, env=env, survive=True)
    events(path)
    said = command(path)
    assert said.returncode == 0, (said, result)
    assert set(calls(path)) == {0, 1, 2}, (said, result)
    found = calls(path)
    assert len(found[1]) == 10
    for rank in (0, 2):
        assert len(found[rank]) >= 11
        assert found[rank][-1]["args"].get("failed"), found[rank][-1]
        assert f"Rank {rank} failed in call 12 of communicator 0.0, allreduce 'ring'" in said.stdout


@pytest.mark.each_mpi("mpich")
def test_a_rank_that_hangs(path):
    """The wait that goes on is on record, and for whom, when the job is killed."""
    text = (
        CALLS
        + """
if comm.rank == 0:
    import threading
    threading.Thread(target=lambda: (time.sleep(1), os.kill(os.getpid(), signal.SIGKILL))).start()
    comm.allreduce(x, algorithm="ring")
time.sleep(600)
"""
    )
    program(text, 2, env={"COLLECTIVES_TIMELINE": str(path)})
    said = command(path).stdout
    assert "Rank 0 did not finish call 12 of communicator 0.0, allreduce 'ring': it waited" in said
    assert "for rank 1 in round 1." in said
    assert "The straggler is rank 1" in said


@pytest.mark.each_mpi("mpich")
def test_an_uncaught_exception(path):
    text = CALLS + "if comm.rank == 1: raise ValueError('no data')\ncomm.barrier()\n"
    result = program(text, 2, env={"COLLECTIVES_TIMELINE": str(path)})
    assert "ValueError: no data" in result.err
    assert len(calls(path)[1]) == 10  # which has added its own before the end
    assert command(path).returncode == 0
    assert len(calls(path)[0]) == 10


def test_an_error_inside_the_with_statement(path):
    text = f"""
    import numpy as np, collectives as cc
    comm = cc.world()
    try:
        with comm.timeline({str(path)!r}):
            comm.allreduce(np.ones(3))
            raise ValueError("nobody comes to the end")
    except ValueError:
        pass
    comm.barrier()
    """
    result = program(text, 2)
    assert (result.status, result.err) == (0, ""), result
    assert set(calls(path)) == {0, 1}


def test_a_forked_child_adds_nothing(path):
    text = (
        CALLS
        + """
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
comm.allreduce(x, algorithm="ring")
"""
    )
    result = program(text, 2, env={"COLLECTIVES_TIMELINE": str(path)})
    assert result.status == 0, result
    assert {rank: len(found) for rank, found in calls(path).items()} == {0: 11, 1: 11}


def test_a_forked_child_inside_the_with_statement(path):
    text = f"""
    import os, sys
    import numpy as np, collectives as cc
    comm = cc.world()
    with comm.timeline({str(path)!r}):
        comm.allreduce(np.ones(3))
        child = os.fork()
        if child == 0:
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        comm.allreduce(np.ones(3))
    """
    result = program(text, 2)
    assert result.status == 0, result
    assert {rank: len(found) for rank, found in calls(path).items()} == {0: 2, 1: 2}


def test_clocks_of_other_hosts(path):
    """A host whose clock is hours behind: its calls are where those of rank 0 are."""
    text = f"""
    import os, time
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.Get_rank()
    os.environ["COLLECTIVES_HOST"] = str(rank)
    truth = time.monotonic_ns
    time.monotonic_ns = lambda: truth() - rank * 3_600_000_000_000
    import numpy as np, collectives as cc
    comm = cc.world()
    assert comm.nodes == 3
    timeline = comm.timeline({str(path)!r})
    timeline.start()
    hours = timeline._facts["offset"] / 3.6e12
    assert abs(hours - rank) < 1e-3, hours
    timeline._facts["offset"] -= round(rank * 3.6e12)  # the core's clock tells the truth
    comm.barrier()
    timeline.stop()
    comm.barrier()
    """
    result = program(text, 3)
    assert (result.status, result.err) == (0, ""), result
    found = [each for some in calls(path, "barrier").values() for each in some]
    assert len(found) >= 3
    first = [some[-1] for some in calls(path, "barrier").values()]
    spread = max(call["ts"] for call in first) - min(call["ts"] + call["dur"] for call in first)
    assert spread < 1e5, first  # us


def test_hosts_that_do_not_see_the_file(path):
    """Each has a file of its own, and the command reads both."""
    text = f"""
    import os
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.Get_rank()
    os.environ["COLLECTIVES_HOST"] = str(rank % 2)
    import numpy as np, collectives as cc
    from collectives.records import timeline
    comm = cc.world()
    class Apart(timeline.Timeline):
        # What a path means on this host.
        def __setattr__(self, name, value):
            if name == "path" and comm.node and not value.endswith("-1"):
                value += "-1"
            super().__setattr__(name, value)
    with Apart(comm, {str(path)!r}):
        comm.allreduce(np.ones(3), algorithm="ring")
    """
    result = program(text, 3)
    assert (result.status, result.err) == (0, ""), result
    assert set(calls(path)) == {0, 2}
    assert set(calls(f"{path}-1")) == {1}
    said = command(path, f"{path}-1")
    assert said.stdout.startswith("3 ranks, "), said


# -- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        "comm.allreduce(np.ones(1000))",
        "request = comm.iallreduce(np.ones(1000)); time.sleep(0.001); request.wait()",
        "background.submit('allreduce', np.ones(1000), name='gradients').wait()",
    ],
    ids=["blocking", "nonblocking", "background"],
)
def test_the_straggler(path, call):
    text = f"""
    import time
    import numpy as np, collectives as cc
    from collectives import background
    comm = cc.world()
    for _ in range(10):
        if comm.rank == 2:
            time.sleep(0.2)  # much more than ranks lose to other jobs of a busy machine
        {call}
    """
    assert program(text, 4, env={"COLLECTIVES_TIMELINE": str(path)}).status == 0
    said = command(path, "--svg", path.with_suffix(".svg")).stdout
    assert said.startswith("4 ranks, "), said
    assert "\nThe straggler is rank 2: it waits " in said, said
    rows = [line.split() for line in said.splitlines() if line.startswith("allreduce ")]
    assert "10" in {row[2] for row in rows}
    drawn = path.with_suffix(".svg").read_text()
    assert "The straggler is rank 2" in drawn
    assert "allreduce" in drawn


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file"),
        ("nothing", "is not a timeline: it is not JSON"),
        ("[1, 2]", "is not a timeline that collectives has written"),
        ('{"traceEvents": []}', "is not a timeline that collectives has written"),
        ('{"otherData": 3, "traceEvents": []}', "is not a timeline that collectives has written"),
    ],
)
def test_what_is_no_timeline(path, content, why):
    if content is not None:
        path.write_text(content)
    said = command(path)
    assert said.returncode == 2
    assert said.stderr.startswith(f"collectives: {path} {why}"), said


def test_a_job_that_still_runs(path):
    """Its ranks are named; a second job does not get the file."""
    text = (
        CALLS
        + f"""
import subprocess
from collectives import errors
from collectives.records import tracefile
if comm.rank == 0:
    said = subprocess.run(
        [sys.executable, "-m", "collectives", "timeline", {str(path)!r}],
        capture_output=True, text=True)
    assert "ranks 0-1 still recording, with these calls so far" in said.stdout, said
    assert "allreduce " in said.stdout, said
    env = {{name: text for name, text in os.environ.items() if not name.startswith(
        ("PMI", "OMPI", "PMIX", "PRTE", "HYDRA", "HYDI", "MPI_"))}}
    said = subprocess.run(
        [sys.executable, "-c", "from collectives.records import tracefile\\n"
         "tracefile.create({str(path)!r}, '', [])"], env=env, capture_output=True, text=True)
    assert "is the timeline of a job that still runs" in said.stderr, said
comm.barrier()
"""
    )
    result = program(text, 2, env={"COLLECTIVES_TIMELINE": str(path)})
    assert (result.status, result.err) == (0, ""), result
    assert set(calls(path)) == {0, 1}
    assert not parts.folder(path).exists()
