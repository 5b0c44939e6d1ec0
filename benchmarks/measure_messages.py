"""Measure an allreduce between hosts with the messages of MPI and of UCX, beside MPI's own.

Run it on several hosts, one rank on each or more, on a quiet network::

    mpiexec -hosts node1:2,node2:2 -n 4 python benchmarks/measure_messages.py

It prints medians of MPI's allreduce of float32, of the library's with MPI's messages, and of the
library's with messages of UCX, all in one program and in turns.
"""

from __future__ import annotations

import os
from functools import partial

import numpy as np
from mpi4py import MPI
from turns import in_turns, medians, options, row, say, sizes, slowest

import collectives as cc
from collectives.text.words import size_text

WIDTH = 12


def communicator(messages: str) -> cc.Communicator:
    """Return a communicator of all ranks with such messages between hosts."""
    os.environ["COLLECTIVES_MESSAGES"] = messages
    return cc.Communicator()


def main() -> None:
    """Time all three in turns, for one size after the other."""
    given = options(__doc__, begin=8, end=16 << 20, factor=128, turns=15, fill=0.05)
    comms = {name: communicator(name) for name in ("mpi", "ucx")}
    libraries = [comms["mpi"]._library, *(f"by {comm._library}" for comm in comms.values())]
    comm = comms["ucx"]
    say(row(f"{comm.size} ranks, {comm.nodes} hosts, us", libraries, width=WIDTH + 6))
    for nbytes in sizes(given.begin, given.end, given.factor):
        x = np.ones(nbytes // 4, np.float32)
        out = np.empty_like(x)
        ways = {"own": partial(MPI.COMM_WORLD.Allreduce, x, out)}
        ways |= {name: partial(each.allreduce, x, out) for name, each in comms.items()}
        found = medians(in_turns(ways, given.turns, slowest, warm=2, fill=given.fill), 1e-6)
        say(row(size_text(nbytes), list(found.values()), width=WIDTH + 6))


if __name__ == "__main__":
    main()
