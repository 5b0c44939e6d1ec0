"""The findings of the ranks of a job about their hosts, and measurements that rank 0 requests.

Ranks may have different versions, or may not answer at all. So rank 0 sends each of them short
messages in JSON, without a collective, and each wait has a deadline. If all of them have answered,
they make a communicator and call it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import select
import shutil
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

import collectives
from collectives import Communicator, _core
from collectives.errors import BindingError
from collectives.launch import launcher
from collectives.measuring import network, pairs
from collectives.process import (
    abort,
    binding,
    control_groups,
    environment,
    host,
    hosted,
    ucx,
)
from collectives.text.words import error_text

START = 60.0  # seconds for the start of MPI
PATIENCE = 20.0  # seconds for the facts of a rank
RESULT = 10.0  # seconds for the result of a measurement, in addition to its duration
ORDERS = 120.0  # seconds for the next order of rank 0
CALLS = 20.0  # seconds for each wait of the library

MEASURED = 1.0  # seconds for all pairs
LEAST = 0.01  # seconds for a pair
ROUNDS = 63  # of pairs that measure at the same time; with more hosts, some pairs are left out
FAILURES = 5  # failed pairs after which no more are measured: each takes seconds

# Variables that must be the same on all ranks, or that select MPI's network.
COMMON = ("COLLECTIVES_", "HOROVOD_", "OMP_NUM_THREADS")
NETWORK = ("UCX_", "FI_", "MPIR_CVAR_CH4_NETMOD", "OMPI_MCA_pml", "OMPI_MCA_btl", "I_MPI_FABRICS")
# Variables that differ between ranks, belong to tests, or are secret.
OWN = ("COLLECTIVES_HOST", "COLLECTIVES_RANK", "COLLECTIVES_SECRET", "COLLECTIVES_TEST_")

_lost = False  # whether a message is missing, so that MPI may not end either


class Host(NamedTuple):
    """A host, and its ranks that have answered; the first one measures."""

    name: str
    ranks: list[int]


class Pair(NamedTuple):
    """The network between two hosts.

    Attributes
    ----------
    hosts : (int, int)
        Numbers in `Survey.hosts`.
    measured : dict
        The result of `pairs.measure`; empty if it failed.
    through : dict
        The result of `network.through` on the first.
    problem : str or None
    """

    hosts: tuple[int, int]
    measured: dict[str, float]
    through: dict[str, Any]
    problem: str | None = None


class Survey(NamedTuple):
    """The findings about a job.

    Attributes
    ----------
    facts : list of (dict or None)
        The answer of each rank: ``host``, ``name``, ``versions``, ``variables``, ``limits``,
        ``addresses``; None if it did not answer.
    hosts : list of Host
    pairs : list of Pair
    calls : list of (dict or None) or None
        Of each rank ``wrong``, the fault of a communicator of all ranks, or None, and
        ``memory``, the kind that its host shares, or None. None if no communicator was made.
    lost : set of int
        Ranks that have missed an answer.
    """

    facts: list[dict[str, Any] | None]
    hosts: list[Host]
    pairs: list[Pair]
    calls: list[dict[str, Any] | None] | None
    lost: set[int]


def job() -> Any:
    """Return MPI's communicator of all ranks if a launcher has started this process with others;
    otherwise None.
    Collective.

    Returns
    -------
    mpi4py.MPI.Intracomm or None
        Without MPI, an object with the methods that `survey` needs. If MPI does not start within
        60 s, the process prints that, and is killed.
    """
    if not environment.is_rank() and not environment.has_rendezvous():
        return None
    try:
        if not environment.has_rendezvous():
            launcher.library()
        with _started(START):
            MPI = binding.load()
    except collectives.CollectivesError:  # `doctor` reports the fault of the installation
        if environment.has_rendezvous():
            raise
        return None
    return None if MPI.COMM_WORLD.Get_size() == 1 else MPI.COMM_WORLD


def is_first() -> bool:
    """Return whether this is rank 0, by its launcher's variables, or without one. Local."""
    return all(os.environ.get(name, "0") == "0" for name, _ in environment.PLACES)


