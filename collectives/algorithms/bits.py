"""Modes of communicators and calls: the quantities that the bits of an element may depend on."""

from __future__ import annotations

from typing import Any

from collectives.errors import ArgumentError
from collectives.text.words import shown

ANY, SIZE = BITS = "any", "size"
# Orders in which contributions that come together are folded: from the lowest rank up, or as in a
# butterfly.
RANKS, PAIRS = ORDERS = "ranks", "pairs"
# The mode of sums that are rounded once: one step adds all contributions to a sum.
ONCE = "once"
# Ranks up to which a step may fold all contributions at once; at most CC_ROWS of
# _core/kernels/combine.h. The proof, which each process makes, takes four times as long on twice as
# many ranks: that of direct 0.4 s on 128, and 1.8 s on 256 (EPYC, 2026-11-26, by
# python -m timeit -p -n 1 -r 1 "order.folds_at_once(get('allreduce', 'direct'), 128)").
MOST_AT_ONCE = 128


def checked(bits: Any) -> str:
    """Return `bits` if it is one of `BITS`. Local."""
    if not isinstance(bits, str) or bits not in BITS:
        raise ArgumentError(f"bits is {shown(bits)}, and must be {ANY!r}, {SIZE!r} or None")
    return bits


def row_name(collective: str, bits: str) -> str:
    """Return the name of a collective in the rows of a profile. Local."""
    return f"{collective}; bits={bits}" if bits == SIZE else collective


def own(bits: Any, usual: str) -> str | None:
    """Return the `bits` of a call if they are not the `usual` ones, or None. Local."""
    return None if bits is None or checked(bits) == usual else str(bits)


def called(name: str, bits: str) -> str:
    """Return the name of an algorithm with its `bits`, which ranks compare. Local."""
    return f"{name}, bits={bits}" if bits == SIZE else name
