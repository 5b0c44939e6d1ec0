"""The names and functions of the formulas in which costs are stated."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Return what the names in formulas stand for on `p` ranks. Local."""
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
        "ones": sum(v.bit_count() for v in range(p)),
        "levels": lambda k: _levels(p, k),
        "hops": lambda k: _hops(p, k),
        "min": min,
        "max": max,
        "ceil": ceil,
        "log2": log2,
    }


def _levels(p: int, k: int) -> int:
    """Return how far the last of `p` nodes is from the root of a complete k-ary tree."""
    levels, node = 0, p - 1
    while node:
        levels, node = levels + 1, (node - 1) // k
    return levels


def _hops(p: int, k: int) -> int:
    """Return when the last of `p` nodes hears from the root, if each tells its children in turn."""
    heard = [0]
    for node in range(p - 1):
        heard.append(heard[node // k] + 1 + node % k)
    return max(heard)
