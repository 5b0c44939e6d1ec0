"""The programs of examples/lectures for TensorFlow, on all ranks."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from places import RANK

LECTURES = Path(__file__).resolve().parents[3] / "examples" / "lectures"


@pytest.fixture
def program(monkeypatch, capfd):
    """Run a program with some arguments; return what it prints, and its names."""
    monkeypatch.syspath_prepend(LECTURES)

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        names = runpy.run_path(str(LECTURES / name), run_name="__main__")
        return capfd.readouterr().out, names

    return run


def test_cifar100_with_a_tape(program):
    tf.keras.utils.set_random_seed(RANK)
    out, names = program("cifar100_tape.py", "--steps", "8", "--batch", "8")
    assert ("saved" in out) == (RANK == 0)
    assert names["optimizer"].iterations.numpy() == 8 // names["hvd"].size()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("mirrored.py", ("ring",)),
        ("one_device.py", ()),
        ("hierarchical_copy.py", ()),
        ("multi_worker.py", ()),
        ("central_storage.py", ()),
    ],
)
def test_strategies(program, name, arguments):
    out, names = program(name, *arguments)  # it compares the weights itself
    assert ("the same weights on all ranks" in out) == (RANK == 0)
    result = names.get("accuracy") or names["strategies"].accuracy(names["model"])
    assert result > 0.8
