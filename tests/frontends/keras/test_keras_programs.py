"""The programs of examples/lectures for Keras, on all ranks."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from places import RANK, SIZE

import collectives.keras as hvd

LECTURES = Path(__file__).resolve().parents[3] / "examples" / "lectures"

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of TensorFlow")


@pytest.fixture
def program(monkeypatch, capfd):
    """Run a program with some arguments; return its result and its output."""
    monkeypatch.syspath_prepend(LECTURES)

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        return importlib.import_module(name).main(), capfd.readouterr().out

    return run


def assert_same_on_all_ranks(model):
    weights = np.concatenate([each.ravel() for each in model.get_weights()])
    every = hvd.allgather(weights[np.newaxis])
    assert (every == every[0]).all()


def test_mnist_with_fit(program, tmp_path):
    path = tmp_path / "model.keras"
    model, out = program("mnist_keras", "--epochs", 2, "--steps", 24, "--save", path)
    assert_same_on_all_ranks(model)
    assert ("recognised" in out) == (RANK == 0)
    assert path.exists() == (RANK == 0)


def test_the_scaling_homework(program, tmp_path):
    folder = tmp_path if RANK == 0 else "not used"
    options = "--epochs", 3, "--warmup-epochs", 1, "--folder", folder
    model, out = program("mnist_scaling", *options)
    assert_same_on_all_ranks(model)
    assert model.history.history["val_accuracy"][-1] > 0.5
    if RANK == 0:
        assert f"{SIZE} ranks: " in out
        assert (tmp_path / f"accuracy_{SIZE}.pdf").stat().st_size > 1000


def test_throughput(program, tmp_path):
    path = tmp_path / "throughput.csv"
    small = "--num_steps", 2, "--warmup-steps", 1, "--size", 16, "--width", 4, "--batch-size", 2
    small += "--blocks", 1, 1
    timeline = hvd.broadcast_object(str(tmp_path / "timeline.json"))
    hvd.start_timeline(timeline)
    _, out = program("resnet_throughput", *small, "--append", path)
    hvd.stop_timeline()
    if RANK:
        return
    assert f"{SIZE} ranks: " in out
    plot = tmp_path / "throughput.pdf"
    _, out = program("resnet_throughput", "--table", path, "--plot", plot)
    assert out.split()[:4] == ["ranks", "images/s", "deviation", "efficiency"]
    assert out.split()[7] == "100%"
    assert plot.stat().st_size > 1000
    if SIZE > 1:
        text = Path(timeline).read_text()
        assert json.loads(text)
        assert "allreduce.gradients" in text
