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

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.registry import Algorithm, Cost, algorithm, get, names, unregister

__all__ = ["Algorithm", "Cost", "Exchange", "algorithm", "get", "names", "unregister"]

# The order is that of every list, table and picture; flat comes first, as others compose it.
# isort: off
from collectives.algorithms import flat, tree, kary, chain, direct, pairwise, butterfly, halving
from collectives.algorithms import ring, bruck, double_tree, scan, dissemination
# isort: on

del flat, tree, kary, chain, direct, pairwise, butterfly, halving
del ring, bruck, double_tree, scan, dissemination
