"""``collectives run --report``: how often rank 0 made each call, and how long they took."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import command

from collectives.records.totals import HEADS, TITLE

pytestmark = pytest.mark.each_mpi

FOR_MPI = """
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
for nbytes in (8, 8000, 8192, 8193):
    comm.Allreduce(MPI.IN_PLACE, np.ones(nbytes, np.uint8))
comm.Bcast([np.ones(6), 3, MPI.DOUBLE])
column = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
blocks = ([1, 0], [0, 0]) if comm.rank == 0 else ([0, 0], [0, 0])
comm.Alltoallw([np.ones(6), blocks, [column] * 2], [np.ones(6), blocks, [column] * 2])
copy = comm.Dup()
copy.bcast("text")
copy.Free()
comm.Split(comm.rank).Barrier()
comm.Iallreduce(MPI.IN_PLACE, np.ones(1)).Wait()
MPI.Request.Waitall([comm.Ibarrier(), comm.Ibarrier()])
"""
SEVERAL = {  # the calls that have each name, size and place in a plain and an accelerated run
    ("Allreduce", "8 B"): 1,
    ("Allreduce", "8 KiB"): 2,
    ("Allreduce", "16 KiB"): 1,
    ("Bcast", "64 B"): 1,
    ("bcast", ""): 1,
    ("Iallreduce", "8 B"): 1,
    ("Ibarrier", ""): 2,
    ("Wait", ""): 1,
    ("Waitall", ""): 1,
}
BY_MPI = {("Alltoallw", "64 B"): 1, ("Barrier", ""): 1}  # the second on a part of the ranks


def table(text: str) -> dict[tuple[str, str, str], int]:
    """Return the calls of each name, size and place in a report."""
    title, heads, *lines = text.splitlines()
    assert (title, heads.split()) == (TITLE, " ".join(HEADS).split())
    found = {}
    for line in lines:
        name, *size, ran, calls, _, unit, _, unit_of_each = line.split()
        assert {unit, unit_of_each} <= {"us", "ms", "s"}
        found[name, " ".join(size), ran] = int(calls)
    return found


@pytest.mark.parametrize("end", ["", "MPI.Finalize()", "raise SystemExit(0)"])
def test_calls_of_mpi_with_and_without_acceleration(tmp_path: Path, mpi: None, end: str) -> None:
    """Also on communicators that are gone, and on parts of the ranks."""
    path = tmp_path / "program.py"
    path.write_text(FOR_MPI + end)
    for words, ran in ((), "MPI"), (("--accelerate",), "here"):
        done = command("run", "--report", *words, "-n", "2", str(path))
        assert done.returncode == 0, done.stderr
        wanted = {(*key, ran): calls for key, calls in SEVERAL.items()}
        wanted |= {(*key, "MPI"): calls for key, calls in BY_MPI.items()}
        assert table(done.stderr) == wanted


OWN = """
import numpy as np, collectives as cc
from collectives import background
for _ in range(3):
    cc.allreduce(np.ones(1000))
cc.iallreduce(np.ones(1000)).wait()
half = cc.world().split(cc.rank())
half.barrier()
cc.send(np.ones(2), 1) if cc.rank() == 0 else cc.recv(np.ones(2), 0)
background.submit("broadcast", np.ones(4)).wait()
cc.world().dup().free()
"""
OF_OWN = {
    ("allreduce", "8 KiB", "here"): 4,
    ("barrier", "here"): 1,
    ("broadcast", "32 B", "here"): 1,
    ("send", "16 B", "here"): 1,
}


@pytest.mark.parametrize("words", [(), ("--no-mpi",), ("--accelerate",)])
def test_calls_of_the_library(tmp_path: Path, mpi: None, words: tuple[str, ...]) -> None:
    """Calls that it makes itself, and those of the ranks' agreement in the background, are none."""
    path = tmp_path / "program.py"
    path.write_text(OWN)
    done = command("run", "--report", *words, "-n", "2", str(path))
    assert done.returncode == 0, done.stderr
    found = table(done.stderr)
    assert found == {
        (key[0], key[1] if len(key) > 2 else "", key[-1]): n for key, n in OF_OWN.items()
    }


def test_no_report_after_an_error(tmp_path: Path, mpi: None) -> None:
    path = tmp_path / "program.py"
    path.write_text(FOR_MPI + "if comm.rank:\n    raise KeyError('mine')\ncomm.Barrier()\n")
    for words in (), ("--accelerate",):
        done = command("run", *words, "--report", "-n", "2", str(path))
        assert done.returncode != 0
        assert "KeyError: 'mine'" in done.stderr
        assert TITLE not in done.stderr


def test_a_program_without_mpi4py_has_no_calls_of_mpi(mpi: None) -> None:
    done = command("run", "--report", "-n", "2", "-c", "pass")
    assert done.returncode == 0
    text = "--report had no effect, because the program has not imported mpi4py.MPI"
    assert done.stderr.count(text) == 1
