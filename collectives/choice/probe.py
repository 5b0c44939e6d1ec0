"""The probe: alpha, beta and gamma, measured on the ranks of a communicator in milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from collectives.algorithms.registry import get
from collectives.choice.model import IMPOSSIBLE, Parameters, fitted
from collectives.choice.ranks import Ranks

# The probe: bytes of a long array; numbers of consecutive calls with a short and with a long array;
# and how often these are repeated. Short calls are repeated as often as there is time. Long calls
# are not repeated if short ones are slow, as when ranks share cores. On 2 ranks the probe took 0.2
# to 2.2 ms (2 cores, AMD EPYC, 2026-11-21), on 4 hosts with 1 Gbit/s 10 to 20 ms.
LONG = 256 << 10
SHORTS, LONGS = 8, 2
TIMES = 4
ENOUGH = 4e-3  # seconds for short ones
SLOW = 50e-6  # seconds


def probe(comm: Ranks) -> Parameters:
    """Measure alpha, beta and gamma on the ranks of a communicator, in a few ms. Collective.

    Two collectives with known cost formulas are timed with a short and a long array, and the
    formulas are solved for the parameters. So these hold for the transport in use, with all ranks
    at work.
    """
    p = comm.size
    part = max(1, LONG // 4 // p)
    x, out = np.ones(part * p, np.float32), np.zeros(part * p, np.float32)

    def agreed(call: Callable[[], Any], number: int, times: int) -> float:
        slowest: float = max(comm._meeting.allgather(_least(call, number, times)))
        return slowest

    def shortly(times: int) -> float:
        return agreed(lambda: comm.allgather(x[:1], out[:p], algorithm="bruck"), SHORTS, times)

    short = shortly(1)
    times = TIMES if short < SLOW else 1
    again = min(TIMES, int(ENOUGH / (SHORTS * short)))
    if again:  # the first message to a rank takes longer than all later ones
        short = min(short, shortly(again))
    gathered = agreed(lambda: comm.allgather(x[:part], out, algorithm="bruck"), LONGS, times)
    scattered = agreed(lambda: comm.reduce_scatter(x, out[:part], algorithm="bruck"), LONGS, times)
    return solved(p, x.nbytes, short, gathered, scattered, "the start-up probe")


def solved(
    p: int, nbytes: int, short: float, gathered: float, scattered: float, origin: str
) -> Parameters:
    """Return the parameters that explain three measured times. Local.

    A parameter that is smaller than the noise is left out: it has the library's default.
    """
    gather, scatter = (
        get(name, "bruck").totals(p) or (1.0, 1.0, 1.0) for name in ("allgather", "reduce_scatter")
    )
    alpha = short / gather[0]
    beta = (gathered - short) / (gather[1] * nbytes)
    if beta <= IMPOSSIBLE:
        return fitted(alpha, None, None, origin)
    rest = scattered - scatter[0] * alpha - scatter[1] * nbytes * beta
    return fitted(alpha, beta, rest / (scatter[2] * nbytes), origin)


def _least(call: Callable[[], Any], number: int, times: int) -> float:
    """Return the least seconds of one of `number` consecutive calls, the same on all ranks."""
    call()
    took = []
    for _ in range(times):
        start = time.perf_counter()
        for _ in range(number):
            call()
        took.append((time.perf_counter() - start) / number)
    return min(took)
