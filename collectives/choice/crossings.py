"""Messages between hosts: how many of them wait for each other in each round of an algorithm."""

from __future__ import annotations

from functools import lru_cache

from collectives.algorithms.groups import Groups
from collectives.algorithms.registry import Algorithm
from collectives.plans.schedule import compile


@lru_cache(maxsize=4096)
def crossings(algorithm: Algorithm, groups: Groups) -> tuple[int, int]:
    """Return what rounds do not say of the messages of the host of rank 0. Local.

    The other hosts do alike in most algorithms, or wait for that one.
    """
    host = groups.members[0]
    rounds: list[list[int]] = []  # of each, the messages to the host, from it, and inside
    for rank in host:
        for number, each in enumerate(compile(algorithm, groups.p, rank, merged=False).rounds):
            if number == len(rounds):
                rounds.append([0, 0, 0])
            for message in each.messages:
                rounds[number][2 if message.peer in host else message.send] += 1
    most = [max(received, sent) for received, sent, _ in rounds]
    inner = sum(not n and inside > 0 for n, (_, _, inside) in zip(most, rounds, strict=True))
    return sum(max(0, n - 1) for n in most), inner
