"""allreduce: every algorithm, operation, dtype and length, against NumPy, MPI and itself."""

import numpy as np
import pytest
from cases import LARGE, contribution, digest, op_of, verify
from dtypes import DTYPES, FLOATS, SUPPORTED, dtype_of
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


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["MIN", "MAX"])
@pytest.mark.parametrize("algorithm", Allreduce.runnable())
def test_nan_goes_on(world, algorithm, op, dtype):
    """Wherever one rank has NaN the result has it, as with numpy.minimum."""
    comm = world.comm
    x = contribution(op, dtype, 100, comm.rank).copy()
    x[comm.rank :: 16] = np.nan
    y = comm.allreduce(x, op=op_of(op), algorithm=algorithm)
    holes = np.arange(100) % 16 < comm.size
    np.testing.assert_array_equal(np.isnan(y.astype(np.float64)), holes)
    clean = np.stack([contribution(op, dtype, 100, r) for r in range(comm.size)])
    want = (clean.min if op == "MIN" else clean.max)(axis=0)
    np.testing.assert_array_equal(y[~holes], want[~holes])


def test_infinities(world):
    comm = world.comm
    x = np.array([np.inf, -np.inf, np.inf if comm.rank == 0 else -np.inf, 1e300])
    y = comm.allreduce(x)
    assert y[0] == np.inf
    assert y[1] == -np.inf
    assert np.isnan(y[2]) if comm.size > 1 else y[2] == np.inf
    assert comm.allreduce(x, op=cc.MAX)[2] == np.inf


def test_module_function_and_counts(world):
    assert (cc.rank(), cc.size()) == (world.mpi.rank, world.mpi.size)
    assert 0 <= cc.local_rank() < cc.local_size() <= cc.size()
    out = np.empty(3)
    assert cc.allreduce(np.ones(3), out, op=cc.PROD, algorithm="ring") is out
    assert (out == 1).all()
    assert (cc.iallreduce(np.ones(3), postscale=2.0).wait() == 2 * cc.size()).all()


def test_many_sizes_share_a_choice(plain):
    """A choice is remembered for a class of sizes; what is remembered fits all of the class."""
    comm = plain.comm
    lengths = [*range(1, 70), *range(1000, 1030)]
    inputs = [np.arange(n) + comm.rank for n in lengths]
    requests = [comm.iallreduce(x, algorithm="ring") for x in inputs]
    for n, request in zip(lengths, requests, strict=True):
        want = comm.size * np.arange(n) + comm.size * (comm.size - 1) // 2
        np.testing.assert_array_equal(request.wait(), want)


def test_dtype_of_output_is_new(world):
    y = world.comm.allreduce(np.zeros(4, dtype_of("bfloat16")))
    assert y.dtype.name == "bfloat16"
