"""``collectives doctor`` as a job of several ranks: hosts, and ranks that do not answer."""

from __future__ import annotations

import re
import socket
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from commands import command
from programs import program

from collectives.measuring import doctor_hosts, network, survey
from collectives.measuring.doctor_hosts import Finding
from collectives.process import control_groups, ucx

# Runs doctor on ranks that believe to be on hosts of their own.
DOCTOR = """
import os, sys, time
names = "COLLECTIVES_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"
rank = int(next(os.environ[name] for name in names if name in os.environ))
os.environ["COLLECTIVES_HOST"] = f"host {rank}"
from collectives import cli
from collectives.measuring import survey
survey.MEASURED = 0.01
def sleep(*_):
    time.sleep(600)
%s
sys.exit(cli.main(["doctor"]))
"""


@pytest.mark.each_mpi("mpich")
def test_a_job_is_examined_by_rank_0() -> None:
    done = program(DOCTOR % "", ranks=3)
    assert done.status == 0, done
    assert done.out.count("No problem found.") == 1
    lines = [line.split(maxsplit=1) for line in done.out.splitlines() if " " in line]
    assert sum(name == "hosts" for name, _ in lines) == 4
    assert sum(name == "pairs" for name, _ in lines) == 4
    assert ["job", "3 ranks on 3 hosts"] in lines
    assert "allreduce     right on 3 ranks" in done.out


@pytest.mark.any_mpi
@pytest.mark.usefixtures("has_ucx")
def test_a_job_without_mpi_is_examined_by_rank_0() -> None:
    done = command("run", "--no-mpi", "-n", "3", "-c", DOCTOR % "")
    assert done.returncode == 0, done
    assert "job           3 ranks on 3 hosts\n" in done.stdout
    versions = next(line for line in done.stdout.splitlines() if line.startswith("versions"))
    assert f"UCX {ucx.load()} on all ranks" in versions
    assert "MPI" not in versions
    found = re.findall(r"^UCX +(.*): (/.*libucp.*), (.+)$", done.stdout, re.MULTILINE)
    assert len(found) == 3
    assert all(Path(file).exists() and "/" in devices for _, file, devices in found)
    assert "allreduce     right on 3 ranks" in done.stdout


@pytest.mark.any_mpi
def test_ranks_of_one_host_without_mpi_are_examined() -> None:
    done = command("run", "--no-mpi", "-n", "2", "-m", "collectives", "doctor")
    assert done.returncode == 0, done
    assert "job           2 ranks on 1 host\n" in done.stdout
    assert "\nUCX " not in done.stdout
    assert "allreduce     right on 2 ranks, shared memory: " in done.stdout


def test_a_ucx_without_devices_is_a_problem() -> None:
    facts = {**FACTS, "ucx": {"file": "/lib/libucp.so.0", "devices": []}}
    problem = next(each for each in told([facts], []) if each.name == "UCX")
    assert problem.text == "host0: /lib/libucp.so.0 has no device for other hosts"
    assert problem.remedy is not None


@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("facts", "ranks +PROBLEM: rank 1 did not answer"),
        ("_pair", "pairs +PROBLEM: .*: one of them does not answer"),
    ],
)
def test_a_rank_that_does_not_answer_is_named(function: str, told: str) -> None:
    text = f"""
survey.PATIENCE = survey.RESULT = 1.0
if rank == 1:
    survey.{function} = sleep
"""
    done = program(DOCTOR % text)
    assert done.status not in (0, 124), done
    assert re.search(told, done.out), done
    assert "allreduce     left out" in done.out


@pytest.mark.each_mpi("mpich")
def test_a_rank_that_never_comes_ends_the_job() -> None:
    text = """
survey.START = 2.0
if rank == 1:
    sleep()
"""
    done = program(DOCTOR % text)
    assert done.status not in (0, 124), done
    assert "has waited 2 s for MPI to start" in done.err, done


@pytest.mark.parametrize("number", range(10))
def test_each_host_meets_every_other_once(number: int) -> None:
    everybody = list(survey.rounds(number))
    for pairs in everybody:
        busy = [host for pair in pairs for host in pair]
        assert len(set(busy)) == len(busy)
    met = sorted(pair for pairs in everybody for pair in pairs)
    assert met == sorted(combinations(range(number), 2))


