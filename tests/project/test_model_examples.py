"""The examples whose models are divided or copied over the ranks, and the table of pi."""

import importlib.util
import re
import sys

import pytest
from jobs import run
from programs import EXAMPLES, example
from usual import FULL

pytestmark = pytest.mark.any_mpi


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


def needs(module):
    """Skip a test where a module is not installed."""
    found = importlib.util.find_spec(module)
    is_there = found is not None and found.origin is not None  # a folder of tests has its name
    return pytest.mark.skipif(not is_there, reason=f"{module} is not installed")


def difference(text):
    """Return by how much the result differs from that of one process."""
    (number,) = re.findall(r"those of one process by (\S+)", text)
    return float(number)


@needs("jax")
def test_jax_has_the_parameters_of_one_process(monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # to compile takes most of the time
    losses = set()
    for ranks in (1, 2) if FULL else (2,):
        out = example("jax_mnist.py", ranks, "--epochs", "1")
        assert "all ranks have equal parameters" in out
        assert difference(out) < 1e-4  # sums of float32 in another order, over 31 steps
        losses.add(re.search(r"epoch 1: loss (\d\.\d\d)", out)[1])
    assert len(losses) == 1


@needs("torch")
@pytest.mark.parametrize("ranks", [2, *map(slow, (1, 4))])
def test_a_network_that_is_cut_in_space(ranks):
    out = example("lectures/halo_cnn.py", ranks)
    assert len(re.findall(r"rank \d has rows", out)) == ranks
    losses = re.findall(r"loss (\S+), in one process (\S+)\n", out)
    assert len(losses) == 3
    assert all(mine == one for mine, one in losses)
    assert float(losses[-1][0]) < float(losses[0][0])
    assert difference(out) < 1e-12


@pytest.mark.parametrize("ranks", [2, *map(slow, (1, 4))])
def test_a_recurrent_network_with_a_layer_on_each_rank(ranks, tmp_path):
    picture = tmp_path / "rnn.svg"
    options = ["--picture", picture] if importlib.util.find_spec("matplotlib") else []
    out = example("lectures/layer_per_rank_rnn.py", ranks, "--length", "6", "--cell", "4", *options)
    assert difference(out) < 1e-12
    rows = re.findall(r"^rank \d  ([#.]{60})$", out, re.MULTILINE)
    assert len(rows) == ranks
    assert all("#" in row for row in rows)
    if options:
        assert picture.read_text().count("<svg") == 1


def test_the_table_of_pi():
    program = EXAMPLES / "lectures" / "pi_table.py"
    command = [sys.executable, program, "--points", "20000", "--ranks", "1", "2"]
    result = run(command)
    assert result.status == 0, result
    rows = [line.split() for line in result.out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["1", "2"]
    for row in rows:
        assert abs(float(row[1]) - 3.14159) < 5 * 1.65 / 20000**0.5