def survey(mpi: Any) -> Survey:
    """Question all other ranks about their hosts, and let pairs of hosts measure the network.
    Collective: rank 0 calls it, and all others call `answer`.

    Parameters
    ----------
    mpi : mpi4py.MPI.Intracomm
        All ranks of the job, as `job` returns them.

    Returns
    -------
    Survey
        A rank that does not answer within 20 s is in its field ``lost``.
    """
    global _lost
    asking = _Asking(pairs.Messages(mpi))
    hosts = asking.hosts()
    found = asking.pairs(hosts)
    told: list[dict[str, Any] | None] | None = None
    versions = [each["versions"]["collectives"] for each in asking.facts if each]
    whole = not asking.lost and not any(pair.problem for pair in found)
    if whole and len(set(versions)) == 1:
        told = asking.calls(mpi)
    failed = any(each is None or each["wrong"] is not None for each in told or [])
    _lost = bool(asking.lost) or failed or any(pair.problem for pair in found)
    asking.end(_lost)
    return Survey(asking.facts, hosts, found, told, asking.lost)


def answer(mpi: Any) -> None:
    """Answer the questions of `survey` until rank 0 has all facts.
    Collective: all ranks but rank 0 call it.

    Parameters
    ----------
    mpi : mpi4py.MPI.Intracomm
        As for `survey`. If rank 0 is silent for 120 s, the process prints that, and ends.
    """
    messages = pairs.Messages(mpi)
    try:
        messages.tell(facts(), 0, ORDERS)
        while True:
            _, order = messages.heard({0}, ORDERS)
            if order["do"] == "end":
                break
            told = _pair(messages, order) if order["do"] == "pair" else _call(mpi)
            messages.tell(told, 0, ORDERS)
    except TimeoutError:
        _give_up(f"rank {messages.rank} on {platform.node()} has received nothing from rank 0")
    if order["lost"]:  # rank 0 ends the job
        time.sleep(RESULT)
        os._exit(1)


def leave(status: int) -> int:
    """Return the exit status `status`; end the job if a rank is lost, as MPI cannot. Local."""
    if _lost:
        sys.stdout.flush()
        time.sleep(abort.FAREWELL)
        binding.load().COMM_WORLD.Abort(1)
    return status


def facts() -> dict[str, Any]:
    """Return the facts about this rank. Local."""
    MPI = binding.load()
    versions = {
        "collectives": f"{collectives.__version__}, sources {_sources():08x}",
        "Python": platform.python_version(),
        "NumPy": np.__version__,
    }
    device, found = None, {}
    if isinstance(MPI, hosted.HostedJob):
        version = MPI.ucx
    else:
        versions |= {"mpi4py": metadata.version("mpi4py"), "MPI": binding.library_name(MPI)}
        device = _device(MPI.Get_library_version())
        version = _ucx_beside_mpi()
    if version is not None:
        versions |= {"UCX": version}
        found = {"file": ucx.file(), "devices": ucx.devices()}
    return {
        "host": host.name(),
        "name": platform.node(),
        "versions": versions,
        "kernels": _core.kernels_isa(),
        "device": device,
        "ucx": found,
        "variables": _variables(COMMON, OWN),
        "network": _variables(NETWORK),
        "limits": _limits(),
        "addresses": network.addresses(),
        "rdma": network.rdma(),
    }


def _ucx_beside_mpi() -> str | None:
    """Return the version of UCX, if communicators of MPI may use its messages. Local."""
    if environment.text("COLLECTIVES_MESSAGES") == "ucx":
        with contextlib.suppress(BindingError):  # the communicator will say so
            return ucx.load()
    return None


