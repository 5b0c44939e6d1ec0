"""Fixtures of the explorer's tests: algorithms for a test, and the page as it is written."""

import pytest

from collectives import algorithms, explorer
from collectives.explorer import page


def pytest_collection_modifyitems(items):
    """Let one process have all tests of the whole page, which takes seconds to write."""
    for item in items:
        if "written" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("explorer"))


@pytest.fixture
def registered():
    """Register algorithms for a test."""
    added = []

    def register(collective, name, generate, **more):
        algorithms.algorithm(collective, name=name, **more)(generate)
        added.append((collective, name))

    yield register
    for each in added:
        algorithms.unregister(*each)


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    return explorer.write(tmp_path_factory.mktemp("explorer")).parent


@pytest.fixture
def quick(monkeypatch):
    """Leave out the data of the library's own algorithms, which take seconds."""
    data = page.data
    monkeypatch.setattr(page, "data", lambda row, *ranks: {} if row.included else data(row, *ranks))
