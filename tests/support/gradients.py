"""The promises of all front ends on gradients: one test body for each promise.

A front end has a fixture `front_end`, with ``hvd`` and ``reduced(gradients, **options)``: it has
its optimizer or tape reduce arrays as gradients of this rank, and returns those of all ranks.
Gradients may be `Rows`; ``groups`` may be a function of the variables.

A front end whose collectives are differentiable has a fixture `differentiable`, with `collectives`,
the functions of `COLLECTIVES` that it has, and ``derivatives(function, x)`` (see
`test_derivatives_are_those_of_one_process`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from places import RANK, SIZE

from collectives import background
from collectives.reductions import AVG

__all__ = [
    "recorded",
    "test_bools_are_no_splits",
    "test_groups_are_reduced_together",
    "test_predivided_gradients_are_averaged",
    "test_rows_are_not_compressed",
    "test_seeds_stay_what_they_are",
    "test_what_is_needed_first_comes_first",
]


class Rows(NamedTuple):
    """A gradient that lists some rows only."""

    values: np.ndarray
    indices: list[int]
    shape: tuple[int, ...]


class Submission(NamedTuple):
    """The calls that were submitted to the background."""

    kind: str
    dtype: str
    options: dict[str, Any]


@pytest.fixture
def recorded(monkeypatch):
    """Return a list, to which each later submission is added."""
    found: list[Submission] = []
    plain = background.submit

    def submit(kind, x=None, *arrays, **options):
        dtype = str(getattr(x, "dtype", None)).removeprefix("torch.")
        found.append(Submission(kind, dtype, options))
        return plain(kind, x, *arrays, **options)

    monkeypatch.setattr(background, "submit", submit)
    return found


def means(found):
    """Return the submissions of gradients: what else is reduced is added."""
    return [each for each in found if each.kind == "allreduce" and each.options["op"] is AVG]


def some(count, rank=RANK):
    return [np.full((2, 3), 10.0 * k + rank, np.float32) for k in range(count)]


@pytest.mark.several
def test_predivided_gradients_are_averaged(front_end, recorded):
    """Horovod multiplies by 1 / f before, and by f and 1 / size afterwards."""
    third = np.float32(1 / 3)
    made = front_end.reduced(some(1), gradient_predivide_factor=3.0)
    (each,) = means(recorded)
    assert (each.options["prescale"], each.options["postscale"]) == (float(third), 3.0)
    np.testing.assert_allclose(made[0], np.mean([some(1, k)[0] for k in range(SIZE)], 0), rtol=1e-6)
    with pytest.raises(ValueError, match="op != Average"):
        front_end.reduced(some(1), gradient_predivide_factor=3.0, op=front_end.hvd.Sum)


@pytest.mark.several
def test_rows_are_not_compressed(front_end, recorded):
    """Horovod joins the rows of all ranks as they are."""
    if not front_end.has_rows:
        pytest.skip("gradients are dense")
    value = np.float32(1 + 2**-20)  # float16 has no such number
    mine = Rows(np.full((1, 2), value), [RANK], (SIZE + 1, 2))
    options = {"op": front_end.hvd.Sum, "compression": front_end.hvd.Compression.fp16}
    made = front_end.reduced([mine], **options)
    joined = [each.dtype for each in recorded if each.kind == "allgatherv"]
    assert "float32" in joined
    assert "float16" not in joined
    assert (made[0] == [[value] * 2] * SIZE + [[0, 0]]).all()


@pytest.mark.several
def test_groups_are_reduced_together(front_end, recorded):
    mean = np.mean([some(4, k) for k in range(SIZE)], 0)

    def count(**options):
        recorded.clear()
        np.testing.assert_allclose(front_end.reduced(some(4), **options), mean, rtol=1e-6)
        return len(means(recorded))

    with warnings.catch_warnings():
        warnings.filterwarnings("error", "num_groups")
        assert count() == 1
        assert count(groups=2) == 2
        assert count(groups=3) == 3
        assert count(groups=lambda variables: [[variables[3], variables[0]]]) == 3
    with pytest.warns(DeprecationWarning, match="num_groups= is deprecated") as caught:
        assert count(num_groups=2) == 2
    assert any(each.filename.endswith("_gradients.py") for each in caught)  # that of the caller


@pytest.mark.several
def test_what_is_needed_first_comes_first(front_end, recorded):
    """The last gradients, which are there first, are submitted first, and the first ones run first
    among those that wait.
    """
    front_end.reduced(some(4), groups=4)
    assert [each.options["priority"] for each in means(recorded)] == [-3, -2, -1, 0]


def test_seeds_stay_what_they_are(front_end):
    """Ranks with the same state of random numbers would drop the same units."""
    for seed, read in front_end.seeds():
        before = np.array(read(seed))
        front_end.hvd.broadcast_variables([seed], root_rank=SIZE - 1)
        assert np.array_equal(read(seed), before)


def test_bools_are_no_splits(front_end):
    """A mask is no list of counts."""
    if not hasattr(front_end.hvd, "alltoall"):
        pytest.skip("there is no alltoall")
    for splits in ([True] * SIZE, front_end.tensor([True] * SIZE)):
        with pytest.raises(ValueError, match="splits"):
            front_end.hvd.alltoall(front_end.tensor([1.0] * SIZE), splits=splits)


# -- derivatives of collectives --------------------------------------------------------------------
#
# All of them are linear. On one process, each is a matrix, from the elements of all ranks to the
# results of all ranks. The gradient is that of the sum of the losses of all ranks.


class Collective(NamedTuple):
    """A collective as a function of the arrays of all ranks, with the results of all ranks."""

    results: Callable[[np.ndarray], Any]
    is_averaged: bool = False  # its gradient is divided by the number of ranks, as in Horovod


SHAPE = (2 * SIZE, 2)  # of a rank's array
SPLITS = [[(sender + k) % SIZE + 1 for k in range(SIZE)] for sender in range(SIZE)]  # of alltoall
WHOLE = SIZE * (SIZE + 1) // 2  # rows that a rank sends with SPLITS


def _moved(every):
    """Return what alltoall with SPLITS gives to each rank."""
    parts = [np.split(x, np.cumsum(splits)) for x, splits in zip(every, SPLITS, strict=True)]
    return [np.concatenate([each[k] for each in parts]) for k in range(SIZE)]


COLLECTIVES = {
    "sum": Collective(lambda every: [every.sum(0)] * SIZE),
    "scaled mean": Collective(lambda every: [1.5 * every.mean(0)] * SIZE),
    "group of sums": Collective(lambda every: [every.sum(0)] * SIZE),
    "group of means": Collective(lambda every: [every.mean(0)] * SIZE),
    "scattered sum": Collective(lambda every: np.array_split(every.sum(0), SIZE)),
    "scattered mean": Collective(lambda every: np.array_split(1.5 * every.mean(0), SIZE)),
    "scattered uneven sum": Collective(lambda every: np.array_split(every[:, 1:].sum(0), SIZE)),
    "joined": Collective(lambda every: [every] * SIZE),
    "joined mean": Collective(lambda every: [every] * SIZE, is_averaged=True),
    "sent": Collective(lambda every: [every[SIZE - 1]] * SIZE),
    "sent mean": Collective(lambda every: [every[SIZE - 1]] * SIZE, is_averaged=True),
    "transposed": Collective(lambda every: every.reshape(SIZE, SIZE, -1).swapaxes(0, 1)),
    "moved": Collective(lambda every: _moved(np.tile(every, (1, SIZE, 1))[:, : WHOLE + 1])),
}


def of_horovod(hvd, tile):
    """Return the collectives of a front end with Horovod's names; ``tile(x, n)`` repeats rows."""
    scales = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    return {
        "sum": lambda x: hvd.allreduce(x, op=hvd.Sum),
        "scaled mean": lambda x: hvd.allreduce(x, op=hvd.Average, **scales),
        "group of sums": lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[1],
        "group of means": lambda x: hvd.grouped_allreduce([x, x], op=hvd.Average)[0],
        "scattered sum": lambda x: hvd.reducescatter(x, op=hvd.Sum),
        "scattered mean": lambda x: hvd.grouped_reducescatter([x], op=hvd.Average, **scales)[0],
        "scattered uneven sum": lambda x: hvd.reducescatter(x[1:], op=hvd.Sum),
        "joined mean": lambda x: hvd.allgather(x),
        "sent mean": lambda x: hvd.broadcast(x, SIZE - 1),
        "transposed": lambda x: hvd.alltoall(x),
        "moved": lambda x: hvd.alltoall(tile(x, SIZE)[: WHOLE + 1], splits=SPLITS[RANK])[0],
    }


