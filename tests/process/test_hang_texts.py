"""The texts of the course's chapters on hangs and on a server are those that the library prints."""

import re
import sys

import jobs
import pytest

from collectives.explorer import course

PROGRAM = """
import os, signal, sys, time
import numpy as np
import collectives as cc

case = sys.argv[1]
comm = cc.world()
x = np.arange(4.0)
comm.allreduce(x, algorithm="ring")
if case == "late" and comm.rank == 2:
    time.sleep(600)
if case == "stopped" and comm.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    if case == "other" and comm.rank == 3:
        comm.broadcast(x)
    comm.allreduce(x, algorithm="ring", timeout=2 if comm.rank == 0 else 600)
except cc.CollectivesError as error:
    if comm.rank == 0:
        print(f"{type(error).__name__}: {error}", flush=True)
    os._exit(comm.rank == 0)
"""


@pytest.mark.parametrize("case", list(course.PRINTED))
def test_the_course_has_what_rank_0_prints(tmp_path, case):
    (tmp_path / "hang.py").write_text(PROGRAM)
    words = ["-m", "collectives", "run", "--no-mpi", "-n", "4", "hang.py", case]
    result = jobs.run([sys.executable, *words], cwd=tmp_path)
    (line,) = (each for each in result.out.splitlines() if "Error: " in each)
    numbers = iter(range(4001, 4005))
    assert (
        re.sub(r"process \d+", lambda _: f"process {next(numbers)}", line) == course.PRINTED[case]
    )


SERVER = """
import numpy as np
import collectives as cc
from collectives import server

comm = cc.world()
w = np.zeros(4)
with server.ParameterServer(
    comm, [w], optimizer=server.SGD(0.1), policy=server.BackupWorkers(1)
) as ps:
    if ps.is_worker:
        ps.pull()
        if ps.worker:  # the gradients come one after the other
            comm.recv(np.empty(1), comm.rank - 1)
        ps.push([np.ones(4)])
        if ps.worker == 1:
            ps.pull()  # after the update
        if ps.worker < 2:
            comm.send(np.zeros(1), comm.rank + 1)
if ps.is_server:
    print(ps.statistics)
"""


def test_the_course_has_the_statistics_of_a_server(tmp_path):
    (tmp_path / "served.py").write_text(SERVER)
    words = ["-m", "collectives", "run", "--no-mpi", "-n", "4", "served.py"]
    result = jobs.run([sys.executable, *words], cwd=tmp_path)
    assert result.out == f"{course.SERVED}\n"
