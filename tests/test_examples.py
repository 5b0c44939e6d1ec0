"""The examples, as a reader would run them."""

import re
import sys
from pathlib import Path

import pytest
from launch import environment_of, on_ranks

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
if not (environment_of(sys.executable) / "mpiexec").exists():
    pytest.skip("no mpiexec beside this Python", allow_module_level=True)


def test_pi_depends_on_the_seed_alone():
    points = 700_001  # two whole chunks and a part of one
    lines = {}
    for ranks in (1, 2, 3):
        for seed in (1, 2):
            result = on_ranks(
                sys.executable,
                ranks,
                EXAMPLES / "pi.py",
                "--points",
                str(points),
                "--seed",
                str(seed),
            )
            assert result.status == 0, result
            pi, timing = result.out.strip().splitlines()
            assert re.fullmatch(rf"{points} points on {ranks} ranks? took \d+\.\d+ s", timing)
            lines.setdefault(seed, set()).add(pi)
    assert [len(each) for each in lines.values()] == [1, 1]
    assert lines[1] != lines[2]
    for each in lines.values():
        estimate = float(re.match(r"pi is about (\d\.\d+);", each.pop()).group(1))
        assert abs(estimate - 3.14159265) < 5 * 1.65 / points**0.5


def test_pi_with_fewer_chunks_than_ranks():
    result = on_ranks(sys.executable, 3, EXAMPLES / "pi.py", "--points", "10")
    assert result.status == 0, result
    assert "10 points on 3 ranks" in result.out


def test_lecture():
    result = on_ranks(sys.executable, 4, EXAMPLES / "lecture.py")
    assert result.status == 0, result
    rows = dict(re.findall(r"^(\w+) +\[37 37 36 43\] +(.*)$", result.out, re.MULTILINE))
    from collectives import algorithms

    assert list(rows) == algorithms.names("allreduce")
    # Rounds, messages, numbers sent in all and by the busiest worker.
    assert rows["ring"].split() == ["6", "24", "24", "6"]
    assert rows["master_worker"].split() == ["2", "6", "24", "12"]
    assert rows["all_to_all"].split() == ["1", "12", "48", "12"]


def test_lecture_on_another_number_of_ranks():
    result = on_ranks(sys.executable, 2, EXAMPLES / "lecture.py")
    assert result.status != 0
    assert "the lecture has 4 workers and this run has 2" in result.err
