"""Measure what an array of each kind costs beside NumPy's: small and large, new and ``out``.

Run it on one rank, where nothing has to be waited for, on a quiet machine::

    python benchmarks/measure_arrays.py

It prints the best time of an allreduce over several turns for each kind whose library is
installed. The times show the cost of reading a tensor and of making a result of its kind; and for
64 MiB, that new memory comes in huge pages (`advise_huge_pages` in ``_core/arrays/results.pxi``).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from turns import alone, in_turns, options, row

import collectives as cc

SIZES = {2: 4000, 1 << 24: 2}  # elements of float32: calls in a turn
SLOW_CALLS = 200  # at most, where a call takes tens of microseconds

# A new array of ones, by kind: the module, how it makes one, and whether it can be written.
KINDS: dict[str, tuple[str, Callable[[Any, int], Any], bool]] = {
    "numpy": ("numpy", lambda module, n: module.ones(n, np.float32), True),
    "torch": ("torch", lambda module, n: module.ones(n), True),
    "jax": ("jax.numpy", lambda module, n: module.ones(n), False),
    "tensorflow": ("tensorflow", lambda module, n: module.ones(n), False),
}


def main() -> None:
    """Time every kind that is installed."""
    turns = options(__doc__, turns=15).turns
    call = cc.world().allreduce
    print(row("us a call", ("bytes", "new", "out", "in place")))
    for kind, (name, ones, mutable) in KINDS.items():
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            print(f"{kind} is not installed")
            continue
        module = importlib.import_module(name)
        for n, calls in SIZES.items():
            x = ones(module, n)
            # A result that cannot be written goes to NumPy's.
            out = ones(module, n) if mutable else np.ones(n, np.float32)
            ways = {"new": partial(call, x), "out": partial(call, x, out)}
            if mutable:
                ways["in place"] = partial(call, x, x)
            few = calls if mutable else min(calls, SLOW_CALLS)
            times = in_turns(ways, turns, alone, calls=dict.fromkeys(ways, few))
            cells = [1e6 * min(each) for each in times.values()]
            print(row(kind, [str(4 * n), *cells], ".2f"))


if __name__ == "__main__":
    main()
