"""Algorithms as the parameters of tests; those of the literature in full runs only."""

from collections.abc import Iterable
from typing import Any

import pytest

from collectives import algorithms
from collectives.algorithms.spec import COLLECTIVES

Row = tuple[str, str]


def marks(collective: str, name: str) -> list[Any]:
    """Return the marks of the cases of an algorithm."""
    textbook = algorithms.names(collective, textbook=True)
    return [] if name.partition(":")[0] in textbook else [pytest.mark.slow]


def marked(rows: Iterable[Row]) -> list[Any]:
    """Return the parameters `collective` and `name` of a test."""
    return [pytest.param(*row, marks=marks(*row)) for row in rows]


ROWS = marked((c, name) for c in COLLECTIVES for name in algorithms.names(c))
every_row = pytest.mark.parametrize(("collective", "name"), ROWS)
