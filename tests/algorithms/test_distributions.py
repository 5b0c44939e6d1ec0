"""Algorithms of other distributions, which register them by entry points."""

import os
import subprocess
import sys

import pytest

GOOD = """
from collectives.algorithms import Exchange, algorithm

@algorithm("broadcast")
def in_turn(r, p, root):
    "The root sends to one rank after the other."
    for t in range(1, p):
        peer = (root + t) % p
        if r == root:
            yield Exchange(send=(peer, 0))
        elif r == peer:
            yield Exchange(recv=(root, 0))
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a program where some distributions are installed."""

    def runner(text, **modules):
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source)
            info = tmp_path / f"{name}-2.1.dist-info"
            info.mkdir()
            title = name.replace("_", "-")
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {title}\nVersion: 2.1\n")
            (info / "entry_points.txt").write_text(f"[collectives.algorithms]\nmine = {name}\n")
        path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.run(
            [sys.executable, *text],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return runner


def test_an_installed_algorithm_is_listed_and_proven(run):
    done = run(["-m", "collectives", "list", "broadcast"], my_algorithms=GOOD)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "of my-algorithms 2.1; not included: proven on first use" in done.stdout


def test_it_is_loaded_when_a_program_asks_for_it(run):
    program = """
import sys
from collectives.algorithms import get, names
from collectives.check import check
get("broadcast", "tree")
assert "my_algorithms" not in sys.modules
assert check("broadcast", "in_turn", p=4, root=1).depth == 3
assert get("broadcast", "in_turn").distribution == "my-algorithms 2.1"
assert get("broadcast", "tree").distribution == ""
assert "in_turn" in names("broadcast")
"""
    done = run(["-W", "error", "-c", program], my_algorithms=GOOD)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nosuchmodule", "ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError: invalid syntax"),
        (GOOD.replace("in_turn", "tree"), "broadcast already has an algorithm 'tree'"),
    ],
)
def test_a_failure_is_a_warning_that_names_the_distribution(run, source, reason):
    program = """
import collectives.algorithms as a
print(a.get("broadcast", "in_turn").distribution, a.names("broadcast")[:2])
"""
    done = run(["-c", program], a_broken=source, my_algorithms=GOOD)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "my-algorithms 2.1 ['flat', 'tree']\n"
    assert "CollectivesWarning: the algorithms of a-broken 2.1 are missing, because a_broken " in (
        done.stderr
    )
    assert reason in done.stderr
    assert done.stderr.count("CollectivesWarning") == 1
