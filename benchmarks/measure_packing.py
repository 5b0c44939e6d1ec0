"""Measure from which size on data should travel by itself, and not packed together with other data.

Run it on as many ranks as are of interest, on a machine as quiet as may be::

    mpiexec -n 2 python benchmarks/measure_packing.py

It prints, for arrays of each size, the shortest time of an `allreduce_many` that packs all of them
(into parts of PACKED bytes), of one that packs none, one after the other and side by side, and of a
`broadcast_object` of a list of them, likewise. The values of `APART`, `PACKED` and
`IN_FLIGHT` in ``grouped.py``, and of `APART` in ``parcels.py``, are from these times.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from turns import in_turns, options, row, say, slowest

import collectives as cc
from collectives.calls import grouped, parcels

ARRAYS = 32
NEVER = 1 << 40  # bytes
SIZES = [1 << k for k in range(10, 22)]
LIMITS = {str(1 << k): {"APART": NEVER, "PACKED": 1 << k} for k in range(16, 25, 2)}
GROUPED = {
    "packed": {"APART": NEVER},
    "1 at a time": {"APART": 0, "IN_FLIGHT": 1},
    "4": {"APART": 0, "IN_FLIGHT": 4},
    "16": {"APART": 0, "IN_FLIGHT": 16},
    "all": {"APART": 0, "IN_FLIGHT": ARRAYS},
}
OBJECTS = {"inside": {"APART": NEVER}, "apart": {"APART": 0}}
Arrays = list[np.ndarray[Any, Any]]


def table(
    title: str,
    module: ModuleType,
    ways: dict[str, dict[str, int]],
    number: int,
    sizes: list[int],
    call: Callable[[Arrays], object],
    seconds: float,
) -> None:
    """Print the time of a call on arrays of each size, with constants of a module as `ways` say."""
    size = cc.size()
    say(f"{size} ranks, us of {title}")
    say(row("bytes each", list(ways)))
    before = {name: getattr(module, name) for way in ways.values() for name in way}
    for nbytes in sizes:
        arrays = [np.ones(nbytes // 4, np.float32) for _ in range(number)]

        def clock(way: dict[str, int], calls: int, arrays: Arrays = arrays) -> float:
            vars(module).update(before | way)
            return slowest(lambda: call(arrays), calls)

        # The fastest call is the one that others on the machine disturb least.
        times = in_turns(ways, 3, clock, seconds=seconds * len(ways))
        say(row(nbytes, [1e6 * min(each) for each in times.values()], ".0f"))
    vars(module).update(before)
    say()


def main() -> None:
    """Print one table for grouped calls, one for the limit of packed arrays, one for objects."""
    seconds = options(__doc__, seconds=0.5).seconds
    comm = cc.world()

    def reduce(arrays: Arrays) -> object:
        return comm.allreduce_many(arrays, arrays)

    title = f"an allreduce_many of {ARRAYS} arrays in place"
    table(title, grouped, GROUPED, ARRAYS, SIZES, reduce, seconds)
    title = "an allreduce_many of 1024 arrays in place, by PACKED"
    table(title, grouped, LIMITS, 1024, [1 << 10, 1 << 12, 1 << 14], reduce, seconds)
    title = f"a broadcast_object of {ARRAYS} arrays"
    table(title, parcels, OBJECTS, ARRAYS, SIZES, comm.broadcast_object, seconds)


if __name__ == "__main__":
    main()
