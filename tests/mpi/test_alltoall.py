"""alltoall: part d of what a rank has goes to rank d."""

import numpy as np
import pytest
from cases import names
from forms import Alltoall
from promises import Promises

from collectives import errors

ALGORITHMS = names("alltoall")


class TestAlltoall(Promises):
    form = Alltoall


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_transposes_a_matrix_of_ranks(group, algorithm):
    """Row s on rank s becomes column s; twice is where one began."""
    comm = group.comm
    x = np.arange(comm.size) + 100 * comm.rank
    y = comm.alltoall(x, algorithm=algorithm)
    np.testing.assert_array_equal(y, 100 * np.arange(comm.size) + comm.rank)
    np.testing.assert_array_equal(comm.alltoall(y, algorithm=algorithm), x)


def test_shape_is_kept(world):
    comm = world.comm
    p = comm.size
    for shape in ((p,), (p, 3), (2 * p, 0), (3, p), (p, 2, 2)):
        y = comm.alltoall(np.full(shape, comm.rank))
        assert y.shape == shape
        np.testing.assert_array_equal(y.reshape(p, -1).T, np.arange(p) + 0 * y.reshape(p, -1).T)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shift", [0, 1, -1, 5])
def test_any_overlap(world, algorithm, shift):
    """No block stays where it is: an input that the output would overwrite is copied."""
    comm = world.comm
    n = 7 * comm.size
    memory = np.zeros(n + 10, np.int64)
    x, out = memory[5:][:n], memory[5 + shift :][:n]
    x[:] = np.arange(n) + 1000 * comm.rank
    want = comm.alltoall(x.copy(), algorithm=algorithm)
    assert comm.alltoall(x, out, algorithm=algorithm) is out
    np.testing.assert_array_equal(out, want)


@pytest.mark.several
def test_what_cannot_be_shared_equally(world):
    comm = world.comm
    p = comm.size
    text = f"x has {p + 1} elements, which {p} ranks cannot share equally; alltoallv takes a count"
    for out in (None, np.ones(p + 1)):
        with pytest.raises(errors.ArgumentError, match=text):
            comm.alltoall(np.ones(p + 1), out)
    with pytest.raises(errors.ArgumentError, match="x has 1 elements"):
        comm.alltoall(np.array(3.0))
    comm.barrier()
