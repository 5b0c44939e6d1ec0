"""The common part of all engines, without an engine."""

from __future__ import annotations

from collectives.engines import rank as ranks


def test_ranks_of_a_host_have_numbers_in_a_row() -> None:
    assert ranks.numbered(["b", "a", "b", "c", "a"]) == [0, 2, 1, 4, 3]
    assert ranks.numbered(["a"] * 3) == [0, 1, 2]
