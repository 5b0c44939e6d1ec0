"""``collectives run --accelerate``: programs for mpi4py run unchanged, with collectives of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import command, environment

pytestmark = pytest.mark.each_mpi("openmpi")

SHOW = """
x = np.ones(3)
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, x)
words = x.tolist(), MPI.COMM_WORLD.served()["Allreduce"].here, sys.argv[1:], __name__
sys.stdout.write(" ".join(map(str, words)) + "\\n")
"""
PROGRAMS = {
    "usual": "import sys\nimport numpy as np\nfrom mpi4py import MPI\n",
    "module": "import sys\nimport numpy as np\nimport mpi4py.MPI\nMPI = mpi4py.MPI\n",
    "initialises": (
        "import sys\nimport numpy as np\nimport mpi4py\nmpi4py.rc.initialize = False\n"
        "from mpi4py import MPI\nMPI.Init()\n"
    ),
    "ours first": (
        "import sys\nimport numpy as np\nfrom collectives.mpi4py import accelerate\n"
        "from mpi4py import MPI\nassert accelerate(MPI.COMM_WORLD) is MPI.COMM_WORLD\n"
    ),
    "both": "import sys\nimport numpy as np\nimport collectives as cc\nfrom mpi4py import MPI\n"
    "assert cc.allreduce_object(1) == cc.world().mpi.allreduce(1) == 2\n",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_for_mpi4py(tmp_path: Path, mpi: None, name: str) -> None:
    path = tmp_path / "program.py"
    end = "MPI.Finalize()\n" if name == "initialises" else ""
    path.write_text(PROGRAMS[name] + SHOW + end)
    done = command("run", "--accelerate", "-n", "2", str(path), "--lr", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[2.0, 2.0, 2.0] 1 ['--lr', '1'] __main__"] * 2


def test_an_error_ends_all_ranks(tmp_path: Path, mpi: None) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "from mpi4py import MPI\nif MPI.COMM_WORLD.rank:\n    raise KeyError('mine')\n"
        "MPI.COMM_WORLD.Barrier()\n"
    )
    done = command("run", "--accelerate", "-n", "2", str(path))
    assert done.returncode != 0
    assert "KeyError: 'mine'" in done.stderr


def test_it_needs_mpi() -> None:
    done = command("run", "--no-mpi", "--accelerate", "-n", "2", "-c", "pass")
    assert done.returncode == 2
    assert "--accelerate is for programs that use mpi4py: leave --no-mpi out" in done.stderr


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)"])
def test_a_program_without_mpi4py_has_no_use_for_it(mpi: None, end: str) -> None:
    done = command("run", "--accelerate", "-n", "2", "-c", f"import sys; print('mine'); {end}")
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["mine"] * 2
    text = "--accelerate had no effect, because the program has not imported mpi4py.MPI"
    assert done.stderr.count(text) == 1


WRONG_TIMES = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from collectives.errors import CommunicatorError
from collectives.mpi4py import accelerate

def refused():
    try:
        accelerate(MPI.COMM_WORLD)
    except CommunicatorError as error:
        print(str(error)[:22], flush=True)

refused()
MPI.Init_thread()
accelerate(MPI.COMM_WORLD).Barrier()
MPI.Finalize()
refused()
"""


def test_mpi_is_not_initialised_or_finalised(tmp_path: Path, mpi: None) -> None:
    path = tmp_path / "program.py"
    path.write_text(WRONG_TIMES)
    done = command("run", "-n", "2", str(path))
    assert done.returncode == 0, done.stderr
    wanted = ["MPI is finalised alrea"] * 2 + ["MPI is not initialised"] * 2
    assert sorted(done.stdout.splitlines()) == wanted


CONSTANTS = """
import pickle
from mpi4py import MPI

world = MPI.COMM_WORLD
world.Barrier()
world.free()
assert world.allreduce(1) == MPI.COMM_WORLD.allreduce(1) == 2
copies = MPI.Intracomm(world), MPI.Comm.fromhandle(world.handle)
for comm in (world, *copies, MPI.COMM_SELF, MPI.Intracomm(MPI.COMM_SELF)):
    again = pickle.loads(pickle.dumps(comm))
    assert again == comm
    assert type(again) is type(comm)
assert pickle.loads(pickle.dumps(world)) is world
"""


def test_constants_are_kept_and_can_be_pickled(tmp_path: Path, mpi: None) -> None:
    path = tmp_path / "program.py"
    path.write_text(CONSTANTS)
    done = command("run", "--accelerate", "-n", "2", str(path))
    assert done.returncode == 0, done.stderr


SUITE = Path(__file__).parents[1] / "conformance" / "mpi4py_suite.py"
SOURCES = "COLLECTIVES_TEST_MPI4PY"


@pytest.mark.skipif(SOURCES not in os.environ, reason=f"{SOURCES} names no sources of mpi4py")
def test_the_suite_of_mpi4py(mpi: None) -> None:
    done = subprocess.run(
        [sys.executable, str(SUITE), os.environ[SOURCES]],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=4 * 3600,
    )
    assert done.returncode == 0, done.stdout
