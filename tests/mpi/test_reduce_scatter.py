"""reduce_scatter: each rank gets its part of the sum."""

import numpy as np
import pytest
from cases import names
from forms import ReduceScatter
from mpi4py import MPI
from promises import Promises

from collectives import errors

ALGORITHMS = names("reduce_scatter")


class TestReduceScatter(Promises):
    form = ReduceScatter


def test_flat_where_the_first_axis_cannot_be_cut(world):
    comm = world.comm
    p = comm.size
    x = np.arange(3 * p * (p + 1)).reshape(p + 1, 3 * p)
    y = comm.reduce_scatter(x)
    cuts = (p + 1) % p == 0
    assert y.shape == ((2, 3) if cuts and p > 1 else (2, 3 * p) if cuts else (3 * (p + 1),))
    np.testing.assert_array_equal(y.reshape(-1), p * x.reshape(p, -1)[comm.rank])


@pytest.mark.parametrize("nbytes", [0, 64])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_in_place_leaves_the_other_parts(world, segments, algorithm, nbytes):
    comm = world.comm
    p = comm.size
    x = np.arange(100.0 * p).reshape(p, 100) + comm.rank
    want = x.copy()
    want[comm.rank] = p * np.arange(100.0 * p).reshape(p, 100)[comm.rank] + p * (p - 1) / 2
    mine = x[comm.rank]
    with segments(comm, nbytes):
        assert comm.reduce_scatter(x, mine, algorithm=algorithm) is mine
    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("nbytes", [0, 64])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_in_place_at_the_start(world, segments, algorithm, nbytes):
    """MPI's place for it, which overwrites the part of another rank."""
    comm = world.comm
    p = comm.size
    x = np.arange(100.0 * p).reshape(p, 100) + comm.rank
    want = x.copy()
    want[0] = p * np.arange(100.0 * p).reshape(p, 100)[comm.rank] + p * (p - 1) / 2
    with segments(comm, nbytes):
        assert comm.reduce_scatter(x, x[0], algorithm=algorithm).base is x
    np.testing.assert_array_equal(x, want)


def test_in_place_at_the_start_as_mpi_does_it(world):
    comm = world.comm
    p = comm.size
    counts = [(3 * r + 2) % 5 for r in range(p)]
    ours = np.random.default_rng(comm.rank).integers(-99, 99, sum(counts))
    theirs, scaled = ours.copy(), ours.astype(np.float64)
    mine = counts[comm.rank]
    comm.ireduce_scatterv(ours, ours[:mine], counts=counts).wait()
    world.mpi.Reduce_scatter(MPI.IN_PLACE, theirs, counts)
    np.testing.assert_array_equal(ours[:mine], theirs[:mine])
    comm.reduce_scatterv(scaled, scaled[:mine], counts=counts, prescale=2.0, postscale=0.5)
    np.testing.assert_array_equal(scaled[:mine], theirs[:mine])


def test_a_plan_reads_where_the_array_lies(world):
    """A copy would have the values at the time when the plan was made."""
    comm = world.comm
    x = np.ones(2 * comm.size)
    if comm.rank == 0:
        comm.plan("reduce_scatter", x, x[:2])
    else:
        with pytest.raises(errors.BufferError, match="out overlaps x in part; pass out as this ra"):
            comm.plan("reduce_scatter", x, x[:2])
