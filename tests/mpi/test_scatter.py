"""scatter: each rank gets its part of the array of the root."""

import numpy as np
import pytest
from cases import names
from forms import Scatter
from promises import Promises

from collectives import errors

ALGORITHMS = names("scatter")


class TestScatter(Promises):
    form = Scatter


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_but_an_out_where_the_root_is_not(world, algorithm):
    comm = world.comm
    for root in range(comm.size):
        x = np.arange(3.0 * comm.size) if comm.rank == root else None
        out = np.zeros((3, 1))
        assert comm.scatter(x, out, root=root, algorithm=algorithm) is out
        np.testing.assert_array_equal(out.reshape(3), np.arange(3.0) + 3 * comm.rank)


def test_no_x(world):
    """Without an array, the length and the dtype of the result are unknown."""
    comm = world.comm
    if comm.size > 1:
        text = "x and out are None on rank 1, which has to know what rank 0, the root, sends"
        error = errors.BufferError if comm.rank == 1 else errors.MismatchError
        with pytest.raises(error, match=text) as caught:
            comm.scatter(None if comm.rank == 1 else np.zeros(comm.size))
        if comm.rank == 1:
            assert "; pass out, an array for this rank's part, or as x an" in str(caught.value)
            assert "scatter_object needs neither" in str(caught.value)
    text = "x is None on rank 0, which is the root, and must be the array to send"
    with pytest.raises(errors.BufferError if comm.rank == 0 else errors.MismatchError, match=text):
        comm.scatter(None, np.zeros(2))
    comm.barrier()


@pytest.mark.several
def test_flat_where_the_first_axis_cannot_be_cut(world):
    comm = world.comm
    p = comm.size
    x = np.arange(3 * p).reshape(3, p) if 3 % p else np.arange(2 * p).reshape(1, 2 * p)
    y = comm.scatter(x)
    assert y.shape == (x.size // p,)
    np.testing.assert_array_equal(y, x.reshape(p, -1)[comm.rank])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_in_place_leaves_the_other_parts(world, algorithm):
    comm = world.comm
    for root in {0, comm.size - 1}:
        x = np.arange(10 * comm.size) + comm.rank
        before = x.copy()
        comm.scatter(x, x[10 * comm.rank :][:10], root=root, algorithm=algorithm)
        before[10 * comm.rank :][:10] += root - comm.rank
        np.testing.assert_array_equal(x, before)


@pytest.mark.several
def test_out_of_another_length_is_told(world):
    """If a rank has an `out` and no x, its length determines that of the root."""
    comm = world.comm
    x = np.ones(2 * comm.size) if comm.rank == 0 else None
    with pytest.raises(errors.MismatchError, match=rf"scatter\(count={3 * comm.size},"):
        comm.scatter(x, np.ones(2 + (comm.rank == 1)))
    comm.barrier()
