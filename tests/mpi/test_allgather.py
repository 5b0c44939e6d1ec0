"""allgather: what every rank gives, on every rank."""

import numpy as np
import pytest
from cases import names
from forms import Allgather
from promises import Promises

from collectives import errors


class TestAllgather(Promises):
    form = Allgather


def test_fortran_order(world):
    """Elements correspond by index, whatever their order in memory."""
    comm = world.comm
    x = np.arange(12).reshape(3, 4) + comm.rank
    y = comm.allgather(np.asfortranarray(x) if comm.rank % 2 else x)
    np.testing.assert_array_equal(y[-1], np.arange(12).reshape(3, 4) + comm.size - 1)


@pytest.mark.parametrize("algorithm", names("allgather"))
def test_in_place_for_a_matrix(world, algorithm):
    """Each rank has filled its row; `out` of another shape is as good."""
    comm = world.comm
    want = np.repeat(np.arange(comm.size), 10).reshape(comm.size, 10)
    y = np.zeros((comm.size, 10), np.int64)
    y[comm.rank] = comm.rank
    assert comm.allgather(y[comm.rank], y, algorithm=algorithm) is y
    np.testing.assert_array_equal(y, want)
    out = np.empty((5, 2 * comm.size), np.int64)
    assert comm.allgather(y[comm.rank].copy(), out, algorithm=algorithm) is out
    np.testing.assert_array_equal(out.reshape(want.shape), want)


@pytest.mark.several
def test_x_is_the_row_of_another_rank(world):
    comm = world.comm
    y = np.zeros((comm.size, 10))
    with pytest.raises(errors.BufferError, match="pass x as the part of out that it becomes"):
        comm.allgather(y[(comm.rank + 1) % comm.size], y)
    with pytest.raises(errors.BufferError, match=f"out has {y.size} elements, and the result has"):
        comm.allgather(y, y)
    comm.barrier()
