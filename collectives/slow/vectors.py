"""The counts and displacements of vector forms."""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np

from collectives.errors import ArgumentError, MismatchError
from collectives.slow.arguments import (
    ALLGATHER,
    ALLTOALL,
    COLLECTIVES,
    NUMBERS,
    REDUCE_SCATTER,
    SCATTER,
    STRUCTURES,
    Call,
    Counts,
    Parts,
    root_of,
    seconds,
    view_of,
)
from collectives.text.words import shown

MOST = np.iinfo(np.int64).max


def counts_of(given: Any, n: int, alone: Any, name: str = "counts", each: str = "rank") -> Counts:
    """Return the numbers of elements that a caller gave as a new array. Local."""
    try:
        listed = [index(item) for item in given]
    except Exception as error:  # also of a user's type
        raise ArgumentError(
            f"{name} is {shown(given)}, and must be a sequence of {n} integers"
        ) from error
    if len(listed) != n or min(listed, default=0) < 0:
        raise ArgumentError(
            f"{name} is {shown(given)}, and must be {n} numbers of elements, one for each {each}, "
            f"none of them negative{'' if alone is None else alone(len(listed) - 1)}"
        )
    if sum(listed) > MOST:
        raise ArgumentError(
            f"{name} is {shown(given)}, and must be {n} numbers of elements, no more than {MOST} "
            f"in all"
        )
    return np.array(listed, np.int64)


def places(
    displs: Any, counts: Counts, array: Any, names: tuple[str, str], written: bool, alone: Any
) -> Counts | None:
    """Return the starts of the parts of an array, or None if they are adjacent. Local."""
    name, whole = names
    if displs is None:
        return None
    if array is None:
        raise ArgumentError(f"{name} says where parts begin in {whole}, and {whole} is None")
    found = counts_of(displs, len(counts), alone, name)
    n = elements_in(array, whole)
    found[counts == 0] = 0
    end, before = 0, -1
    for r in np.argsort(found, kind="stable").tolist():
        start, length = int(found[r]), int(counts[r])
        if length == 0:
            continue
        if start + length > n:
            raise ArgumentError(
                f"{name} is {shown(displs)}, and with {length} elements from {start} on, part {r} "
                f"ends outside of {whole}, which has {n}"
            )
        if written and start < end:
            raise ArgumentError(
                f"{name} is {shown(displs)}, and with counts of {counts.tolist()} the parts "
                f"{before} and {r} of {whole} overlap"
            )
        end, before = start + length, r
    adjacent = np.cumsum(counts) - counts
    is_plain = (found == adjacent)[counts > 0].all() and int(counts.sum()) == n
    return None if is_plain else found


def equal_parts(n: int, p: int) -> Counts:
    """Return the sizes of `p` nearly equal parts of `n` elements. Local."""
    return np.array([n * (r + 1) // p - n * r // p for r in range(p)], np.int64)


def wanted_counts(sizes: Counts, n: int) -> Counts:
    """Return the counts of a scatterv from the sizes of the outputs of all ranks, or -1. Local."""
    absent = np.flatnonzero(sizes < 0)
    if len(absent) == len(sizes):
        return equal_parts(n, len(sizes))
    if len(absent):
        raise ArgumentError(
            f"out is given on some ranks and not on others ({', '.join(map(str, absent))}); give "
            f"it on all, or counts"
        )
    return np.ascontiguousarray(sizes)


def compare_counts(
    given: Counts, sent: Counts, name: str = "receive_counts", sources: Any = None
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


def elements_in(array: Any, name: str, structures: bool = False) -> int:
    """Return the elements of an array of any kind. Local."""
    return view_of(array, name, False, STRUCTURES if structures else NUMBERS).size


def parts_of(
    engine: Any,
    kind: int,
    x: Any,
    out: Any,
    root: Any,
    counts: Any,
    receive_counts: Any,
    displs: Any,
    receive_displs: Any,
    timeout: float | None,
) -> Parts:
    """Return the parts of a vector form. Collective, if the ranks do not all know the counts."""
    if timeout is not None:
        seconds(timeout)
    rooted = Call(engine, kind).contract.rooted
    root = root_of(root, engine.size, engine.alone) if rooted else 0
    is_root = not rooted or root == engine.rank
    sent, lengths = _given(engine, kind, x, out, is_root, counts)
    received = starts = ends = said = after = None
    if kind == ALLTOALL:
        assert sent is not None
        starts = places(displs, sent, x, ("displs", "x"), False, engine.alone)
        if receive_counts is not None:
            received = counts_of(receive_counts, engine.size, engine.alone, "receive_counts")
            own = received.copy()
            own[engine.rank] = sent[engine.rank]
            compare_counts(received, own)
    if rooted:
        sent, after = _told(engine, kind, sent, root, timeout)
    if sent is None:
        mine = np.array(lengths, np.int64)
        said = engine.call(ALLGATHER, mine, None, None, 0, None, timeout)
        sent = wanted_counts(said[:, 1], int(said[root, 0])) if kind == SCATTER else said.ravel()
    elif kind == ALLTOALL and received is None:
        received = engine.call(ALLTOALL, sent, None, None, 0, None, timeout)
    if kind != ALLTOALL:
        received = sent
    if kind == SCATTER and is_root:
        starts = places(displs, sent, x, ("displs", "x"), False, engine.alone)
    elif is_root:
        assert received is not None
        name = "receive_displs" if kind == ALLTOALL else "displs"
        ends = places(receive_displs, received, out, (name, "out"), True, engine.alone)
    return Parts(sent, received, starts, ends, after)


def _given(
    engine: Any, kind: int, x: Any, out: Any, is_root: bool, counts: Any
) -> tuple[Counts | None, list[int]]:
    """Return the counts that a rank was given, and without these the lengths of the arrays that
    other ranks may have to know.
    """
    n, room = 0, -1
    if x is not None or kind != SCATTER:
        n = elements_in(x, "x", kind == REDUCE_SCATTER)
    elif out is None or is_root:
        raise ArgumentError("x is None, and must be an array on the root and where out is None")
    if kind == SCATTER and out is not None:
        room = elements_in(out, "out")
    if counts is not None or kind == ALLTOALL:
        return counts_of(counts, engine.size, engine.alone), []
    if kind == REDUCE_SCATTER:
        return equal_parts(n, engine.size), []
    return None, [n, room] if kind == SCATTER else [n]


def _told(
    engine: Any, kind: int, given: Counts | None, root: int, timeout: float | None
) -> tuple[Counts | None, Callable[[], None] | None]:
    """Return the counts that the root tells, or None if it has none; and a function that raises an
    error at the end of the call if this rank was given other counts. Collective.
    """
    if engine.size == 1:
        return given, None
    told = given
    if engine.rank != root:
        told = np.empty(engine.size, np.int64)
    elif given is None:
        told = np.full(engine.size, -1, np.int64)
    assert told is not None
    engine.tell(COLLECTIVES[kind] + "v", told, root, timeout)
    if given is None:
        return None if told[0] < 0 else told, None
    if np.array_equal(given, told):
        return given, None

    def after() -> None:
        theirs = "none" if told[0] < 0 else told.tolist()
        raise MismatchError(
            f"the ranks do not agree: counts is {given.tolist()} on rank {engine.rank}, and "
            f"{theirs} on rank {root}, the root; pass the same on all ranks, or pass them on the "
            f"root only, or on no rank"
        )

    return given, after
