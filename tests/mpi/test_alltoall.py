"""alltoall: part d of the array of a rank goes to rank d."""

import numpy as np
import pytest
from cases import names
from forms import Alltoall
from promises import Promises

ALGORITHMS = names("alltoall")


class TestAlltoall(Promises):
    form = Alltoall


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
