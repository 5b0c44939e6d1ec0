"""gather: what every rank gives, on the root."""

import numpy as np
import pytest
from cases import names
from forms import Gather
from promises import Promises

from collectives import errors


class TestGather(Promises):
    form = Gather


@pytest.mark.parametrize("algorithm", names("gather"))
def test_in_place_for_a_matrix(world, algorithm):
    """On the root, x is the row of `out` that it becomes; elsewhere out[rank] may be anything."""
    comm = world.comm
    for root in range(comm.size):
        y = np.zeros((comm.size, 10), np.int64)
        y[comm.rank] = comm.rank
        comm.gather(y[comm.rank], y, root=root, algorithm=algorithm)
        rows = (
            np.arange(comm.size)
            if comm.rank == root
            else [comm.rank * (r == comm.rank) for r in range(comm.size)]
        )
        np.testing.assert_array_equal(y, np.repeat(rows, 10).reshape(comm.size, 10))


@pytest.mark.several
def test_x_is_out(world):
    comm = world.comm
    y = np.zeros((comm.size, 2))
    n = y.size
    with pytest.raises(
        errors.BufferError if comm.rank == 0 else errors.MismatchError,
        match=f"out has {n} elements, and the result has {n * comm.size}; they must be equal",
    ):
        comm.gather(y, y)
    comm.barrier()
