"""The hosts of the ranks: their ranks and cores, and the number of polls of a wait on them."""

from __future__ import annotations

import itertools
import os
from typing import NamedTuple, TypeVar

from collectives.process import binding, environment, host
from collectives.process.meeting import Meeting
from collectives.text import logs
from collectives.text.words import count

# Number of polls before a waiting rank yields the CPU to other processes. With fewer cores than
# ranks, a rank that polls for long costs the others a time slice. The number is also small where
# there seem to be enough cores, because the library cannot see other processes, and smallest on
# several hosts, which may be containers on one machine. With a core for each rank the number does
# not matter: an allreduce of 8 bytes on 2 ranks takes 1.9 to 2.0 us under MPICH and 1.6 to 1.7
# under Open MPI with any number. On 8 ranks and 2 cores: MPICH 48 us with 5 polls, 64 with 20, 389
# with 400; Open MPI 45, 35, 33 (COLLECTIVES_SHM=0; EPYC, 2026-11-22). On 4 network namespaces and
# 2 cores: MPICH 83 us with 5 polls, 89 with 20, 2206 with 4000, and with 2 ranks each 244, 284,
# 9400; Open MPI 86 to 94 with any number (EPYC, 2026-11-23).
POLLS = 20
POLLS_OVERSUBSCRIBED = 5

# Number of times that a waiting rank polls shared memory before it yields the CPU. It is small on
# several hosts, too: beside a message between hosts a yield takes no time. On 2 network namespaces
# of 2 ranks each and 2 cores, an allreduce of 8 bytes takes 41 us by hierarchical(flat,butterfly)
# with 2 polls, 58 with 50, 126 with 2000, and MPICH's own 60 (COLLECTIVES_SHM_SPINS=N collectives
# bench allreduce -b 8 -e 8 --repeat 2 --algorithm ..., other programs ran; EPYC, 2026-11-23).
SPINS = 2000
SPINS_OVERSUBSCRIBED = 2

T = TypeVar("T")

_numbers = itertools.count()  # numbers of the communicators of this process


class Hosts(NamedTuple):
    """The hosts of the ranks, and the place of this rank among them.

    Attributes
    ----------
    node, nodes : int
        The number of this host, and the number of hosts.
    local : list of int
        The ranks of this host, in rising order.
    cores : int
        Number of cores that they may use together.
    ranks : list of (int, int)
        For each rank, its number in ``COMM_WORLD``, and the number of this communicator among
        those of the rank.
    hosts : list of int
        For each rank, the number of its host.
    names : list of str
        For each rank, the name of its host in messages.
    processes : list of int
        For each rank, its process, as the rank itself numbers it.
    """

    node: int
    nodes: int
    local: list[int]
    cores: int
    ranks: list[tuple[int, int]]
    hosts: list[int]
    names: list[str]
    processes: list[int]

    @property
    def is_crowded(self) -> bool:
        """True if this host has fewer cores than ranks."""
        return len(self.local) > max(1, self.cores)

    @property
    def mpi_polls(self) -> int:
        """Number of polls of MPI before a waiting rank yields the CPU."""
        return POLLS_OVERSUBSCRIBED if self.is_crowded or self.nodes > 1 else POLLS

    @property
    def spins(self) -> int:
        """Number of polls of shared memory before a waiting rank yields the CPU."""
        return SPINS_OVERSUBSCRIBED if self.is_crowded or self.nodes > 1 else SPINS

    def log(self, call: str, rank: int, shares: bool, library: str) -> None:
        """Log the transports between the ranks of a new communicator, in which this is number
        `rank`: whether this host `shares` memory, and the `library` of messages. Local.
        """
        logs.locate(self.ranks[rank][0], self.names[rank])
        ways = ["shared memory inside of hosts" if self.nodes > 1 else "shared memory"] * shares
        if self.nodes > 1 or not (shares or len(self.ranks) == 1):
            ways.append(f"messages by {library}")
        if len(self.local) > 1 and not shares and environment.text("COLLECTIVES_SHM") == "0":
            ways[-1] += ", because COLLECTIVES_SHM is 0"
        ranks, hosts = count(len(self.ranks), "rank"), count(self.nodes, "host")
        level = "INFO" if self.ranks[rank][1] == 0 else "DEBUG"
        logs.note(level, f"{call}: {ranks} on {hosts}, {' and '.join(ways) or 'alone'}")


def locate(meeting: Meeting, offer: T) -> tuple[Hosts, list[T]]:
    """Return the hosts of all ranks, and the `offer` of each rank. Collective."""
    mask = sum(1 << core for core in os.sched_getaffinity(0))
    number = binding.load().COMM_WORLD.Get_rank(), next(_numbers)
    everybody = meeting.allgather((host.name(), mask, number, os.getpid(), offer))
    texts = list(dict.fromkeys(each for each, *_ in everybody))
    mine = everybody[meeting.rank][0]
    local = [r for r, (each, *_) in enumerate(everybody) if each == mine]
    shared = 0
    for r in local:
        shared |= everybody[r][1]
    ranks = [each for _, _, each, _, _ in everybody]
    numbers = {each: number for number, each in enumerate(texts)}
    of = [numbers[each] for each, *_ in everybody]
    names = host.shown([each for each, *_ in everybody])
    processes = [each for _, _, _, each, _ in everybody]
    cores = shared.bit_count()
    hosts = Hosts(numbers[mine], len(texts), local, cores, ranks, of, names, processes)
    return hosts, [each for *_, each in everybody]
