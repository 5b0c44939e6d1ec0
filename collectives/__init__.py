"""Collective communication for Python: algorithms as data, proven, run by a core without the GIL.

Examples
--------
>>> import numpy as np, collectives as cc
>>> total = cc.allreduce(np.arange(4.0))
>>> bool((total == cc.size() * np.arange(4.0)).all())
True
"""

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

try:
    from collectives._core import PlannedCall, Reduction, Request
except ImportError as error:
    raise ImportError(
        f"collectives in {__path__[0]} has no usable core: {error}. If that is a source tree, "
        f"start Python in another folder to use an installed one, or build it: pip install -e ."
    ) from error
from collectives import algorithms, errors, reductions
from collectives._version import __version__
from collectives.calls.grouped import GroupedRequest
from collectives.calls.waiting import wait_all, wait_any
from collectives.communicator import Communicator
from collectives.default import (
    allgather,
    allgather_object,
    allgatherv,
    allreduce,
    allreduce_many,
    allreduce_object,
    alltoall,
    alltoall_object,
    alltoallv,
    barrier,
    broadcast,
    broadcast_object,
    exscan,
    exscan_object,
    gather,
    gather_object,
    gatherv,
    iallgather,
    iallgatherv,
    iallreduce,
    iallreduce_many,
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
    reduce_object,
    reduce_scatter,
    reduce_scatterv,
    scan,
    scan_object,
    scatter,
    scatter_object,
    scatterv,
    send,
    sendrecv,
    size,
    world,
)
from collectives.errors import CollectivesError
from collectives.launch.spawning import spawn
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
from collectives.text.words import missing as _missing

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
    "GroupedRequest",
    "PlannedCall",
    "Reduction",
    "Request",
    "__version__",
    "algorithms",
    "allgather",
    "allgather_object",
    "allgatherv",
    "allreduce",
    "allreduce_many",
    "allreduce_object",
    "alltoall",
    "alltoall_object",
    "alltoallv",
    "barrier",
    "broadcast",
    "broadcast_object",
    "errors",
    "exscan",
    "exscan_object",
    "gather",
    "gather_object",
    "gatherv",
    "iallgather",
    "iallgatherv",
    "iallreduce",
    "iallreduce_many",
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
    "reduce_object",
    "reduce_scatter",
    "reduce_scatterv",
    "reduction",
    "reductions",
    "scan",
    "scan_object",
    "scatter",
    "scatter_object",
    "scatterv",
    "send",
    "sendrecv",
    "size",
    "spawn",
    "wait_all",
    "wait_any",
    "world",
]


if not _TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _missing(_sys.modules[__name__], "module 'collectives'", name, __all__)
