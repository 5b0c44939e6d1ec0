"""The included algorithms, and the door for your own.

Each is a generator of rounds for one rank, written as in a textbook::

    @algorithm("allreduce", blocks=lambda p: p)
    def ring(r, p):
        left, right = (r - 1) % p, (r + 1) % p
        for t in range(p - 1):
            yield Exchange(send=(right, (r - t) % p), recv=(left, (r - t - 1) % p), fold=True)
        for t in range(p - 1):
            yield Exchange(send=(right, (r + 1 - t) % p), recv=(left, (r - t) % p))
"""

from __future__ import annotations

from collectives.registry import Algorithm, Cost, algorithm, get, names, unregister
from collectives.schedule import Exchange

__all__ = ["Algorithm", "Cost", "Exchange", "algorithm", "get", "names", "unregister"]

# The order here is the order of every list, table and picture.
from collectives.algorithms import flat  # noqa: E402  flat first: others compose its phases
from collectives.algorithms import tree  # noqa: E402
from collectives.algorithms import chain  # noqa: E402
from collectives.algorithms import direct  # noqa: E402
from collectives.algorithms import butterfly  # noqa: E402
from collectives.algorithms import halving  # noqa: E402
from collectives.algorithms import ring  # noqa: E402
from collectives.algorithms import double_tree  # noqa: E402
from collectives.algorithms import dissemination  # noqa: E402

del flat, tree, chain, direct, butterfly, halving, ring, double_tree, dissemination
