"""The numbers of the collectives, as the core counts them."""

from __future__ import annotations

from collectives import _core

(
    ALLREDUCE,
    REDUCE,
    BROADCAST,
    BARRIER,
    ALLGATHER,
    REDUCE_SCATTER,
    ALLTOALL,
    GATHER,
    SCATTER,
    SCAN,
    EXSCAN,
) = range(len(_core.COLLECTIVES))
