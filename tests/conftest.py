"""What tests of all folders share. As it lies here, they can import the modules beside it."""

from __future__ import annotations

import signal
import zlib
from collections import Counter

import pytest
from commands import why_not
from full import FULL

MANY = 8  # cases


# A shell ignores it in what it starts in the background, and what the tests start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "of the tests for each MPI, run share K of N, always the same ones"
    parser.addoption("--share", default="0/1", metavar="K/N", help=text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out other shares than that of ``--share``, and half of the cases of a test with MANY.

    ``COLLECTIVES_TEST_FULL=1`` runs all cases, and so does a file that is run alone.
    """
    share, of = map(int, config.getoption("--share").split("/"))
    is_whole = FULL or len({item.path for item in items}) == 1
    cases = Counter(_function(item) for item in items)
    shares: list[list[pytest.Item]] = [[], []]
    for item in items:
        name = f"{item.path.name}::{item.nodeid.partition('::')[2]}"
        number = zlib.crc32(name.encode())
        is_left_out = number % of != share and item.get_closest_marker("each_mpi") is not None
        if cases[_function(item)] >= MANY and not is_whole:
            is_left_out |= bool(number >> 9 & 1)  # not a bit by which ranks take shares
        shares[is_left_out].append(item)
    items[:], others = shares
    if others:
        config.hook.pytest_deselected(items=others)


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


@pytest.fixture
def mpi() -> None:
    """Skip a test where no ranks can be started."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
