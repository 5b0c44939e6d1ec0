"""Sheet 1, solved."""

import numpy as np


def pi(comm, points):
    """Return an estimate of pi from `points` random points, the same on all ranks."""
    rng = np.random.default_rng(comm.rank)
    share = points // comm.size
    x, y = rng.random((2, share))
    hits = np.count_nonzero(x * x + y * y < 1.0)
    total = comm.allreduce(np.array([hits]))
    return 4.0 * total[0] / (share * comm.size)
