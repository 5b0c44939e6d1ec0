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
    from collectives._core import PlannedCall, Reduction, Request
except ImportError as error:
    raise ImportError(
        f"collectives in {__path__[0]} has no usable core: {error}. If that is a source tree, "
        f"start Python in another folder to use an installed one, or build it: pip install -e ."
    ) from error
from collectives import algorithms, errors, reductions
from collectives._version import __version__
from collectives.communicator import Communicator, world
from collectives.default import (
    allgather,
    allgatherv,
    allreduce,
    alltoall,
    alltoallv,
    barrier,
    broadcast,
    exscan,
    gather,
    gatherv,
    iallgather,
    iallgatherv,
    iallreduce,
    ialltoall,
    ialltoallv,
    ibarrier,
    ibroadcast,
    iexscan,
    igather,
    igatherv,
    irecv,
    ireduce,
    ireduce_scatter,
    ireduce_scatterv,
    iscan,
    iscatter,
    iscatterv,
    isend,
    isendrecv,
    local_rank,
    local_size,
    plan,
    rank,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatterv,
    scan,
    scatter,
    scatterv,
    send,
    sendrecv,
    size,
)
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
    reduction,
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
    "PlannedCall",
    "Reduction",
    "Request",
    "__version__",
    "algorithms",
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoallv",
    "barrier",
    "broadcast",
    "errors",
    "exscan",
    "gather",
    "gatherv",
    "iallgather",
    "iallgatherv",
    "iallreduce",
    "ialltoall",
    "ialltoallv",
    "ibarrier",
    "ibroadcast",
    "iexscan",
    "igather",
    "igatherv",
    "irecv",
    "ireduce",
    "ireduce_scatter",
    "ireduce_scatterv",
    "iscan",
    "iscatter",
    "iscatterv",
    "isend",
    "isendrecv",
    "local_rank",
    "local_size",
    "plan",
    "rank",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatterv",
    "reduction",
    "reductions",
    "scan",
    "scatter",
    "scatterv",
    "send",
    "sendrecv",
    "size",
    "world",
]