class _Asking:
    """The part of rank 0, which questions the others."""

    def __init__(self, messages: pairs.Messages) -> None:
        self.messages = messages
        self.facts: list[dict[str, Any] | None] = [None] * messages.size
        self.facts[messages.rank] = facts()
        self.lost: set[int] = set()

    def hosts(self) -> list[Host]:
        """Return the hosts, by the facts of the ranks."""
        others = set(range(self.messages.size)) - {self.messages.rank}
        self.facts = [self.facts[0], *self._heard(others, PATIENCE)[1:]]
        found: dict[str, list[int]] = {}
        for rank, each in enumerate(self.facts):
            if each is not None:
                found.setdefault(each["host"], []).append(rank)
        names = [_of(self.facts, ranks)["name"] for ranks in found.values()]
        # Containers and simulated hosts may have the same name.
        if len(set(names)) < len(names):
            names = [f"{name} ({number})" for number, name in enumerate(names)]
        return [Host(name, ranks) for name, ranks in zip(names, found.values(), strict=True)]

    def pairs(self, hosts: list[Host]) -> list[Pair]:
        """Let all pairs of hosts measure; each host is in one pair at a time."""
        everybody = list(rounds(len(hosts)))[:ROUNDS]
        found: list[Pair] = []
        for number, round in enumerate(everybody, 1):
            if sum(pair.problem is not None for pair in found) >= FAILURES:
                break
            seconds = max(LEAST, MEASURED / len(everybody))
            asked: dict[tuple[int, int], dict[int, Any]] = {}
            for a, b in round:
                ranks = hosts[a].ranks[0], hosts[b].ranks[0]
                if self.lost.intersection(ranks):
                    continue
                for rank, peer in (ranks, ranks[::-1]):
                    order = {
                        "do": "pair",
                        "number": number,
                        "peer": peer,
                        "first": rank == ranks[0],
                        "seconds": seconds,
                        "addresses": _of(self.facts, [peer])["addresses"],
                    }
                    asked.setdefault((a, b), {})[rank] = order
            told = self._ordered({r: o for each in asked.values() for r, o in each.items()})
            for (a, b), orders in asked.items():
                first, second = (told[rank] for rank in orders)
                problem = "one of them does not answer"
                if first is not None and second is not None:
                    problem = first.get("problem") or second.get("problem")
                first = first or {}
                found.append(
                    Pair((a, b), first.get("measured", {}), first.get("through", {}), problem)
                )
        return sorted(found)

    def calls(self, mpi: Any) -> list[dict[str, Any] | None]:
        """Let all ranks make a communicator, and call it."""
        told = self._ordered({rank: {"do": "call"} for rank in range(self.messages.size)}, mpi)
        return [told[rank] for rank in range(self.messages.size)]

    def end(self, lost: bool) -> None:
        """End the others' part."""
        for rank in range(1, self.messages.size):
            if self.facts[rank] is not None and rank not in self.lost:
                self._give(rank, {"do": "end", "lost": lost})

    def _ordered(self, orders: dict[int, dict[str, Any]], mpi: Any = None) -> dict[int, Any]:
        """Send orders to ranks; return the answer of each, or None."""
        me = self.messages.rank
        for rank, order in orders.items():
            if rank != me:
                self._give(rank, order)
        mine = None
        if me in orders:
            mine = _call(mpi) if mpi is not None else _pair(self.messages, orders[me])
        seconds = RESULT + max((each.get("seconds", CALLS) for each in orders.values()), default=0)
        told = self._heard(set(orders) - {me} - self.lost, seconds)
        return {rank: mine if rank == me else told[rank] for rank in orders}

    def _give(self, rank: int, order: dict[str, Any]) -> None:
        try:
            self.messages.tell(order, rank)
        except TimeoutError:
            self.lost.add(rank)

    def _heard(self, ranks: set[int], seconds: float) -> list[Any]:
        """Return the messages of ranks; None for those without one, which are lost."""
        told: list[Any] = [None] * self.messages.size
        missing = set(ranks)
        limit = time.monotonic() + seconds
        while missing:
            try:
                rank, value = self.messages.heard(missing, max(0.0, limit - time.monotonic()))
            except TimeoutError:
                break
            told[rank] = value
            missing.discard(rank)
        self.lost |= missing
        return told


