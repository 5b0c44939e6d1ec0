"""The names and functions that formulas of costs may use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from math import ceil, log2
from typing import Any


def evaluated(
    formulas: tuple[str, str, str], p: int, parameters: Mapping[str, int]
) -> tuple[float, float, float]:
    """Return three formulas as numbers for `p` ranks and `parameters`. Local."""
    if p == 1:
        return 0.0, 0.0, 0.0
    known = {**values(p), **parameters}
    one, two, three = (eval(text, {"__builtins__": {}}, known) for text in formulas)
    return one, two, three


def values(p: int) -> dict[str, Any]:
    """Return the values of the names in formulas on `p` ranks. Local."""
    lg = p.bit_length() - 1
    up = (p - 1).bit_length()
    q = 1 << lg
    return {
        "p": p,
        "lg": lg,
        "up": up,
        "q": q,
        "rest": up - lg,
        "beyond": sum(min(1 << i, p - q) for i in range(lg)),
        "even": sum(-(-(p - q) // (2 << i)) for i in range(lg)),
        "levels": lambda k: _levels(p, k),
        "hops": lambda k: _hops(p, k),
        "digits": lambda k: len(powers(k, p)),
        "steps": lambda k: sum(min(k - 1, (p - 1) // d) for d in powers(k, p)),
        "moves": lambda k: sum(sum(map(bool, _digits(v, k))) for v in range(p)),
        "factors": lambda k: len(factors(p, k)),
        "peers": lambda k: sum(f - 1 for f in factors(p, k)),
        "width": width,
        "stages": _stages,
        "min": min,
        "max": max,
        "ceil": ceil,
        "log2": log2,
    }


def _levels(p: int, k: int) -> int:
    """Return the depth of the last of `p` nodes in a complete k-ary tree."""
    levels, node = 0, p - 1
    while node:
        levels, node = levels + 1, (node - 1) // k
    return levels


def _hops(p: int, k: int) -> int:
    """Return the messages, one after the other, until the last of `p` nodes of a k-ary tree has
    heard from the root.
    """
    heard = [0]
    for node in range(p - 1):
        heard.append(heard[node // k] + 1 + node % k)
    return max(heard)


@cache
def width(p: int) -> int:
    """Return the least number w for which 1 + 2 + ... + w is at least p - 1."""
    found = covered = 0
    while covered < p - 1:
        found += 1
        covered += found
    return found


def _stages(p: int) -> int:
    """Return the fewest terms of w + (w - 1) + ... with a sum of at least p - 1; w is the width."""
    stages, left, each = 0, p - 1, width(p)
    while left > 0:
        stages, left, each = stages + 1, left - each, each - 1
    return stages


def powers(k: int, p: int) -> list[int]:
    """Return the powers of `k` below `p`: 1, k, k^2, ..."""
    found = []
    d = 1
    while d < p:
        found.append(d)
        d *= k
    return found


def _digits(v: int, k: int) -> Iterator[int]:
    """Yield the digits of `v` to the base `k`, the lowest first."""
    while v:
        yield v % k
        v //= k


def factors(p: int, k: int) -> list[int]:
    """Return factors of `p` as large as possible up to `k`, and primes where there are none."""
    found = []
    while p > 1:
        able = [f for f in range(2, min(k, p) + 1) if p % f == 0]
        found.append(able[-1] if able else next(f for f in range(2, p + 1) if p % f == 0))
        p //= found[-1]
    return found
