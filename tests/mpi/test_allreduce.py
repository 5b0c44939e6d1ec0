"""allreduce: every algorithm, operation, dtype and length, against NumPy, MPI and itself."""

import numpy as np
import pytest
from cases import LARGE, contribution, digest, op_of, verify
from dtypes import DTYPES, SUPPORTED
from forms import Allreduce
from promises import Promises

import collectives as cc


class TestAllreduce(Promises):
    form = Allreduce
    whole = True


@pytest.mark.parametrize("op", SUPPORTED)
def test_supported_dtypes(op):
    assert tuple(op_of(op).dtypes()) == SUPPORTED[op]


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_of_every_dtype(world, dtype):
    comm = world.comm
    op = "LXOR" if dtype == "bool" else "SUM"
    y = comm.allreduce(contribution(op, dtype, LARGE, comm.rank), op=op_of(op))
    verify(y, op, dtype, LARGE, comm.size)
    world.agree(digest(y))


def test_module_function_and_counts(world):
    assert (cc.rank(), cc.size()) == (world.mpi.rank, world.mpi.size)
    assert 0 <= cc.local_rank() < cc.local_size() <= cc.size()
    out = np.empty(3)
    assert cc.allreduce(np.ones(3), out, op=cc.PROD, algorithm="ring") is out
    assert (out == 1).all()
    assert (cc.iallreduce(np.ones(3), postscale=2.0).wait() == 2 * cc.size()).all()


def test_many_sizes_share_a_choice(plain):
    """A choice is remembered for a class of sizes, and fits all of the class."""
    comm = plain.comm
    lengths = [*range(1, 70), *range(1000, 1030)]
    inputs = [np.arange(n) + comm.rank for n in lengths]
    requests = [comm.iallreduce(x, algorithm="ring") for x in inputs]
    for n, request in zip(lengths, requests, strict=True):
        want = comm.size * np.arange(n) + comm.size * (comm.size - 1) // 2
        np.testing.assert_array_equal(request.wait(), want)
