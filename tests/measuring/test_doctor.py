"""``collectives doctor``: its findings here, and its lines on settings and the profile."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from commands import command

from collectives.choice import profile
from collectives.choice.sections import Section
from collectives.cli.doctor import DETAILS
from collectives.horovod import gpu_operations
from collectives.measuring import doctor
from collectives.process import environment


@pytest.mark.each_mpi("mpich")
@pytest.mark.usefixtures("mpi")
def test_doctor_finds_nothing() -> None:
    done = command("doctor", "--all", COLLECTIVES_SHM_SPINS="123")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("allreduce right") == 2
    assert "No problem found." in done.stdout
    facts = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if " " in line)
    assert "shared memory 2 ranks share " in done.stdout
    assert re.fullmatch(r"(near|far|busy); a flag .* takes \d+ ns", facts["flags"])
    assert re.search(r"[\d.]+ GB/s by one rank, [\d.]+ GB/s by each of two", facts["copies"])
    assert "for 2 ranks" in facts["affinity"]
    assert re.search(r"shared arrays at most .*; each reads those of the other in", done.stdout)
    assert re.match(r"none: CuPy |\d+ devices?, by CuPy|arrays on cuda|  staging", facts["GPU"])
    assert "yields after 123 polls         COLLECTIVES_SHM_SPINS" in done.stdout
    for name in ("", "_LANE", "_LIMIT", "_STORES", "_READS"):
        assert re.search(rf"setting .* COLLECTIVES_SHM{name}$", done.stdout, re.MULTILINE)


@pytest.mark.any_mpi
@pytest.mark.usefixtures("mpi")
def test_doctor_prints_details_only_if_asked() -> None:
    done = command("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    found, _, rest = done.stdout.partition("--all prints ")
    names = {line[:13].strip() for line in found.splitlines()}
    assert {"python", "MPI", "launcher", "probe", "shared memory", "flags"} <= names
    assert not DETAILS & names
    assert re.fullmatch(r"\d+ more lines\.\n\nNo problem found\.\n", rest)


@pytest.mark.any_mpi
@pytest.mark.usefixtures("mpi")
def test_doctor_prints_all_findings_as_json() -> None:
    done = command("doctor", "--json", COLLECTIVES_SHM_SPINS="-1")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert told["problems"] == sum(each["remedy"] is not None for each in told["findings"]) > 0
    names = {each["name"] for each in told["findings"]}
    assert {"python", "MPI", "probe", "mpi4py", "cores"} <= names


@pytest.mark.any_mpi
@pytest.mark.usefixtures("mpi")
@pytest.mark.parametrize(
    ("name", "value", "status", "text"),
    [
        ("COLLECTIVES_SHM", "0", 0, "shared memory none: COLLECTIVES_SHM is 0"),
        ("COLLECTIVES_SHM", "file", 0, "(file), "),
        ("COLLECTIVES_SHM_LIMIT", "1000", 1, "shared memory PROBLEM: the ranks of this host"),
        ("COLLECTIVES_SHM_SPINS", "-1", 1, "set it to a positive number of polls, or unset it"),
        ("COLLECTIVES_SHM_READS", "0", 0, "copied into shared memory: COLLECTIVES_SHM_READS is 0"),
        pytest.param(
            *("COLLECTIVES_SHM_READS", "2", 1, "set it to auto, 1 or 0, or unset it"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("COLLECTIVES_SHM_STORES", "no", 1, "set it to auto, cached or streamed, or unset it"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_doctor_knows_the_settings_of_memory(name: str, value: str, status: int, text: str) -> None:
    done = command("doctor", **{name: value})
    assert done.returncode == status, done.stdout + done.stderr
    assert text in done.stdout


def test_doctor_knows_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("COLLECTIVES_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLLECTIVES_ABORT", "2")
    monkeypatch.setenv("COLLECTIVES_TIMEOT", "5")
    monkeypatch.setenv("COLLECTIVES_COLOUR", "blue")
    monkeypatch.setenv("COLLECTIVES_TEST_FULL", "1")
    found = [(each.text, each.remedy) for each in doctor._variables() if each.remedy]
    nobody = "is set, and no variable has this name"
    assert found == [
        ("COLLECTIVES_ABORT is '2'", f"set it to {environment.FLAGS}, or unset it"),
        (f"COLLECTIVES_COLOUR {nobody}", "unset it"),
        (f"COLLECTIVES_TIMEOT {nobody}", "did you mean COLLECTIVES_TIMEOUT?"),
    ]


def test_doctor_says_how_tensors_on_gpus_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> list[str]:
        return [each.text for each in doctor._variables() if each.name == "horovod"]

    for name in gpu_operations.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert told() == []
    monkeypatch.setenv("HOROVOD_GPU_BROADCAST", "MPI")
    by_host = "tensors on devices travel through host memory"
    assert told() == [f"HOROVOD_GPU_BROADCAST=MPI: {by_host}"]
    monkeypatch.setenv("HOROVOD_GPU_BROADCAST", "NCCL")
    choice = pytest.importorskip("collectives.torch.distributed.nccl")
    monkeypatch.setattr(choice, "problem", lambda: "torch has no NCCL")
    assert told() == [f"HOROVOD_GPU_BROADCAST=NCCL: {by_host}, because torch has no NCCL"]
    monkeypatch.setattr(choice, "problem", lambda: None)
    monkeypatch.setattr(choice, "version", lambda: 22809)
    assert told() == [
        "HOROVOD_GPU_BROADCAST=NCCL: NCCL carries tensors of torch on CUDA, if each rank has a GPU "
        "of its own"
    ]


def test_doctor_knows_of_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> doctor.Finding:
        (finding,) = doctor._profile()
        return finding

    monkeypatch.setenv("COLLECTIVES_PROFILE", "0")
    assert told() == ("profile", "none: COLLECTIVES_PROFILE switches it off", None)
    monkeypatch.delenv("COLLECTIVES_PROFILE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = profile.path()
    assert file is not None
    assert told() == ("profile", f"none in {file}; `collectives tune` writes it", None)
    sections = (
        Section("shm", "MPICH 5"),
        Section("mpich", "MPICH 5", date="today"),
    )
    Path(file).parent.mkdir()
    Path(file).write_text(profile.Profile("a cpu", 2, "0", sections).text())
    assert [(finding.text, finding.remedy) for finding in doctor._profile()] == [
        (f"{file}, of a cpu, 2 cores", None),
        (
            "shared memory, no date: no collectives on no ranks; state of the machine not "
            "recorded; with MPICH 5",
            None,
        ),
        ("MPICH 5, today: no collectives on no ranks", None),
    ]
    Path(file).write_text("{}")
    _, text, remedy = told()
    assert text == f"the profile {file} is not used: it has no version"
    assert remedy is not None
    assert remedy.startswith("Delete it, or write it anew with `collectives tune`")
