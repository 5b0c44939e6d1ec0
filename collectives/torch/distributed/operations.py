"""The options of torch's calls: reductions and deadlines."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.distributed import ReduceOp

from collectives import reductions
from collectives.errors import ArgumentError
from collectives.reductions import Reduction

REDUCTIONS: dict[Any, Reduction] = {
    ReduceOp.SUM: reductions.SUM,
    ReduceOp.AVG: reductions.AVG,
    ReduceOp.PRODUCT: reductions.PROD,
    ReduceOp.MIN: reductions.MIN,
    ReduceOp.MAX: reductions.MAX,
    ReduceOp.BAND: reductions.BAND,
    ReduceOp.BOR: reductions.BOR,
    ReduceOp.BXOR: reductions.BXOR,
}
ZERO = timedelta(0)


def reduction(options: Any) -> tuple[Reduction, float]:
    """Return the reduction of some options, and the factor of each contribution. Local."""
    if options is None:
        return reductions.SUM, 1.0
    wish = options.reduceOp
    kind = wish.op
    found = REDUCTIONS.get(kind)
    if found is not None:
        return found, 1.0
    if kind == ReduceOp.PREMUL_SUM:
        return reductions.SUM, float(wish.factor)
    raise ArgumentError(
        f"op is {kind}, and must be one of SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR and "
        f"PREMUL_SUM"
    )


def deadline(options: Any) -> float | None:
    """Return the seconds that a call may take, or None for those of its group. Local."""
    timeout = None if options is None else options.timeout
    return None if timeout is None or timeout <= ZERO else timeout.total_seconds()
