"""The comment of `sampling` on the shares of the tests is true."""

from __future__ import annotations

import pytest
import sampling

USUAL = {("mpich", 1): (1, 2), ("mpich", 2): (2, 4), ("mpich", 4): (6, 6)}
USUAL |= {("openmpi", 2): (6, 6), ("openmpi", 5): (6, 6)}


class Item:
    """A test as pytest has it."""

    def __init__(self, folder, name):
        self.path = sampling.TESTS / folder / name.partition("::")[0]
        self.nodeid = name
        self.mark = "each_mpi" if folder == "process" else None

    def get_closest_marker(self, name):
        return name if name == self.mark else None


def made(folder, cases):
    """Return tests as pytest has them: some with that many cases."""
    return [
        Item(folder, f"test_{number % 2}.py::test_{number}[{case}]")
        for number in range(2400 // cases)
        for case in range(cases)
    ]


@pytest.fixture(autouse=True)
def usual(monkeypatch):
    monkeypatch.setattr(sampling, "FULL", False)


@pytest.mark.parametrize("cases", [1, sampling.MANY])
def test_ranks_have_different_cases(monkeypatch, cases):
    items = made("mpi", cases)
    runs = {}
    for (mpi, ranks), shares in USUAL.items():
        monkeypatch.setattr(sampling.Here, "mpi", mpi)
        monkeypatch.setattr(sampling.Here, "ranks", ranks)
        kept, others = sampling.split(items, "0/1")
        assert len(kept) + len(others) == len(items)
        runs[mpi, ranks] = {each.nodeid for each in kept}
        assert len(kept) == pytest.approx(len(items) / shares[cases > 1], rel=0.2)
    assert not runs["mpich", 2] & runs["openmpi", 2]
    somewhere = set().union(*runs.values())
    assert len(somewhere) == pytest.approx(len(items) * (11 / 12 if cases > 1 else 1), rel=0.05)


@pytest.mark.parametrize("cases", [1, sampling.MANY])
def test_each_mpi_has_its_share(cases):
    items = made("process", cases)
    halves = [{each.nodeid for each in sampling.split(items, f"{k}/2")[0]} for k in range(2)]
    assert not halves[0] & halves[1]
    wanted = len(items) / (1 + (cases > 1))
    assert sum(map(len, halves)) == pytest.approx(wanted, rel=0.1)


def test_a_file_that_is_run_alone_is_run_whole():
    items = [each for each in made("mpi", 8) if each.path.name == "test_1.py"]
    assert sampling.split(items, "0/1") == (items, [])
