"""The numbers of a vector form: the lengths of the parts, and their starts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from collectives import _core
from collectives.errors import ArgumentError
from collectives.process import binding
from collectives.text.words import shown

if TYPE_CHECKING:
    from collectives.arrays.types import Counts, Integers

MOST = 2**63 - 1  # elements, of all ranks together


def checked(counts: Counts, size: int, name: str = "counts", each: str = "rank") -> Integers:
    """Return the counts that a caller gave as an array. Local."""
    try:
        listed = list(map(index, counts))
    except Exception as error:  # also of a user's type
        raise ArgumentError(
            f"{name} is {shown(counts)}, and must be a sequence of {size} integers"
        ) from error
    if len(listed) != size or min(listed, default=0) < 0:
        raise ArgumentError(
            f"{name} is {shown(counts)}, and must be {size} numbers of elements, one for each "
            f"{each}, none of them negative{binding.alone(len(listed) - 1)}"
        )
    if sum(listed) > MOST:
        raise ArgumentError(
            f"{name} is {shown(counts)}, and must be {size} numbers of elements, no more than "
            f"{MOST} in all"
        )
    return np.array(listed, np.int64)


def places(
    displs: Counts | None, counts: Integers, array: Any, names: tuple[str, str], written: bool
) -> Integers | None:
    """Return the starts of the parts of an array, or None if they are adjacent. Local."""
    if displs is None:
        return None
    name, whole = names
    if array is None:
        raise ArgumentError(f"{name} says where parts begin in {whole}, and {whole} is None")
    starts = checked(displs, len(counts), name)
    n = prod(_core.shape(array, whole))
    starts[counts == 0] = 0
    end, before = 0, -1
    for r in np.argsort(starts, kind="stable").tolist():
        if not counts[r]:
            continue
        if int(starts[r]) + int(counts[r]) > n:
            raise ArgumentError(
                f"{name} is {shown(displs)}, and with {counts[r]} elements from {starts[r]} on, "
                f"part {r} ends outside of {whole}, which has {n}"
            )
        if written and starts[r] < end:
            raise ArgumentError(
                f"{name} is {shown(displs)}, and with counts of {counts.tolist()} the parts "
                f"{before} and {r} of {whole} overlap"
            )
        end, before = int(starts[r] + counts[r]), r
    return starts


def equal_parts(n: int, p: int) -> Integers:
    """Return the sizes of `p` nearly equal parts of `n` elements. Local."""
    edges = [n * r // p for r in range(p + 1)]
    sizes = [after - before for before, after in pairwise(edges)]
    return np.array(sizes, np.int64)


def wanted(sizes: Integers, n: int) -> Integers:
    """Return the counts of a scatterv from those of all ranks, the same on all ranks. Local."""
    if (sizes < 0).all():
        return equal_parts(n, len(sizes))
    if (sizes < 0).any():
        absent = ", ".join(str(r) for r in np.flatnonzero(sizes < 0))
        raise ArgumentError(
            f"out is given on some ranks and not on others ({absent}); give it on all, or counts"
        )
    return np.ascontiguousarray(sizes)


def compare(
    given: Integers,
    sent: Integers,
    name: str = "receive_counts",
    sources: Sequence[int | None] | None = None,
) -> None:
    """Raise an error unless the counts that a caller gave are those that all ranks, or the
    `sources`, send. Local.
    """
    wrong = np.flatnonzero(given != sent)
    if len(wrong):
        k = wrong[0]
        raise ArgumentError(
            f"{name} is {given.tolist()}, and rank {sources[k] if sources else k} sends {sent[k]} "
            f"elements here, not {given[k]}"
        )
