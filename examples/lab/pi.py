"""Sheet 1: pi on all ranks.

A random point in the unit square lies within the quarter circle with probability pi / 4. Share the
points among the ranks, count, and add up the counts. Check it with::

    python examples/lab/check.py pi
"""

import numpy as np


def pi(comm, points):
    """Return an estimate of pi from `points` random points, the same on all ranks."""
    # TODO: each rank takes its share of the points, and points of its own
    #       (np.random.default_rng(seed), rng.random((2, share)))
    # TODO: add up the counts of all ranks (comm.allreduce(np.array([hits])))
    raise NotImplementedError("TODO")
