"""Collective communication for Python: algorithms as data, proven, run by a core without the GIL.

Examples
--------
>>> import numpy as np, collectives as cc
>>> total = cc.allreduce(np.arange(4.0))
>>> bool((total == cc.size() * np.arange(4.0)).all())
True
"""

from typing import Any

try:
    from collectives._core import Reduction, Request
except ImportError as error:
    raise ImportError(
        f"collectives in {__path__[0]} has no usable core: {error}. If that is a source tree, "
        f"start Python in another folder to use an installed one, or build it: pip install -e ."
    ) from error
from collectives import algorithms, errors, reductions
from collectives._version import __version__
from collectives.communicator import Communicator, world
from collectives.errors import CollectivesError
from collectives.reductions import (
    AVG,
    BAND,
    BOR,
    BXOR,
    LAND,
    LOR,
    LXOR,
    MAX,
    MIN,
    PROD,
    SUM,
)

__all__ = [
    "AVG",
    "BAND",
    "BOR",
    "BXOR",
    "LAND",
    "LOR",
    "LXOR",
    "MAX",
    "MIN",
    "PROD",
    "SUM",
    "CollectivesError",
    "Communicator",
    "Reduction",
    "Request",
    "__version__",
    "algorithms",
    "allreduce",
    "barrier",
    "broadcast",
    "errors",
    "iallreduce",
    "local_rank",
    "local_size",
    "rank",
    "reduce",
    "reductions",
    "size",
    "world",
]


def rank() -> int:
    """Return this rank's number in the default communicator. Local after the first call."""
    return world().rank


def size() -> int:
    """Return the number of ranks of the default communicator. Local after the first call."""
    return world().size


def local_rank() -> int:
    """Return this rank's number among those of its host. Local after the first call."""
    return world().local_rank


def local_size() -> int:
    """Return the number of ranks of this host. Local after the first call."""
    return world().local_size


def allreduce(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.allreduce` on the default communicator. Collective."""
    return world().allreduce(x, out, **options)


def iallreduce(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.iallreduce` on the default communicator. Collective."""
    return world().iallreduce(x, out, **options)


def reduce(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.reduce` on the default communicator. Collective."""
    return world().reduce(x, out, **options)


def broadcast(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.broadcast` on the default communicator. Collective."""
    return world().broadcast(x, out, **options)


def barrier(**options: Any) -> None:
    """Run `Communicator.barrier` on the default communicator. Collective."""
    world().barrier(**options)
