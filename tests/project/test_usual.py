"""The cases that a usual run has, and the errors that its summary names."""

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import jobs
import pytest
import usual

SUPPORT = Path(usual.__file__).parent
_spec = importlib.util.spec_from_file_location("whole_run", SUPPORT.parent / "run.py")
RUN = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(RUN)

BOTH = [(n, dtype) for n in ("0", "5") for dtype in ("bool", "float32", "int8")]


class Item:
    """A test as pytest has it."""

    def __init__(self, values, marks, name="test"):
        self.nodeid = self.path = f"{name}[{'-'.join(values)}]" if values else name
        self.callspec = SimpleNamespace(_idlist=values)
        self.marks = marks

    def iter_markers(self, name=None):
        return (mark for mark in self.marks if name in (None, mark.name))


def kept(monkeypatch, *marks, mpi="mpich", ranks=0):
    """Return the values of the cases that are run of a test with two parameters."""
    monkeypatch.setattr(usual, "FULL", False)
    monkeypatch.setattr(usual.Here, "mpi", mpi)
    monkeypatch.setattr(usual.Here, "ranks", ranks)
    items = [Item(values, [mark.mark for mark in marks]) for values in BOTH]
    runs, others = usual.split(items)
    assert sorted(map(id, runs + others)) == sorted(map(id, items))
    return [item.callspec._idlist for item in runs]


def test_one_parameter_changes_at_a_time(monkeypatch):
    changed_twice = [("5", "float32"), ("5", "int8")]
    assert kept(monkeypatch) == [case for case in BOTH if case not in changed_twice]
    assert kept(monkeypatch, pytest.mark.usual(5)) == BOTH
    assert kept(monkeypatch, pytest.mark.usual("int8")) == [
        case for case in BOTH if case != ("5", "float32")
    ]


def test_slow_ones_are_left_out(monkeypatch):
    assert kept(monkeypatch, pytest.mark.slow) == []


@pytest.mark.parametrize(
    ("mpi", "ranks", "count"),
    [("mpich", 1, 1), ("mpich", 2, 4), ("mpich", 3, 1), ("openmpi", 2, 1)],
)
def test_ranks_that_no_mark_names_have_the_first_case(monkeypatch, mpi, ranks, count):
    assert len(kept(monkeypatch, mpi=mpi, ranks=ranks)) == count
    assert len(kept(monkeypatch, pytest.mark.ranks(2, 3), mpi=mpi, ranks=ranks)) == (
        0 if ranks == 1 else 4
    )


def test_an_mpi_can_be_the_usual_one(monkeypatch):
    monkeypatch.setattr(usual, "launched", lambda: "openmpi")
    assert kept(monkeypatch, pytest.mark.each_mpi("mpich")) == []
    assert len(kept(monkeypatch, pytest.mark.each_mpi("openmpi"))) == 4
    assert len(kept(monkeypatch, pytest.mark.each_mpi)) == 4
    assert kept(monkeypatch, pytest.mark.any_mpi, mpi="openmpi", ranks=2) == []


def test_a_full_run_has_all(monkeypatch):
    items = [Item((), [pytest.mark.slow.mark], name) for name in "ab"]
    monkeypatch.setattr(usual, "FULL", True)
    assert usual.split(items) == (items, [])


def test_a_file_alone_is_whole(monkeypatch):
    items = [Item((), [pytest.mark.slow.mark]) for _ in range(2)]
    monkeypatch.setattr(usual, "FULL", False)
    assert usual.split(items) == (items, [])


def test_what_shares_a_cluster_or_a_page_runs_together():
    ray, course, page, other = map(
        usual.together,
        [
            "tests/engines/test_ray.py::test_one",
            "explorer/test_course.py::test_three[a/b::c]",
            "tests/explorer/test_explorer_page.py::test_four",
            "tests/core/test_ring.py::test_five[engines/test_ray]",
        ],
    )
    assert ray == usual.together("tests/engines/test_ray.py::test_two") != course
    assert course == page
    assert other == "tests/core/test_ring.py::test_five[engines/test_ray]"


FAILS = """
def test_it():
    raise ValueError("a text\\nof two lines, " + "and long " * 50)
"""


def test_the_summary_names_the_error_of_a_rank(tmp_path):
    (tmp_path / "test_one.py").write_text(FAILS)
    (tmp_path / "conftest.py").write_text("from together import *\n")
    env = {"PYTHONPATH": str(SUPPORT), "TORCHELASTIC_RUN_ID": "1", "RANK": "1", "WORLD_SIZE": "2"}
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "test_one.py"]
    result = jobs.run(words, env=env, cwd=tmp_path)
    assert result.status == 1
    (line,) = RUN.failures(result.err)
    assert line.startswith(
        "  [rank 1 of 2] test_one.py::test_it: failed in call: ValueError: a text of two lines, and"
    )
    assert line.endswith("[...]")


def test_the_summary_repeats_the_command_of_a_suite(capfd):
    run = RUN.Run({"mpich": Path(sys.prefix)}, None)
    env = {"COLLECTIVES_TEST_HOSTED": "1", "PATH": "/usr/bin"}
    with pytest.raises(RUN.Failure) as caught:
        run.command(sys.executable, "-c", "exit('ERROR of it')", env=env)
    first, second = str(caught.value).splitlines()
    assert re.fullmatch(r"exit status 1: COLLECTIVES_TEST_HOSTED=1 \S*python\S* -c exit.*", first)
    assert second == "  ERROR of it"
