"""What tests of all folders share. As it lies here, they can import the modules beside it."""

from __future__ import annotations

import zlib

import pytest
from commands import why_not


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run one in N of the tests, always the same ones"
    parser.addoption("--one-in", type=int, default=1, metavar="N", help=text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    one_in = config.getoption("--one-in")
    shares: list[list[pytest.Item]] = [[], []]
    for item in items:
        name = f"{item.path.name}::{item.nodeid.partition('::')[2]}"
        shares[zlib.crc32(name.encode()) % one_in != 0].append(item)
    items[:], others = shares
    if others:
        config.hook.pytest_deselected(items=others)


@pytest.fixture
def mpi() -> None:
    """Skip a test where no ranks can be started."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
