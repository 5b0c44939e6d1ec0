"""The cases that a usual run has. ``make test FULL=1``, or COLLECTIVES_TEST_FULL=1, has them all.

A test with parameters is one case for each combination of their values. A case is usual if at most
one of its parameters has another value than its first one. Marks at the test say more:

- ``usual("float32", 5)``: values, as pytest prints them, that count as the first one does;
- ``slow``: a test or a value of full runs only;
- ``each_mpi("openmpi")``: a test that starts ranks, in a usual run with this MPI only;
- ``ranks(1, 2, 3)``: in tests/mpi, the numbers of ranks that a usual run has a test on. Tests
  without this mark have their usual cases on 2 ranks with MPICH, and the first one elsewhere;
- ``any_mpi``: in tests/mpi, a test that a usual run does not have with Open MPI.

A file that is run alone is run whole.
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from typing import TYPE_CHECKING

from jobs import environment_of, mpiexec

if TYPE_CHECKING:
    import pytest

FULL = os.environ.get("COLLECTIVES_TEST_FULL", "0") not in ("", "0")


class Here:
    """The launcher of tests/mpi, whose conftest sets this."""

    mpi = "mpich"
    ranks = 0  # no launcher


@cache
def launched() -> str:
    """Return the MPI of this environment."""
    return "openmpi" if len(mpiexec(environment_of(sys.executable))) > 1 else "mpich"


def split(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests to run, and those that are left out."""
    if FULL or len({item.path for item in items}) == 1:
        return items, []
    first: dict[str, list[str]] = {}
    kept = [
        item
        for item in items
        if _is_usual(item, first.setdefault(item.nodeid.partition("[")[0], _values(item)))
    ]
    runs = set(kept)
    return kept, [item for item in items if item not in runs]


def together(nodeid: str) -> str:
    """Return what one worker runs: a test, or all tests that share a cluster, a page or a cache."""
    shared = re.search(r"\b(engines/\w+|explorer|project/test_style)\b", nodeid.partition("::")[0])
    return shared[0] if shared else nodeid


def _is_usual(item: pytest.Item, first: list[str]) -> bool:
    marks = {mark.name: mark for mark in item.iter_markers()}
    each = marks.get("each_mpi")
    if "slow" in marks or (each and each.args and launched() not in each.args):
        return False
    changed = int(Here.ranks in (0, 2) and Here.mpi == "mpich")
    if Here.ranks and "any_mpi" in marks and Here.mpi == "openmpi":
        return False
    if Here.ranks and "ranks" in marks:
        changed = 1
        if Here.ranks not in marks["ranks"].args:
            return False
    named = {str(value) for mark in item.iter_markers("usual") for value in mark.args}
    values = zip(_values(item), first, strict=True)
    return sum(value not in (its, *named) for value, its in values) <= changed


def _values(item: pytest.Item) -> list[str]:
    """Return the values of the parameters, as pytest prints them."""
    return list(item.callspec._idlist) if hasattr(item, "callspec") else []