FACTS: dict[str, Any] = {
    "versions": {"collectives": "1, sources 0", "NumPy": "2.1.0", "MPI": "MPICH 5.0.2"},
    "variables": {},
    "network": {},
    "rdma": [],
    "limits": {
        "memlock": None,
        "files": 1024,
        "shm": [1 << 30, 1 << 30],
        "quota": None,
        "cores": [0, 1],
    },
}
THROUGH = {"here": False, "tcp": [["10.0.0.1", "eth0", "10.0.0.2", "eth1"]], "devices": []}
MEASURED = {"latency": 1e-5, "there": 1e9, "back": 1e9, "clock": 0.0, "clock_error": 1e-5}


def told(facts: list[Any], measured: list[dict[str, float]]) -> list[Finding]:
    """Return the findings about hosts of one rank each, of which host 0 has measured."""
    hosts = [survey.Host(f"host{rank}", [rank]) for rank in range(len(facts))]
    pairs = [
        survey.Pair((0, number), {**MEASURED, **each}, THROUGH)
        for number, each in enumerate(measured, 1)
    ]
    return list(doctor_hosts.findings(survey.Survey(facts, hosts, pairs, None, set())))


def test_tables_of_hosts_and_pairs() -> None:
    found = told([FACTS, FACTS], [{}])
    assert [each.text for each in found] == [
        "2 ranks on 2 hosts",
        "collectives 1, NumPy 2.1.0, MPICH 5.0.2 on all ranks",
        "host   ranks  cores  CPU limit    memlock  files        /dev/shm         clock",
        "host0  0          2       none  unlimited   1024  1 GiB of 1 GiB          here",
        "host1  1          2       none  unlimited   1024  1 GiB of 1 GiB  within 10 us",
        "hosts           through                              latency   there    back",
        "host0 to host1  TCP, eth0 10.0.0.1 to eth1 10.0.0.2    10 us  1 GB/s  1 GB/s",
        "left out because of the problems above",
    ]


def test_few_of_many_errors_are_told() -> None:
    number = doctor_hosts.ERRORS + 3
    hosts = [survey.Host("host0", list(range(number)))]
    calls: list[Any] = [{"wrong": f"rank {rank} waited", "memory": None} for rank in range(number)]
    found = doctor_hosts.findings(survey.Survey([FACTS] * number, hosts, [], calls, set()))
    told = [each.text for each in found if each.name == "allreduce"]
    assert told[0] == "rank 0: rank 0 waited"
    assert told[doctor_hosts.ERRORS :] == ["... and 3 other errors"]


def test_a_long_table_has_the_worst() -> None:
    number = doctor_hosts.SHOWN + 10
    found = told([FACTS] * number, [{}] * (number - 2) + [{"back": 0.1e9}])
    lines = [each.text for each in found if each.name == "pairs" and each.remedy is None]
    assert len(lines) == 2 + doctor_hosts.SHOWN
    assert sum(f"host0 to host{number - 1} " in line for line in lines) == 1
    assert lines[-1] == "... and 9 more, which are no worse"


@pytest.mark.parametrize(
    ("fact", "values", "text"),
    [
        ("versions", {"NumPy": "1.26"}, "NumPy is 2.1.0 on rank 0, 1.26 on rank 1"),
        (
            "variables",
            {"COLLECTIVES_SHM": "0"},
            "COLLECTIVES_SHM is not set on rank 0, 0 on rank 1",
        ),
        ("limits", {"files": 20}, "host1: 20 open files are few for connections to 2 ranks"),
        (
            "limits",
            {"shm": [1 << 26, 1 << 20]},
            "host1: MPI may die in a /dev/shm that is too small",
        ),
        (
            "limits",
            {"quota": 0.5},
            "host1: its control group grants the time of 0.5 CPUs to 1 rank",
        ),
    ],
)
def test_what_differs_or_is_too_little(fact: str, values: dict[str, Any], text: str) -> None:
    other = {**FACTS, fact: {**FACTS[fact], **values}}
    (problem,) = (each for each in told([FACTS, other], [{}]) if each.remedy)
    assert problem.text.startswith(text)


@pytest.mark.parametrize(
    ("measured", "text"),
    [
        ({"clock": 3600.0}, "host1: its clock is 3600 s ahead of that of rank 0"),
        ({"clock": -2.0}, "host1: its clock is 2 s behind that of rank 0"),
        (
            {"back": 0.4e9},
            "host0 and host1: 0.4 GB/s, and the highest bandwidth of all pairs is 1 GB/s",
        ),
    ],
)
def test_clocks_and_slow_pairs(measured: dict[str, float], text: str) -> None:
    (problem,) = (each for each in told([FACTS] * 4, [measured, {}, {}]) if each.remedy)
    assert problem.text == text


