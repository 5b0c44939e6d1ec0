"""The cost of a call before anything is sent: on one rank, beside mpi4py on one rank.

Each round is many calls in a loop, so that the benchmark's own call does not count; the times are
those of one.
"""

import time
from functools import partial
from itertools import repeat

import numpy as np
import pytest

import collectives as cc

CALLS, ROUNDS = 1000, 200  # calls in a round


@pytest.fixture(scope="module")
def comm():
    from mpi4py import MPI

    with cc.Communicator(MPI.COMM_SELF) as alone:
        yield alone


def calls(comm, x, out):
    """Return the calls to time: (group, name) to a function."""
    MPI = pytest.importorskip("mpi4py.MPI")
    mpi, kind = MPI.COMM_SELF, MPI.FLOAT
    prepared = [x, kind], [out, kind], MPI.SUM
    return {
        ("allreduce of 8 bytes", "ours"): partial(comm.allreduce, x, out=out),
        ("allreduce of 8 bytes", "ours, new array"): partial(comm.allreduce, x),
        ("allreduce of 8 bytes", "ours, named"): partial(
            comm.allreduce, x, out=out, op=cc.MAX, algorithm="ring"
        ),
        ("allreduce of 8 bytes", "ours, planned"): comm.plan("allreduce", x, out=out),
        ("allreduce of 8 bytes", "ours, started"): lambda: comm.iallreduce(x, out=out).wait(),
        ("allreduce of 8 bytes", "mpi4py"): partial(mpi.Allreduce, *prepared),
        ("allgather of 8 bytes", "ours"): partial(comm.allgather, x, out=out),
        ("allgather of 8 bytes", "ours, counts"): partial(comm.allgatherv, x, out, counts=[2]),
        ("allgather of 8 bytes", "mpi4py"): partial(mpi.Allgather, *prepared[:2]),
        ("barrier", "ours"): comm.barrier,
        ("barrier", "mpi4py"): mpi.Barrier,
        ("sendrecv of 8 bytes", "ours"): partial(comm.sendrecv, x, 0, out, 0),
        ("sendrecv of 8 bytes", "mpi4py"): partial(
            mpi.Sendrecv, prepared[0], 0, 0, prepared[1], 0, 0
        ),
    }


NAMES = [
    ("allreduce of 8 bytes", "ours"),
    ("allreduce of 8 bytes", "ours, new array"),
    ("allreduce of 8 bytes", "ours, named"),
    ("allreduce of 8 bytes", "ours, planned"),
    ("allreduce of 8 bytes", "ours, started"),
    ("allreduce of 8 bytes", "mpi4py"),
    ("allgather of 8 bytes", "ours"),
    ("allgather of 8 bytes", "ours, counts"),
    ("allgather of 8 bytes", "mpi4py"),
    ("barrier", "ours"),
    ("barrier", "mpi4py"),
    ("sendrecv of 8 bytes", "ours"),
    ("sendrecv of 8 bytes", "mpi4py"),
]


def seconds_of_a_call():
    """A clock that shows a thousandth of the time: that of one of a round's calls."""
    return time.perf_counter() / CALLS


@pytest.mark.parametrize(("group", "who"), NAMES, ids=[f"{a}: {b}" for a, b in NAMES])
def bench_calls(benchmark_with, comm, group, who):
    benchmark = benchmark_with(seconds_of_a_call, f"{group} on one rank")
    x, out = np.ones(2, np.float32), np.empty(2, np.float32)
    call = calls(comm, x, out)[group, who]

    def round_of_calls():
        for _ in repeat(None, CALLS):
            call()

    benchmark.pedantic(round_of_calls, rounds=ROUNDS, iterations=1, warmup_rounds=5)
