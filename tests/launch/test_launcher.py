"""The launcher of the MPI here, its options, and the errors with another one."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import command, environment
from jobs import line_of

import collectives
from collectives import errors
from collectives.launch import launcher


def fake(folder: Path, text: str) -> Path:
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("HYDRA build details:", "mpich"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.17", "intel"),
        ("mpiexec (Open MPI) 5.0.8", "openmpi"),
        ("mpirun (OpenRTE) 4.1.8", "openmpi"),
        ("something else", "other"),
    ],
)
def test_a_launcher_is_told_by_its_version(tmp_path: Path, text: str, family: str) -> None:
    assert launcher.family_of(str(fake(tmp_path, text))) == family


def test_a_foreign_launcher_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake(tmp_path, "mpirun (Open MPI) 5.0.8")
    monkeypatch.setattr(launcher, "candidates", lambda _: iter([str(path)]))
    lib = launcher.Library("MPICH 5.0.2", "mpich", "/x/lib/libmpi.so.12")
    with pytest.raises(errors.BindingError, match="is that of Open MPI") as caught:
        launcher.find(lib)
    assert "MPICH 5.0.2" in str(caught.value)
    assert "install" in str(caught.value)


def test_open_mpi_is_told_of_root_and_of_shared_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(launcher, "physical_cores", lambda: 1)
    for name in (*launcher.BATCH, launcher.HOSTFILE):
        monkeypatch.delenv(name, raising=False)
    starter = launcher.Launcher("mpiexec", launcher.Library("Open MPI 5.0.8", "openmpi", None))
    assert starter.command(1, ["a"]) == ["mpiexec", "--allow-run-as-root", "-n", "1", "a"]
    assert "--oversubscribe" in starter.command(2, ["a"])
    assert "mpi_yield_when_idle" not in starter.command(2, ["a"])
    assert "mpi_yield_when_idle" in starter.command(3, ["a"])
    assert "--oversubscribe" not in starter.command(3, ["a"], "--host a:2,b:2")


def test_open_mpi_is_told_of_the_hosts_of_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv(launcher.HOSTFILE, "/etc/mpi/hostfile")
    starter = launcher.Launcher("mpiexec", launcher.Library("Open MPI 5.0.8", "openmpi", None))
    given = ["--hostfile", "/etc/mpi/hostfile"]
    assert starter.command(99, ["a"])[-5:] == [*given, "-n", "99", "a"]
    assert starter.command(2, ["a"], "--host a")[-5:] == ["--host", "a", "-n", "2", "a"]
    mpich = launcher.Launcher("mpiexec", launcher.Library("MPICH 5.0.2", "mpich", None))
    assert "--hostfile" not in mpich.command(2, ["a"])


def test_open_mpi_looks_whether_other_hosts_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*launcher.BATCH, launcher.HOSTFILE):
        monkeypatch.delenv(name, raising=False)
    starter = launcher.Launcher("mpiexec", launcher.Library("Open MPI 5.0.8", "openmpi", None))
    asked = "--prtemca oob_tcp_keepalive_time 30 --prtemca oob_tcp_keepalive_intvl 10"
    assert asked in " ".join(starter.command(2, ["a"], "--host a,b"))
    assert "--prtemca" not in starter.command(2, ["a"])
    own = "--host a,b --prtemca oob_tcp_keepalive_time 60"
    assert starter.command(2, ["a"], own).count("--prtemca") == 1
    older = launcher.Launcher("mpiexec", launcher.Library("Open MPI 4.1.8", "openmpi", None))
    assert "--prtemca" not in older.command(2, ["a"], "--host a,b")
    monkeypatch.setenv("PRTE_MCA_oob_tcp_keepalive_time", "60")
    assert "--prtemca" not in starter.command(2, ["a"], "--host a,b")


@pytest.mark.each_mpi
@pytest.mark.usefixtures("mpi")
def test_run_refuses_the_launcher_of_another_mpi(tmp_path: Path) -> None:
    for text in ("HYDRA build details:", "mpiexec (Open MPI) 5.0.8"):
        path = fake(tmp_path, text)
        if launcher.family_of(str(path)) == launcher.library().family:
            continue
        done = command("run", "-n", "2", "--mpiexec", str(path), "-c", "pass")
        assert done.returncode == 2
        assert "cannot start its ranks" in done.stderr


@pytest.mark.each_mpi
@pytest.mark.usefixtures("mpi")
def test_a_foreign_launcher_first_on_path_is_passed_over_and_reported(tmp_path: Path) -> None:
    fake(tmp_path, "of some other MPI")
    path = os.pathsep.join([str(tmp_path), environment()["PATH"]])
    assert command("run", "-n", "1", "-c", "pass", PATH=path).returncode == 0
    done = command("doctor", PATH=path)
    assert done.returncode == 1
    assert "PROBLEM: mpiexec is" in done.stdout
    assert "remedy" in done.stdout


@pytest.mark.each_mpi
@pytest.mark.usefixtures("mpi")
@pytest.mark.parametrize("which", ["mpiexec", "parent"])
def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path, which: str) -> None:
    code = "import os, time, collectives as cc; cc.world(); os.write(1, b'%d\\n' % os.getpid())"
    words = "-n", "2", "-c", f"{code}; time.sleep(120)"
    with subprocess.Popen(
        [sys.executable, "-m", "collectives", "run", *words],
        env=environment() | {"TMPDIR": str(tmp_path)},  # Open MPI leaves its files behind
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        ranks = [int(line_of(job)) for _ in range(2)]
        _, _, told = Path(f"/proc/{ranks[0]}/stat").read_text().rpartition(")")
        os.kill(job.pid if which == "mpiexec" else int(told.split()[1]), signal.SIGKILL)
    limit = time.monotonic() + 100
    while any(Path(f"/proc/{rank}/exe").exists() for rank in ranks):
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.each_mpi
def test_ranks_import_the_package_that_started_them(tmp_path: Path) -> None:
    other = tmp_path / "collectives" / "__init__.py"
    other.parent.mkdir()
    other.write_text("raise ImportError('a source tree that is not built')\n")
    program = launcher.rank_program("import collectives; print(collectives.__file__)")
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == collectives.__file__
