"""The names of submissions, and of ranks, in texts."""

from __future__ import annotations

from collections.abc import Iterable

from collectives.text.words import ranks


def nameless(collective: str, number: int) -> str:
    """Return the key of a submission without a name, which no name is equal to. Local."""
    return f"\0{collective} without a name, number {number}"


def called(key: str) -> str:
    """Return what the submission with a `key` is called in texts. Local."""
    return key[1:] if key.startswith("\0") else repr(key)


def named(which: Iterable[int]) -> str:
    """Return the ranks `which` in words, such as "rank 1" or "ranks 0, 2-4". Local."""
    return ranks(sum(1 << rank for rank in which))
