"""``collectives run``: the words it takes, and how the ranks end that it has started."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import command, environment
from jobs import PATIENCE

from collectives.cli import run


def test_run_leaves_the_program_its_words() -> None:
    words = ["run", "-n", "2", "--mpiexec-args", "-x A", "-m", "module", "-n", "9"]
    assert run.split(words) == (words[:5], words[5:])
    assert run.split(["run", "-n", "2", "--", "a.py", "--"]) == (["run", "-n", "2"], ["a.py", "--"])
    assert run.joined(words[:5])[-1] == "--mpiexec-args=-x A"
    assert run.split(["run", "-h"]) == (["run", "-h"], [])


@pytest.mark.each_mpi("mpich")
@pytest.mark.usefixtures("mpi")
def test_run_passes_words_and_exit_status(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import os, sys, collectives as cc\n"
        "cc.barrier()\n"
        "os.write(1, f'{cc.rank()} of {cc.size()} {sys.argv[1:]}\\n'.encode())\n"
        "cc.barrier()\n"
        "sys.exit(7)\n"
    )
    done = command("run", "-n", "2", str(path), "-m", "--flag", "x y")
    assert done.returncode == 7, done.stderr
    for rank in range(2):
        assert f"{rank} of 2 ['-m', '--flag', 'x y']" in done.stdout


@pytest.mark.each_mpi("mpich")
@pytest.mark.usefixtures("mpi")
@pytest.mark.parametrize("options", [(), ("--no-mpi",)])
@pytest.mark.parametrize("is_shared", [False, True])
def test_run_shares_the_arrays_of_a_program(options: tuple[str, ...], is_shared: bool) -> None:
    code = (
        "import numpy as np, collectives as cc\n"
        "comm = cc.world()\n"
        "for _ in range(3):\n"
        "    assert (comm.allreduce(np.ones(5000)) == 2).all()\n"
        "    comm.barrier()\n"
        "print(f'lends: {comm._segment.lends}', flush=True)\n"
    )
    wish = ("--shared-arrays",) if is_shared else ()
    done = command("run", "-n", "2", *options, *wish, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"lends: {is_shared}") == 2


@pytest.mark.each_mpi("mpich")
@pytest.mark.usefixtures("mpi")
def test_an_exception_on_one_rank_ends_all() -> None:
    code = "import collectives as cc\nassert cc.rank() == 0\ncc.barrier()"
    done = command("run", "-n", "2", "-c", code)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr


@pytest.mark.each_mpi("mpich")
@pytest.mark.usefixtures("mpi")
def test_an_exit_status_on_one_rank_ends_all() -> None:
    """The runner sees a failure that no hook of the program sees, unless it is told not to."""
    code = "import sys, collectives as cc\nif cc.rank(): sys.exit(3)\ncc.barrier()"
    done = command("run", "-n", "2", "-c", code, COLLECTIVES_TIMEOUT="600")
    assert done.returncode != 0
    for wish, runner in (("1", True), ("0", False)):
        line = command("run", "--dry-run", "-n", "2", "-c", "pass", COLLECTIVES_ABORT=wish).stdout
        assert ("/collectives/process/program.py -c pass" in line) == runner
    line = command("run", "--dry-run", "--shared-arrays", "-n", "2", "-c", "pass").stdout
    assert line.startswith("COLLECTIVES_SHARED_ARRAYS=1 /")
    lines = [
        command("run", "--dry-run", "-np", "2", *words, "-c", "pass").stdout
        for words in ([], ["python"], ["python3"])  # as horovodrun is told
    ]
    assert len(set(lines)) == 1, lines


@pytest.mark.each_mpi("mpich")
@pytest.mark.usefixtures("mpi")
def test_interrupt_ends_the_ranks(tmp_path: Path) -> None:
    code = (
        "import os, time, collectives as cc; cc.barrier();"
        f"open(r'{tmp_path}/' + str(os.getpid()), 'w').close(); time.sleep({PATIENCE})"
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "collectives", "run", "-n", "2", "-c", code],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    limit = time.monotonic() + PATIENCE / 2
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < limit:
        time.sleep(0.05)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    child.send_signal(signal.SIGINT)
    assert child.wait(PATIENCE / 2) != 0
    limit = time.monotonic() + PATIENCE / 4
    while any(Path(f"/proc/{pid}/exe").exists() for pid in pids) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]


@pytest.mark.each_mpi("mpich")
@pytest.mark.usefixtures("mpi")
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "import nonsense",
            [
                "Traceback (most recent call last):",
                '  File "PROGRAM", line 1, in <module>',
                "    import nonsense",
                "ModuleNotFoundError: No module named 'nonsense'",
            ],
        ),
        (
            "x = (1,",
            [
                '  File "PROGRAM", line 1',
                "    x = (1,",
                "        ^",
                "SyntaxError: '(' was never closed",
            ],
        ),
    ],
)
def test_an_error_before_the_library_is_imported(
    tmp_path: Path, text: str, lines: list[str]
) -> None:
    """It is printed as any other one: once if both ranks have it at about the same time."""
    path = tmp_path / "program.py"
    path.write_text(f"{text}\n")
    done = command("run", "-n", "2", str(path))
    assert done.returncode not in (0, 124)
    told = [line.replace(str(path), "PROGRAM") for line in done.stderr.splitlines()]
    at = told.index(lines[-1])
    assert [line for line in told[: at + 1] if line.strip("^ ~") or line == lines[-2]] == lines
    assert "because of an uncaught exception" in told[at + 1]


@pytest.mark.each_mpi("mpich")
@pytest.mark.usefixtures("mpi")
def test_a_program_that_does_not_use_the_library_does_not_load_it(tmp_path: Path) -> None:
    (tmp_path / "collectives").mkdir()
    (tmp_path / "collectives" / "__init__.py").write_text("raise RuntimeError('not this one')")
    path = tmp_path / "program.py"
    path.write_text(
        "import os, sys\n"
        "names = [name for name in sys.modules if name.startswith('collectives')]\n"
        "os.write(1, f'{names} {sys.path[0]} {sys.argv}\\n'.encode())\n"
    )
    done = command("run", "-n", "2", str(path), "x")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"[] {tmp_path} ['{path}', 'x']\n") == 2


def test_prefix_is_an_option_of_the_launcher(mpi: None) -> None:
    done = command("run", "-n", "2", "--prefix", "-c", "print('hello')")
    lines = sorted(done.stdout.splitlines())
    assert len(lines) == 2, done
    assert all(f"{rank}]" in lines[rank] and "hello" in lines[rank] for rank in range(2)), done
