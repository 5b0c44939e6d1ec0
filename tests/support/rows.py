"""Every algorithm as the parameters of a test; those of the literature in full runs only."""

import pytest

from collectives import algorithms
from collectives.algorithms.spec import COLLECTIVES

ROWS = [
    pytest.param(
        *(collective, name),
        marks=[] if name in algorithms.names(collective, textbook=True) else pytest.mark.slow,
    )
    for collective in COLLECTIVES
    for name in algorithms.names(collective)
]
every_row = pytest.mark.parametrize(("collective", "name"), ROWS)
