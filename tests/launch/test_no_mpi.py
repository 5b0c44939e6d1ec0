"""``collectives run --no-mpi``: what ranks see and print, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import command, environment
from jobs import PATIENCE

from collectives.cli import main
from collectives.launch import local

PLACE = "import os, sys, time; r = int(os.environ['COLLECTIVES_RANK'])\n"
SLEEP = f"time.sleep({PATIENCE})"


def test_a_script_is_the_main_program_of_each_rank(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import sys\n"
        "import collectives as cc\n"
        "total = cc.allreduce_object(cc.rank())\n"
        "lines = sys.stdin.read(), sys.argv[1:]\n"
        "sys.stdout.write(f'{cc.rank()} {cc.size()} {total} {lines} {__name__}\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "collectives", "run", "--no-mpi", "-n", "2", str(path), "-n", "x y"],
        env=environment(),
        input="line\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "0 2 1 ('line\\n', ['-n', 'x y']) __main__",
        "1 2 1 ('', ['-n', 'x y']) __main__",
    ]


@pytest.mark.parametrize("kind", ["script", "module", "code"])
def test_mpi4py_is_not_needed(kind: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['mpi4py'] = None\n")
    text = "import sys\nimport collectives as cc\ndef f(): return cc.allreduce_object(1)\n"
    text += "sys.stdout.write(f'{f()} {sys.argv[1:]} {sys.modules[\"__main__\"].f is f}\\n')\n"
    text += "if sys.argv[1:] == ['fail']: raise KeyError('mine')\n"
    (tmp_path / "some.py").write_text(text)
    words = {"script": [str(tmp_path / "some.py")], "module": ["-m", "some"], "code": ["-c", text]}
    path = os.pathsep.join([str(tmp_path), *sys.path[1:]])
    done = command("run", "--no-mpi", "-n", "2", *words[kind], "-n", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (0, "2 ['-n'] True\n" * 2), done
    done = command("run", "--no-mpi", "-n", "2", *words[kind], "fail", PYTHONPATH=path)
    assert done.returncode == 1, done
    assert done.stderr.count("KeyError: 'mine'") == 1, done


def test_a_module_and_the_number_of_the_rank_before_each_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some.py").write_text("import sys\nprint(sys.argv[1])\nprint(2, file=sys.stderr)\n")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--no-mpi", "--prefix", "-n", "2", "-m", "some", "-x"]) == 0
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["[0] -x", "[1] -x"], err
    assert sorted(err.splitlines()) == ["[0] 2", "[1] 2"]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("if r: sys.exit(7)", 7),
        ("if r: os._exit(7)", 7),
        ("if r: os.kill(os.getpid(), 9)", 137),
        ("if r: raise KeyError('bad')", 1),
    ],
)
def test_the_first_rank_that_fails_ends_the_others(
    code: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert local.call(2, ["-c", f"{PLACE}{code}\n{SLEEP}"]) == status
    how = {7: "ended with exit status 7", 137: "was ended by SIGKILL", 1: "ends because"}[status]
    assert f"collectives: rank 1 of 2 {how}" in capfd.readouterr().err


def test_lines_of_ranks_do_not_mix_without_a_buffer(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    code = "for i in range(100): print(r, 'a' * 10, i)"
    assert local.call(4, ["-c", f"{PLACE}\n{code}"]) == 0
    wanted = sorted(f"{rank} {'a' * 10} {i}" for rank in range(4) for i in range(100))
    assert sorted(capfd.readouterr().out.splitlines()) == wanted


def test_a_rank_that_ends_well_ends_no_other(capfd: pytest.CaptureFixture[str]) -> None:
    code = "if r: sys.exit()\ntime.sleep(0.3); print('late')"
    assert local.call(2, ["-c", PLACE + code]) == 0
    assert capfd.readouterr().out == "late\n"


def test_an_error_is_reported_and_ends_ranks_that_wait(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import collectives as cc\ncc.barrier()\nif r == 1: raise KeyError('bad')\ncc.barrier()"
    assert local.call(3, ["-c", PLACE + code]) == 1
    told = capfd.readouterr().err.splitlines()
    assert told[:4] == [
        "Traceback (most recent call last):",
        '  File "<string>", line 4, in <module>',
        "KeyError: 'bad'",
        "collectives: rank 1 of 3 ends the job because of an uncaught exception",
    ]
    # On a busy machine, others may notice its end before the launcher ends them.
    assert all("PeerLostError: barrier" in each for each in told[6::4])


def test_without_abort_the_others_go_on(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLECTIVES_ABORT", "0")
    code = "if r: raise KeyError('bad')\ntime.sleep(1.0); print('late')"
    assert local.call(2, ["-c", PLACE + code]) == 1
    out, err = capfd.readouterr()
    assert out == "late\n"
    assert "KeyError: 'bad'" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_ranks(tmp_path: Path, number: signal.Signals) -> None:
    code = f"open(r'{tmp_path}/' + str(os.getpid()), 'w').close();{SLEEP}"
    child = subprocess.Popen(
        [sys.executable, "-m", "collectives", "run", "--no-mpi", "-n", "2", "-c", PLACE + code],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + PATIENCE / 2
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < limit:
        time.sleep(0.02)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    child.send_signal(number)
    told = child.communicate(timeout=PATIENCE / 2)[1]
    assert child.returncode == 128 + number
    assert told.count("Traceback") <= 1, told
    assert "exit status" not in told, told
    assert not [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]


def test_a_dry_run_shows_each_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--no-mpi", "--dry-run", "-n", "2", "-m", "some", "a b"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"COLLECTIVES_RANK={rank} COLLECTIVES_SIZE=2 {sys.executable} -m some 'a b'"
        for rank in range(2)
    ]


def test_a_dry_run_shows_all_variables() -> None:
    done = command(
        "run", "--no-mpi", "--dry-run", "--shared-arrays", "--elastic", "-n", "1", "-c", "pass"
    )
    assert done.stdout == (
        "COLLECTIVES_ABORT=0 COLLECTIVES_SHARED_ARRAYS=1 COLLECTIVES_RANK=0 COLLECTIVES_SIZE=1 "
        f"{sys.executable} -c pass\n"
    )


def test_options_that_do_not_fit_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--no-mpi", "-n", "2", "--mpiexec-args", "-x", "-c", "pass"]) == 2
    assert "have no meaning with --no-mpi" in capsys.readouterr().err


def test_without_an_mpi_the_error_names_the_way_without() -> None:
    done = command("run", "-n", "2", "-c", "pass", MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert done.returncode == 2
    assert "install an MPI: " in done.stderr
    assert done.stderr.endswith("; or start the ranks without MPI: --no-mpi\n")


def test_a_rank_starts_no_ranks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLECTIVES_RANK", "0")
    assert main(["run", "--no-mpi", "-n", "2", "-c", "pass"]) == 2
    assert "this is already a rank of a parallel program" in capsys.readouterr().err


def test_the_path_of_modules_stays_whole(tmp_path: Path) -> None:
    """Also where Python does not put the folder of a script first."""
    code = "import sys; print(sys.path.count(sys.argv[1]))"
    more = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(tmp_path)}
    if "PYTHONPATH" in os.environ:
        more["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
    done = command("run", "--no-mpi", "-n", "1", "-c", code, str(tmp_path), **more)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr
