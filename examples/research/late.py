"""Simulate an allreduce in which one rank is late, and print the time after this rank has begun.

    python examples/research/late.py 8 64 0

The arguments are the number of ranks, the MiB of the array, and the seconds that a fold takes for
each byte. A simulation has no late ranks. Here, rank 3 first waits for a message from one more
rank, which takes as long as the delay.
"""

import sys

import numpy as np

from collectives import algorithms
from collectives.algorithms import Exchange
from collectives.simulate import simulate
from collectives.topology import Flat

p, mebibytes, gamma = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
LATE = 3


class Alarm(Flat):
    """A network on which a message of the last rank takes so many seconds."""

    def __init__(self, seconds):
        super().__init__(p + 1, gamma=gamma)
        self.seconds = seconds

    def latency(self, source, target):
        return np.where(source == p, self.seconds, super().latency(source, target))

    def beta(self, source, target, nbytes):
        return np.where(source == p, 0.0, super().beta(source, target, nbytes))


def after(name, seconds):
    """Return the time that an allreduce takes after the late rank has begun."""
    row = algorithms.get("allreduce", name)

    def late(r, ranks):
        if r == p:
            yield Exchange(send=(LATE, 0))
        if r == LATE:
            yield Exchange(recv=(p, 0))
        if r < p:
            yield from row.run(r, p)

    algorithms.algorithm("allreduce", blocks=lambda ranks: row.blocks(p), replace=True)(late)
    return simulate("allreduce", "late", mebibytes << 20, Alarm(seconds)).time - seconds


names = "stragglar:3", "ring", "halving_doubling", "butterfly"
print("late by", *(f"{name:>16}" for name in names))
for ms in (0, 2, 4, 6, 8):
    times = [1e3 * after(name, ms / 1e3) for name in names]
    print(f"{ms:4} ms", *(f"{time:13.2f} ms" for time in times))
