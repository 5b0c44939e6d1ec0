"""Gradients, optimizers of optax and parameters over the ranks."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import collectives as cc
import collectives.horovod as hvd
import collectives.jax as cj
from collectives.compiled.jax import own_errors, reduced
from collectives.errors import ArgumentError, CollectivesError, MismatchError
from collectives.horovod.gradients import GradientOptions

RANK, SIZE = cc.rank(), cc.size()
BOTH = pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])


def tree(rank=RANK):
    layer = {"w": np.full((3, 4), rank + 1.0, "f4"), "b": np.full(4, 2.0 * rank, "f4")}
    small = np.full((2, 2), rank, jnp.bfloat16), np.asarray(rank, "f4")
    made = {"layers": [layer] * 2, "small": small, "none": None, "empty": np.zeros((0, 5), "f4")}
    return jax.tree.map(jnp.asarray, made)


def close(made, expected, rtol=1e-6):
    assert jax.tree.structure(made) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), rtol=rtol)


def mean(factor=1):
    def of_each(*xs):
        return (factor * sum(np.asarray(x, float) for x in xs) / SIZE).astype(xs[0].dtype)

    return jax.tree.map(of_each, *[tree(rank) for rank in range(SIZE)])


@BOTH
def test_gradients_of_any_structure(how):
    average = how(cj.allreduce_gradients)
    for _ in range(2):
        close(average(tree()), mean())
    total = how(lambda t: cj.allreduce_gradients(t, op="sum"))(tree())
    close(total, mean(SIZE), 1e-2)
    assert how(cj.allreduce_gradients)({}) == {}
    with pytest.raises(ArgumentError, match="AVG or SUM"):
        how(lambda t: cj.allreduce_gradients(t, op=cc.MAX))(tree())


@BOTH
def test_long_gradients_are_submitted_by_parts(how):
    shapes = [(600, 1000), (3,), (400, 1000), (700, 1000)]
    parts = [np.full(shape, k, "f4") for k, shape in enumerate(shapes)]
    call = how(cj.allreduce_gradients)
    for _ in range(2):
        made = call([jnp.asarray(x + RANK) for x in parts])
        close(made, [x + (SIZE - 1) / 2 for x in parts])


@BOTH
def test_what_compression_loses_comes_later(how):
    step = how(lambda t: cj.allreduce_gradients(t, compression="topk:0.5", name="top"))
    x = {"a": jnp.array([1.0, 4.0, 2.0, 8.0])}
    total = sum(step(x)["a"] for _ in range(8))
    if SIZE == 1:
        np.testing.assert_allclose(total, 8 * x["a"])
    np.testing.assert_allclose(total, 8 * x["a"], atol=8)
    assert float(step(x)["a"][3]) > 0
    rounded = how(lambda t: cj.allreduce_gradients(t, compression="float16"))(tree())
    close(rounded, mean(), 1e-2)


def problem():
    rng = np.random.default_rng(5)
    x = jnp.asarray(rng.normal(size=(8 * SIZE, 6)), jnp.float32)
    y = jnp.asarray(rng.normal(size=(8 * SIZE, 2)), jnp.float32)
    weights = {"w": jnp.asarray(rng.normal(size=(6, 2)), jnp.float32), "b": jnp.zeros(2)}
    return weights, x, y


def loss_of(weights, x, y):
    return ((x @ weights["w"] + weights["b"] - y) ** 2).mean()


def trained(optimizer, weights, x, y, steps=6):
    @jax.jit
    def step(weights, state, x, y):
        gradients = jax.grad(loss_of)(weights, x, y)
        updates, state = optimizer.update(gradients, state, weights)
        return jax.tree.map(jnp.add, weights, updates), state

    state = optimizer.init(weights)
    for _ in range(steps):
        weights, state = step(weights, state, x, y)
    return weights, state


def test_an_optimizer_of_optax():
    optax = pytest.importorskip("optax")
    weights, x, y = problem()
    mine = slice(RANK, None, SIZE)
    inner = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1))
    made, state = trained(cj.distributed(inner), weights, x[mine], y[mine])
    expected, whole = trained(inner, weights, x, y)
    close(made, expected, 1e-4)
    assert jax.tree.structure(state) == jax.tree.structure(whole)
    for each in jax.tree.leaves(made):
        assert np.array_equal(cc.broadcast(np.asarray(each)), each)


def test_steps_that_are_accumulated():
    optax = pytest.importorskip("optax")
    weights, x, y = problem()
    mine = slice(RANK, None, SIZE)
    steps = optax.MultiSteps(cj.distributed(optax.sgd(0.1)), every_k_schedule=2)
    made, _ = trained(steps, weights, x[mine], y[mine])
    expected, _ = trained(optax.MultiSteps(optax.sgd(0.1), every_k_schedule=2), weights, x, y)
    close(made, expected, 1e-5)


def test_parameters_of_a_rank():
    keys = {"key": jax.random.key(RANK), "count": RANK, "tree": tree()}
    made = cj.broadcast_parameters(keys, root=SIZE - 1)
    close(made["tree"], tree(SIZE - 1))
    assert int(made["count"]) == SIZE - 1
    expected = jax.random.normal(jax.random.key(SIZE - 1))
    assert float(jax.random.normal(made["key"])) == float(expected)


@pytest.mark.several
def test_parameters_that_differ():
    with pytest.raises(MismatchError, match="rank 1 have another structure"):
        cj.broadcast_parameters([jnp.ones(3)] * (2 if RANK == 1 else 1))
    close(cj.broadcast_parameters([jnp.ones(3)]), [jnp.ones(3)])


@pytest.mark.several
@BOTH
def test_gradients_that_differ(how):
    call = how(lambda x: cj.allreduce_gradients([x], name="odd"))
    with pytest.raises(MismatchError, match="differs between ranks"), cj.own_errors():
        call(jnp.ones(3 + RANK))
    close(call(jnp.ones(3)), [jnp.ones(3)])  # later ones are not affected
    with pytest.raises(RuntimeError) as caught:
        call(jnp.ones(5 + RANK))
    assert "MismatchError" in repr(caught.value)  # of JAX, with the text, from a program
    assert "'allreduce.odd' differs between ranks" in str(caught.value)
    with pytest.raises(CollectivesError), cj.own_errors():
        call(jnp.ones(5 + RANK))
    close(call(jnp.ones(3)), [jnp.ones(3)])


@pytest.mark.several
@BOTH
def test_gradients_that_differ_and_are_as_many(how):
    """They are packed into arrays of one size, also one alone."""
    call = how(lambda x, y: cj.allreduce_gradients([x, y], name="packed"))
    with pytest.raises(MismatchError, match=r"packed from \(\d,\), \(\d,\)"), cj.own_errors():
        call(jnp.ones(3 + RANK), jnp.ones(5 - RANK))
    close(call(jnp.ones(3), jnp.ones(1)), [jnp.ones(3), jnp.ones(1)])
    alone = how(lambda x: cj.allreduce_gradients([x], name="alone"))
    with pytest.raises(MismatchError, match=r"packed from \(\d, \d\)"), cj.own_errors():
        alone(jnp.ones((3, 4) if RANK % 2 else (4, 3)))
    close(alone(jnp.ones((3, 4))), [jnp.ones((3, 4))])


@pytest.mark.several
@BOTH
def test_trees_with_other_keys(how):
    """They have as many leaves of the same shapes, which are not averaged with one another."""
    call = how(lambda t: cj.allreduce_gradients(t, name="keys"))
    here, there = {"a": jnp.ones(4), "b": jnp.ones(4)}, {"a": jnp.ones(4), "c": jnp.ones(4)}
    for mine, text in (
        (there if RANK else here, r"with \['c'\], \['a'\]"),
        ({"y" if RANK else "x": jnp.ones(4)}, r"with \['y'\]"),
        ([here] if RANK else {"d": here}, r"with \[0\]\['b'\], \[0\]\['a'\]"),
    ):
        with pytest.raises(MismatchError, match=text), cj.own_errors():
            call(mine)
        close(call(here), here)
    parts = {name: np.ones((300, 400), "f4") for name in ("a", f"b{RANK % 2}", "c")}
    with pytest.raises(MismatchError, match=r"\['b0'\].*\['b1'\]"):
        cj.allreduce_gradients(parts, name="keys")
    close(call(here), here)


@BOTH
def test_horovods_terms(how):
    hvd.init()
    terms = GradientOptions(hvd.Average, 0.5, 4.0, Halved, name="in Horovod's terms")
    xs = [jnp.full(3, RANK + 1.0), jnp.array([4, -4]) * (RANK + 1)]
    made = how(lambda xs: reduced(xs, dataclasses.replace(terms, compression=None)))(xs)
    close(made, [jnp.full(3, float(SIZE + 1)), (xs[1] // (RANK + 1)) * (SIZE + 1)])
    close(how(lambda x: reduced([x], terms))(xs[0]), [jnp.full(3, float(SIZE + 1))])
    if SIZE > 1:
        with pytest.raises(hvd.HorovodInternalError, match="differs"), own_errors():
            how(lambda x: reduced([x], terms))(jnp.ones(3 + RANK))


class Halved:
    """A compressor with Horovod's interface."""

    @staticmethod
    def compress(tensor):
        return tensor.astype(jnp.float16), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor.astype(ctx)