def test_locked_memory_matters_to_networks_that_need_it() -> None:
    few = {**FACTS, "limits": {**FACTS["limits"], "memlock": 65536}}
    assert not [each for each in told([few, few], [{}]) if each.remedy]
    problems = [each for each in told([few, {**few, "rdma": ["mlx5_0"]}], [{}]) if each.remedy]
    assert [each.text for each in problems] == [
        "host1: 64 KiB of memory may be locked, and mlx5_0 needs more"
    ]


@pytest.mark.parametrize(
    ("file", "text", "membership", "quota"),
    [
        ("cpu.max", "150000 100000", "0::/job/step", 1.5),
        ("job/cpu.max", "50000 100000", "0::/job/step", 0.5),
        ("job/step/cpu.max", "max 100000", "0::/job/step", None),
        ("elsewhere/cpu.max", "50000 100000", "0::/job/step", None),
        ("cpu,cpuacct/job/cpu.cfs_quota_us", "200000", "4:cpu,cpuacct:/job\n0::/", 2.0),
        ("cpu,cpuacct/job/cpu.cfs_quota_us", "-1", "4:cpu,cpuacct:/job", None),
        ("memory/job/cpu.max", "50000 100000", "4:memory:/job", None),
    ],
)
def test_what_control_groups_grant(
    tmp_path: Path, file: str, text: str, membership: str, quota: float | None
) -> None:
    groups = tmp_path / "groups"
    path = groups / file
    path.parent.mkdir(parents=True)
    path.write_text(f"{text}\n")
    if file.endswith("quota_us"):
        path.with_name("cpu.cfs_period_us").write_text("100000\n")
    mine = tmp_path / "mine"
    mine.write_text(f"{membership}\n")
    assert survey.quota(groups, mine) == quota
    assert survey.quota(groups, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("file", "text", "membership", "nbytes"),
    [
        ("job/memory.max", "1048576", "0::/job/step", 1 << 20),
        ("job/memory.max", "max", "0::/job/step", None),
        ("memory/job/memory.limit_in_bytes", "4096", "4:memory:/job", 4096),
        ("memory/job/memory.limit_in_bytes", "4096", "4:cpu:/job", None),
    ],
)
def test_what_memory_control_groups_grant(
    tmp_path: Path, file: str, text: str, membership: str, nbytes: int | None
) -> None:
    path = tmp_path / "groups" / file
    path.parent.mkdir(parents=True)
    path.write_text(f"{text}\n")
    mine = tmp_path / "mine"
    mine.write_text(f"{membership}\n")
    assert control_groups.memory(tmp_path / "groups", mine) == nbytes


def test_connections_of_this_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ends = {("127.0.0.1", "127.0.0.1")}
        with socket.create_connection(server.getsockname()):
            assert ends <= set(network.connections())
        assert not ends & set(network.connections())


def test_addresses_as_the_kernel_writes_them() -> None:
    assert network._address("0100007F:1F90") == "127.0.0.1"
    assert network._address("0000000000000000FFFF00000100007F:1F90") == "127.0.0.1"
    assert network._address("00000000000000000000000001000000:0016") == "::1"


def test_the_way_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {"10.0.0.1": "eth0", "192.168.7.1": "ib0", "172.17.0.1": "docker0"}
    monkeypatch.setattr(network, "addresses", lambda: mine)
    monkeypatch.setattr(network, "connections", list)
    monkeypatch.setattr(network, "route", lambda there: "10.0.0.1")
    peer = {"192.168.7.2": "ib0", "10.0.0.2": "eth0", "172.17.0.1": "docker0"}
    way = network.through(peer)
    assert way == {
        "here": False,
        "tcp": [],
        "devices": [],
        "route": ["10.0.0.1", "eth0", "10.0.0.2", "eth0"],
    }
    assert doctor_hosts._way(way) == "no TCP; the route is eth0 10.0.0.1 to eth0 10.0.0.2"
    monkeypatch.setattr(network, "connections", lambda: [("192.168.7.1", "192.168.7.2")])
    assert doctor_hosts._way(network.through(peer)) == "TCP, ib0 192.168.7.1 to ib0 192.168.7.2"
    assert doctor_hosts._way(network.through(mine)) == "this machine"
