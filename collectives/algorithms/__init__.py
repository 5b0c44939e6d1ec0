"""The included algorithms, and the registry for your own.

Each algorithm is a generator. It takes the number of a rank and the number of ranks, and yields the
rounds of that rank as `Exchange` objects. `spec` has the contracts of the collectives, `registry`
the table of algorithms. Nothing here depends on bytes, dtypes, memory or MPI. The algorithms read
as in a textbook::

    @algorithm("allreduce", blocks=lambda p: p)
    def ring(r, p):
        left, right = (r - 1) % p, (r + 1) % p
        for t in range(p - 1):
            yield Exchange(send=(right, (r - t) % p), recv=(left, (r - t - 1) % p), fold=True)
        for t in range(p - 1):
            yield Exchange(send=(right, (r + 1 - t) % p), recv=(left, (r - t) % p))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collectives.algorithms.exchange import Exchange, Fold, Store, parallel
    from collectives.algorithms.registry import Algorithm, Cost, algorithm, get, names, unregister
    from collectives.algorithms.spec import COLLECTIVES

__all__ = [
    "COLLECTIVES",
    "Algorithm",
    "Cost",
    "Exchange",
    "Fold",
    "Store",
    "algorithm",
    "get",
    "names",
    "parallel",
    "unregister",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # type checkers shall find names that are missing

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        from collectives.algorithms import exchange, registry  # the core needs other modules only

        value = globals()[name] = getattr(exchange if hasattr(exchange, name) else registry, name)
        return value
