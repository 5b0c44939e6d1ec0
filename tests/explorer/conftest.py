"""Fixtures of the explorer's tests: algorithms for a test, and the page as it is written."""

import json
import os

import pytest

from collectives import algorithms, explorer
from collectives.explorer import catalogue, page

ALL = range(1, catalogue.RANKS + 1)


@pytest.fixture(scope="session", autouse=True)
def remembered(tmp_path_factory):
    """Compute the data of each of the library's algorithms once, for all workers of pytest; all of
    them take ten seconds.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    compute = page.data

    def data(row, ranks=ALL):
        if not row.included:
            return compute(row, ranks)
        name = catalogue.file_name(row).replace("/", "-")
        file = folder / f"{name} {' '.join(map(str, ranks))}.json"
        if not file.exists():
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(compute(row, ranks)), encoding="utf-8")
            part.rename(file)
        return json.loads(file.read_text(encoding="utf-8"))

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
