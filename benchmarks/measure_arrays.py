"""Measure what an array of each kind costs beside NumPy's: small and large, new and ``out``.

Run it on one rank, where nothing has to be waited for, on a quiet machine::

    python benchmarks/measure_arrays.py

It prints the best time of an allreduce over several turns for each kind whose library is
installed. What it shows is what reading a tensor and making a result of its kind take; and for
64 MiB, that new memory comes in huge pages (`advise_huge_pages` in ``_core/arrays/results.pxi``).
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import collectives as cc

TURNS = 15
SIZES = {2: 4000, 1 << 24: 2}  # elements of float32: calls in a turn
SLOW_CALLS = 200  # at most, where a call takes tens of microseconds

# A new array of ones, by kind: the module, how it makes one, and whether it can be written.
KINDS: dict[str, tuple[str, Callable[[Any, int], Any], bool]] = {
    "numpy": ("numpy", lambda module, n: module.ones(n, np.float32), True),
    "torch": ("torch", lambda module, n: module.ones(n), True),
    "jax": ("jax.numpy", lambda module, n: module.ones(n), False),
    "tensorflow": ("tensorflow", lambda module, n: module.ones(n), False),
}


def best(call: Callable[[], Any], calls: int) -> float:
    """Return the seconds of a call, in the best of all turns."""
    times = []
    for _ in range(TURNS):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls)
    return min(times)


def main() -> None:
    """Time every kind that is installed."""
    comm = cc.world()
    print(f"{'us a call':<12}{'bytes':>12}{'new':>12}{'out':>12}{'in place':>12}")
    for kind, (name, ones, mutable) in KINDS.items():
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            print(f"{kind} is not installed")
            continue
        module = importlib.import_module(name)
        for n, calls in SIZES.items():
            x = ones(module, n)
            # A result that cannot be written goes to NumPy's.
            out = ones(module, n) if mutable else np.ones(n, np.float32)
            few = calls if mutable else min(calls, SLOW_CALLS)
            times = [best(lambda x=x: comm.allreduce(x), few)]
            times.append(best(lambda x=x, out=out: comm.allreduce(x, out), few))
            if mutable:
                times.append(best(lambda x=x: comm.allreduce(x, x), few))
            print(f"{kind:<12}{4 * n:>12}" + "".join(f"{1e6 * t:12.2f}" for t in times))


if __name__ == "__main__":
    main()
