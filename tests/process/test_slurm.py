"""Tasks of Slurm's srun that no PMI tells of each other. Slurm's variables are set by hand here."""

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
import textwrap
import types
from itertools import count

import pytest
from namespaces import Unavailable, two_hosts
from test_rendezvous import DEADLINE, alike, ranks

from collectives.errors import ArgumentError, CommunicatorError
from collectives.process import environment, rendezvous, slurm


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n7", ["n7"]),
        ("n[01-03,7]", ["n01", "n02", "n03", "n7"]),
        ("a,b[1-2],c", ["a", "b1", "b2", "c"]),
        ("r[1-2]n[09-10]-ib", ["r1n09-ib", "r1n10-ib", "r2n09-ib", "r2n10-ib"]),
    ],
)
def test_lists_of_nodes(text, names):
    assert slurm.hosts(text) == names


@pytest.mark.parametrize("text", ["", ",", "n[1-x]", "n[]"])
def test_no_list_of_nodes(text):
    with pytest.raises(ArgumentError, match="is no list of nodes"):
        slurm.hosts(text)


def variables(rank=0, size=2, job="17", nodes="localhost"):
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": "0",
    }


@pytest.fixture
def step(monkeypatch, tmp_path):
    """The variables of a task, and a home folder."""
    for pair in environment.PLACES:
        for name in pair:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("PMIX_RANK", raising=False)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("COLLECTIVES_SECRET", raising=False)
    for name, value in variables().items():
        monkeypatch.setenv(name, value)
    return tmp_path / ".config" / "collectives" / "secret"


def test_a_step_is_known(step):
    assert environment.is_of_srun()


@pytest.mark.parametrize("name", ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"])
def test_a_step_with_pmi_is_one_of_mpi(step, monkeypatch, name):
    monkeypatch.setenv(name, "0")
    assert not environment.is_of_srun()
    assert not environment.has_rendezvous()


def test_a_program_that_has_loaded_mpi_is_one_of_mpi(step, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", types.ModuleType("mpi4py.MPI"))
    assert not environment.is_of_srun()


def test_one_task_is_alone(step, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert not environment.is_of_srun()


def test_jobs_have_secrets_of_their_own(step, monkeypatch):
    first = slurm.place(None)
    assert stat.S_IMODE(step.stat().st_mode) == 0o600
    assert (first, first.rank, first.size) == (slurm.place(None), 0, 2)
    assert len(step.read_bytes()) == 32
    assert step.read_bytes() != first.secret
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    other = slurm.place(None)
    assert other.secret != first.secret
    assert other.address != first.address
    assert slurm.place(b"set by the user").secret != other.secret
    assert os.listdir(step.parent) == ["secret"]


def test_a_home_folder_without_hard_links(step, monkeypatch):
    def link(*_, **__):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    first = slurm.place(None)
    assert first == slurm.place(None)
    assert len(step.read_bytes()) == 32


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda path: path.chmod(0o644), "secret must be a file that only you may read"),
        (lambda path: path.write_bytes(b"short"), "must have 32 bytes: remove it"),
        (lambda path: (path.rename(f"{path}2"), path.symlink_to(f"{path}2")), "is not in .*secret"),
    ],
    ids=["readable", "short", "link"],
)
def test_a_file_that_others_may_have_made_is_refused(step, change, text):
    slurm.place(None)
    change(step)
    with pytest.raises(CommunicatorError, match=text):
        slurm.place(None)


def test_missing_variables(step, monkeypatch):
    monkeypatch.delenv("SLURM_STEP_NODELIST")
    with pytest.raises(ArgumentError, match="but SLURM_STEP_NODELIST is missing or wrong"):
        slurm.place(None)


PROGRAM = """
    import os, sys
    os.environ["SLURM_PROCID"] = os.environ["RANK_HERE"]
    for name in [n for n in os.environ if n.startswith(("PMI", "OMPI_"))]:
        del os.environ[name]
    import numpy as np, collectives as cc
    print(cc.allreduce(np.ones(2)), cc.size(), "mpi4py.MPI" in sys.modules)
"""


def test_tasks_meet(tmp_path):
    env = {**variables(size=3, job=str(os.getpid())), "HOME": str(tmp_path), "XDG_CONFIG_HOME": ""}
    assert alike(ranks(PROGRAM, size=3, env=env)) == "[3. 3.] 3 False\n"


def on_nodes(folder, *numbers):
    """Run tasks of some numbers, of four on two nodes; return what they print, by number."""
    env = {**os.environ, **variables(size=4, nodes="host[1-2]"), "HOME": str(folder)}
    env |= {"XDG_CONFIG_HOME": "", "COLLECTIVES_PROFILE": "0", "COLLECTIVES_TIMEOUT": "5"}
    try:
        with two_hosts(folder) as hosts:
            tasks = [
                subprocess.Popen(
                    hosts.inside(number // 2, sys.executable, "-c", textwrap.dedent(PROGRAM)),
                    env={**env, "RANK_HERE": str(number)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                for number in numbers
            ]
            try:
                said = [each.communicate(timeout=DEADLINE)[0] for each in tasks]
            finally:
                for each in tasks:
                    each.kill()
    except Unavailable as reason:
        pytest.skip(str(reason))
    return list(zip(numbers, said, strict=True))


@pytest.mark.usefixtures("has_ucx")
def test_tasks_of_two_nodes_meet(tmp_path):
    for _, said in on_nodes(tmp_path, 0, 1, 2, 3):
        assert said == "[4. 4.] 4 False\n"


def test_a_task_that_comes_twice_or_never_is_told_on_both_nodes(tmp_path):
    said = on_nodes(tmp_path, 0, 1, 3, 3)
    twice = [text for _, text in said if "cannot be rank 3 of 4: it is there already" in text]
    assert len(twice) == 1, said
    for _, text in said:
        assert text in twice or (
            "rank 2 has not come; a process at 10.83.0.2 was refused as rank 3 of 4: it is there "
            "already" in text
        ), text


def free_place(monkeypatch):
    """Make this process a task of a step whose port nobody uses; return its place."""
    for job in count(17):
        monkeypatch.setenv("SLURM_JOB_ID", str(job))
        place = slurm.place(None)
        port = rendezvous.parse_address(place.address)[1]
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            break
    return place


def test_a_home_folder_for_each_host_is_told(step, monkeypatch):
    place = free_place(monkeypatch)
    monkeypatch.setenv("SLURM_PROCID", "1")
    port = rendezvous.parse_address(place.address)[1]
    server = rendezvous.Server(2, port, b"of another home folder")
    try:
        with pytest.raises(CommunicatorError, match=r"another secret.*must share the home folder"):
            rendezvous.from_environment(2)
    finally:
        server.close()


def test_a_port_in_use_has_nothing_to_do_with_the_home_folder(step, monkeypatch):
    place = free_place(monkeypatch)
    server = rendezvous.Server(2, rendezvous.parse_address(place.address)[1], b"of another step")
    try:
        with pytest.raises(CommunicatorError, match=r"cannot serve .* without PMI; for MPI, use"):
            rendezvous.from_environment(2)
    finally:
        server.close()
