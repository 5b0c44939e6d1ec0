"""Drivers without a GPU, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_gpu import FakeDriver
from fake_order import MODES


@pytest.fixture(params=MODES)
def driver(request: pytest.FixtureRequest) -> Iterator[FakeDriver]:
    """A driver in each mode; faults, and what is left at the end, fail the test."""
    with FakeDriver(mode=request.param, seed=7) as driver:
        yield driver


@pytest.fixture
def lazy() -> Iterator[FakeDriver]:
    """A driver for programs with faults, which ends without a check."""
    driver = FakeDriver(mode="lazy", deadline=5)
    yield driver
    driver.close()