def _matrix(results):
    """Return the matrix of a linear collective."""
    basis = np.eye(SIZE * np.prod(SHAPE)).reshape(-1, SIZE, *SHAPE)
    return np.stack([np.concatenate([y.ravel() for y in results(x)]) for x in basis], axis=1)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_derivatives_are_those_of_one_process(differentiable, name):
    """The loss of a rank is the sum of ``function(x**2)**3``. The second derivative is the gradient
    of the sum of the squares of its gradient.
    """
    function = differentiable.collectives.get(name)
    if function is None:
        pytest.skip("it has no such collective")
    x = np.random.default_rng(5).normal(size=(SIZE, *SHAPE))
    results, is_averaged = COLLECTIVES[name]
    forth = _matrix(results)
    back = forth.T / (SIZE if is_averaged else 1)
    u = x.ravel()
    z = forth @ u**2
    cubed = back @ (3 * z**2)
    first = 2 * u * cubed
    second = 4 * (cubed * first + u * (back @ (6 * z * (back.T @ (2 * u * first)))))
    expected = [each.reshape(x.shape)[RANK] for each in (first, second)]
    made = differentiable.derivatives(function, x[RANK])
    for each, right in zip(made, expected, strict=True):
        assert each.dtype == np.float64
        np.testing.assert_allclose(each, right, rtol=1e-10, atol=1e-10 * np.abs(right).max())
