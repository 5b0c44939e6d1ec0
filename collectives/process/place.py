"""The hosts of the ranks: which ranks share a host, and how many cores they have there."""

from __future__ import annotations

import os
import platform
from itertools import count
from typing import Any, NamedTuple

from collectives.process import binding

__all__ = ["Place", "locate"]

_numbers = count()  # numbers of the communicators of this process


class Place(NamedTuple):
    """The hosts of the ranks, and the place of this rank among them.

    Attributes
    ----------
    node, nodes : int
        The number of this host, and how many hosts there are.
    local : list of int
        The ranks of this host, in rising order.
    cores : int
        Number of cores that they may use together.
    ranks : list of (int, int)
        For each rank, its number in ``COMM_WORLD``, and the number of this communicator among
        those of the rank.
    """

    node: int
    nodes: int
    local: list[int]
    cores: int
    ranks: list[tuple[int, int]]

    @property
    def is_crowded(self) -> bool:
        """Whether this host has fewer cores than ranks."""
        return len(self.local) > max(1, self.cores)


def locate(mpi: Any, offer: Any) -> tuple[Place, list[Any]]:
    """Find out which ranks share this host, and on how many cores. Collective.

    Parameters
    ----------
    mpi : mpi4py.MPI.Intracomm
    offer : object
        An object that is sent to the other ranks in the same exchange.

    Returns
    -------
    place : Place
    offers : list
        The `offer` of each rank.
    """
    host = f"{platform.node()} {_boot_id()} {os.environ.get('COLLECTIVES_HOST', '')}"
    mask = sum(1 << core for core in os.sched_getaffinity(0))
    number = binding.load().COMM_WORLD.Get_rank(), next(_numbers)
    everybody = mpi.allgather((host, mask, number, offer))
    hosts = list(dict.fromkeys(each for each, *_ in everybody))
    local = [r for r, (each, *_) in enumerate(everybody) if each == host]
    shared = 0
    for r in local:
        shared |= everybody[r][1]
    ranks = [each for _, _, each, _ in everybody]
    place = Place(hosts.index(host), len(hosts), local, shared.bit_count(), ranks)
    return place, [each for *_, each in everybody]


def _boot_id() -> str:
    """Return a text that differs between hosts of the same name, such as containers."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
