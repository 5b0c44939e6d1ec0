"""Modes of communicators and calls: the quantities that the bits of an element may depend on.

A call that has its own mode carries it beside the name of its algorithm, in one text.
"""

from __future__ import annotations

from typing import Any

from collectives.errors import ArgumentError
from collectives.text.words import shown

ANY, SIZE = BITS = "any", "size"
# The mode of sums that are rounded once: one step adds all contributions to a sum.
ONCE = "once"
# Ranks up to which a step may fold all contributions at once; at most CC_ROWS of
# _core/kernels/combine.h. The proof, which each process makes, takes four times as long on twice as
# many ranks: that of pairs_direct 0.4 s on 128, and 1.8 s on 256 (EPYC, 2026-11-26, by
# python -m timeit -p -n 1 -r 1 "order.folds_at_once(get('allreduce', 'pairs_direct'), 128)").
MOST_AT_ONCE = 128

_MARK = "; bits="
_ALONE = {bits: _MARK + bits for bits in BITS}  # of calls that name no algorithm


def checked(bits: Any) -> str:
    """Return `bits` if it is one of `BITS`. Local."""
    if not isinstance(bits, str) or bits not in BITS:
        raise ArgumentError(f"bits is {shown(bits)}, and must be {ANY!r}, {SIZE!r} or None")
    return bits


def marked(algorithm: Any, bits: Any) -> Any:
    """Return the `algorithm` of a call, marked with the call's own `bits` if it has any. Local."""
    if bits is None or not (algorithm is None or isinstance(algorithm, str)):
        return algorithm
    if algorithm is None and isinstance(bits, str) and bits in _ALONE:
        return _ALONE[bits]
    return f"{algorithm or ''}{_MARK}{checked(bits)}"


def asked(algorithm: str | None, usual: str = ANY) -> tuple[str | None, str]:
    """Return the algorithm that a call names, if any, and its own bits or the `usual` ones."""
    if algorithm is None or _MARK not in algorithm:
        return algorithm, usual
    name, _, bits = algorithm.partition(_MARK)
    return name or None, bits


def once(algorithm: str | None) -> str:
    """Return the `algorithm` of a call whose sums are rounded once. Local."""
    return f"{asked(algorithm)[0] or ''}{_MARK}{ONCE}"


def own(bits: Any, usual: str) -> str | None:
    """Return the `bits` of a call if they are not the `usual` ones, or None. Local."""
    return None if bits is None or checked(bits) == usual else str(bits)


def called(name: str, bits: str) -> str:
    """Return the name of an algorithm with its `bits`, which ranks compare. Local."""
    return f"{name}, bits={bits}" if bits == SIZE else name