def rounds(number: int) -> Iterator[list[tuple[int, int]]]:
    """Yield rounds of pairs of so many hosts, in which each pair occurs once. Local."""
    places: list[int | None] = [*range(number), *([None] if number % 2 else [])]
    for _ in range(len(places) - 1):
        half = len(places) // 2
        met = zip(places[:half], reversed(places[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None]
        places[1:] = [places[-1], *places[1:-1]]  # all but the first rotate


def _pair(messages: pairs.Messages, order: dict[str, Any]) -> dict[str, Any]:
    """Measure, or answer the rank that measures; return the result."""
    apart = messages.apart(order["number"])
    try:
        if not order["first"]:
            pairs.serve(apart, order["peer"])
            return {}
        measured = pairs.measure(apart, order["peer"], order["seconds"])
        return {"measured": measured, "through": network.through(order["addresses"])}
    except TimeoutError:
        return {"problem": f"no message came within {pairs.PATIENCE:g} s"}
    except Exception as error:  # of MPI
        return {"problem": error_text(error)}


def _call(mpi: Any) -> dict[str, Any]:
    """Make a communicator of all ranks, and call it; return the fault."""
    try:
        comm = Communicator(mpi, timeout=CALLS / 2)
        right = True
        for count in (10, 100_000):
            total = comm.allreduce(np.full(count, comm.rank + 1.0))
            right &= bool((total == comm.size * (comm.size + 1) / 2).all())
        kind = None if comm._segment is None else comm._segment.kind
        comm.free()
    except Exception as error:
        return {"wrong": error_text(error), "memory": None}
    return {"wrong": None if right else "its sums are wrong", "memory": kind}


def _of(facts: list[dict[str, Any] | None], ranks: list[int]) -> dict[str, Any]:
    """Return the facts of the first of some ranks, which has answered."""
    told = facts[ranks[0]]
    assert told is not None
    return told


def _sources() -> int:
    """Return a checksum of the names and sizes of the library's files."""
    folder = Path(collectives.__file__).parent
    files = sorted(folder.rglob("*.py"))
    text = "".join(f"{each.relative_to(folder)} {each.stat().st_size}\n" for each in files)
    return zlib.crc32(text.encode())


def _device(version: str) -> str | None:
    """Return the network that MPICH was built for, such as ``ch4:ucx``."""
    for line in version.splitlines():
        if line.startswith("MPICH Device:"):
            return line.partition(":")[2].strip()
    return None


def _variables(prefixes: tuple[str, ...], without: tuple[str, ...] = ()) -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(prefixes) and not (without and name.startswith(without))
    }


def _limits() -> dict[str, Any]:
    """Return the limits of this process and its host."""
    shm: tuple[int, int] | None = None
    with contextlib.suppress(OSError):
        disk = shutil.disk_usage("/dev/shm")
        shm = disk.total, disk.free
    return {
        "memlock": _soft(resource.RLIMIT_MEMLOCK),
        "files": _soft(resource.RLIMIT_NOFILE),
        "shm": shm,
        "quota": quota(),
        "cores": sorted(os.sched_getaffinity(0)),
    }


def quota(
    groups: control_groups.File = control_groups.CGROUPS,
    membership: control_groups.File = control_groups.MEMBERSHIP,
) -> float | None:
    """Return the CPU quota of this process's control groups, in CPUs; None without one. Local."""
    granted = map(_granted, control_groups.folders("cpu", groups, membership))
    return min((each for each in granted if each is not None), default=None)


def _soft(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _granted(folder: str) -> float | None:
    """Return the quota of one group, in either version of control groups."""
    words = control_groups.words(folder, "cpu.max") or [
        *control_groups.words(folder, "cpu.cfs_quota_us"),
        *control_groups.words(folder, "cpu.cfs_period_us"),
    ]
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":
        return None  # "max", or -1
    return int(words[0]) / int(words[1])


@contextlib.contextmanager
def _started(seconds: float) -> Iterator[None]:
    """Let a child process kill this one, and print the reason, if the statement takes longer.

    A thread could not: mpi4py holds the GIL while MPI starts.
    """
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is not None and MPI.Is_initialized():
        yield
        return
    number = next((os.environ[name] for name, _ in environment.PLACES if name in os.environ), "")
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(writer)
        if not select.select([reader], [], [], seconds)[0]:
            what = "the others" if environment.has_rendezvous() else "MPI to start"
            _say(
                f"rank {number} on {platform.node()} has waited {seconds:g} s for {what}: a rank "
                f"has not started, or the hosts cannot reach each other"
            )
            os.kill(parent, signal.SIGKILL)
        os._exit(0)
    os.close(reader)
    try:
        yield
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def _give_up(text: str) -> NoReturn:
    _say(text)
    os._exit(1)


def _say(text: str) -> None:
    os.write(2, f"collectives doctor: {text}\n".encode())
