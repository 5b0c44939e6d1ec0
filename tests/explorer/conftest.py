"""Fixtures of the explorer's tests: algorithms for a test, and the page as it is written."""

import pytest

from collectives import algorithms, explorer
from collectives.explorer import page
from collectives.explorer.catalogue import RANKS

ALL = range(1, RANKS + 1)


@pytest.fixture(scope="session", autouse=True)
def remembered():
    """Compute the data of each of the library's algorithms once; all of them take ten seconds."""
    found = {}
    compute = page.data

    def data(row, ranks=ALL):
        if not row.included:
            return compute(row, ranks)
        key = row, tuple(ranks)
        if key not in found:
            found[key] = compute(row, ranks)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "data", data)
        yield


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
