"""Collectives on arrays of JAX: results, transformations, errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gradients import test_derivatives_are_those_of_one_process as test_derivatives  # noqa: F401

import collectives as cc
import collectives.jax as cj
from collectives.errors import ArgumentError, MismatchError, UnsupportedTypeError

RANK, SIZE = cc.rank(), cc.size()
DTYPES = [jnp.float32, jnp.float16, jnp.bfloat16, jnp.complex64, jnp.int32, jnp.uint8]
BOTH = pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])


def mine(shape, dtype=np.float32, rank=RANK):
    """Return what a rank passes: small integers, of which all dtypes have the sum."""
    count = int(np.prod(shape))
    return jnp.asarray(np.arange(rank, rank + count).reshape(shape).astype(dtype))


def every(shape, dtype=np.float32):
    return np.stack([np.asarray(mine(shape, dtype, rank)) for rank in range(SIZE)])


def equal(result, expected):
    assert isinstance(result, jax.Array)
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    assert np.array_equal(np.asarray(result), np.asarray(expected))


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_dtypes(how, dtype):
    def calls(x):
        moved = cj.allgather(x), cj.alltoall(x), cj.broadcast(x, root=SIZE - 1)
        return cj.allreduce(x), cj.reduce_scatter(x), *moved

    shape = (SIZE, 2)
    total, part, joined, moved, sent = how(calls)(mine(shape, dtype))
    expected = sum(every(shape, int)).astype(dtype)
    equal(total, expected)
    equal(part, expected[RANK : RANK + 1])
    equal(joined, every(shape, dtype))
    equal(moved, every(shape, dtype)[:, RANK])
    equal(sent, mine(shape, dtype, SIZE - 1))


@BOTH
@pytest.mark.parametrize("shape", [(), (0, 3), (3,)])
def test_shapes(how, shape):
    total, joined, sent = how(lambda x: (cj.allreduce(x), cj.allgather(x), cj.broadcast(x)))(
        mine(shape)
    )
    equal(total, every(shape).sum(0))
    equal(joined, every(shape))
    equal(sent, mine(shape, rank=0))


@BOTH
def test_operations_and_what_can_be_an_array(how):
    x = mine((2,)) + 1
    equal(how(lambda x: cj.allreduce(x, op=cc.MAX))(x), mine((2,), rank=SIZE - 1) + 1)
    equal(how(lambda x: cj.allreduce(x, op="avg"))(x), every((2,)).mean(0) + 1)
    scaled = how(lambda x: cj.allreduce(x, prescale=0.5, postscale=4.0))(x)
    equal(scaled, 2 * (every((2,)) + 1).sum(0))
    equal(how(lambda: cj.allreduce(x))(), cj.allreduce(x))  # a constant of the program
    equal(how(lambda: cj.allreduce(3))(), np.asarray(3 * SIZE, np.int32))
    equal(how(lambda: cj.allreduce([1.5]))(), np.asarray([1.5 * SIZE], np.float32))


def test_parts_that_no_axis_gives():
    x = mine((3, SIZE))  # rank 0 gets the first three elements, and so on
    parts = every((3, SIZE)).sum(0).reshape(SIZE, 3)
    equal(jax.jit(cj.reduce_scatter)(x), parts[RANK] if 3 % SIZE else parts[RANK].reshape(-1, SIZE))
    moved = every((3, SIZE)).reshape(SIZE, SIZE, 3)[:, RANK].reshape(3, SIZE)
    equal(jax.jit(cj.alltoall)(x), moved)


def test_a_communicator_of_some_ranks():
    part = cc.world().split(RANK % 2)
    total = jax.jit(lambda x: cj.allreduce(x, comm=part))(jnp.ones(2))
    equal(total, jnp.full(2, float(part.size)))
    part.free()


@BOTH
def test_barrier(how):
    assert how(lambda: cj.barrier())() is None


# -- transformations -----------------------------------------------------------------------------


SCALES = {"prescale": 0.5, "postscale": 3.0}
CALLS = {
    "sum": cj.allreduce,
    "scaled mean": lambda x: cj.allreduce(x, op=cc.AVG, **SCALES),
    "scattered sum": cj.reduce_scatter,
    "scattered mean": lambda x: cj.reduce_scatter(x, op=cc.AVG, **SCALES),
    "joined": cj.allgather,
    "sent": lambda x: cj.broadcast(x, root=SIZE - 1),
    "transposed": cj.alltoall,
}


class Collectives:
    collectives = CALLS

    def __init__(self, how):
        self._how = how

    def derivatives(self, function, x):
        def loss(x):
            return (function(x**2) ** 3).sum()

        def both(x):
            first, back = jax.vjp(jax.grad(loss), x)
            return first, *back(2 * first)

        with jax.enable_x64(True):
            return [np.asarray(each) for each in self._how(both)(jnp.asarray(x))]


@pytest.fixture(params=[lambda f: f, jax.jit], ids=["eager", "jit"])
def differentiable(request):
    return Collectives(request.param)


@pytest.mark.parametrize("name", ["sum", "scattered sum", "joined", "transposed", "sent"])
def test_a_batch_is_one_call(name):
    call = CALLS[name]
    xs = jnp.stack([mine((SIZE, 2)) * k for k in (1, 2, 3)])
    expected = np.stack([call(x) for x in xs])
    swapped = jnp.swapaxes(xs, 0, 1)
    for how in (lambda f: f, jax.jit):
        with cc.world().trace() as trace:
            equal(how(jax.vmap(call))(xs), expected)
        assert len(trace) == 1
    equal(jax.vmap(call, in_axes=1, out_axes=1)(swapped), expected.swapaxes(0, 1))
    equal(jax.vmap(jax.vmap(call))(xs[None]), expected[None])

    grad = jax.grad(lambda x: (call(x) ** 2).sum())
    one = np.stack([grad(x) for x in xs])
    np.testing.assert_allclose(jax.jit(jax.vmap(grad))(xs), one, rtol=1e-6)


def test_integers_and_auxiliary_results_need_no_gradient():
    def function(x):
        count = cj.allreduce(jnp.array([len(x)]))
        most = cj.allreduce(x, op=cc.MAX)  # without a gradient, and none is asked for
        return (cj.allreduce(x) / count).sum(), most

    (_, most), grad = jax.jit(jax.value_and_grad(function, has_aux=True))(mine((2,)))
    equal(most, mine((2,), rank=SIZE - 1))
    np.testing.assert_allclose(grad, jnp.full(2, 0.5))
    with pytest.raises(ArgumentError, match="allreduce with op MAX has no gradient"):
        jax.grad(lambda x: cj.allreduce(x, op=cc.MAX).sum())(mine((2,)))


def test_loops_and_branches():
    @jax.jit
    def scanned(x):
        def body(carry, k):
            return cj.allreduce(carry, op=cc.AVG) + k, cj.allgather(carry[0])

        return jax.lax.scan(body, x, jnp.arange(3.0))

    last, seen = scanned(mine((2,)))
    mean = every((2,)).mean(0)
    equal(last, mean + 3)
    assert seen.shape == (3, SIZE)
    np.testing.assert_allclose(seen[2], jnp.full(SIZE, mean[0] + 1))
    grad = jax.jit(jax.grad(lambda x: scanned(x)[0].sum()))(mine((2,)))
    np.testing.assert_allclose(grad, jnp.ones(2), rtol=1e-6)

    @jax.jit
    def branch(flag, x):
        return jax.lax.cond(flag, cj.allreduce, lambda x: x * 2, x)

    equal(branch(True, mine((2,))), every((2,)).sum(0))
    equal(branch(False, mine((2,))), mine((2,)) * 2)
    grad = jax.grad(lambda x: branch(True, x).sum())(mine((2,)))
    equal(grad, jnp.full(2, float(SIZE)))

    @jax.jit
    def looped(x):
        return jax.lax.while_loop(lambda x: x[0] < 100, lambda x: cj.allreduce(x) + 50, x)

    equal(looped(jnp.ones(1)), looped(jnp.ones(1)))


def test_programs_and_eager_calls_run_in_their_order():
    @jax.jit
    def program(x):
        for _ in range(5):
            x = cj.allreduce(x, op=cc.AVG) + 1
        return x

    other = jax.jit(lambda x: cj.allreduce(x, op=cc.MAX))
    x = mine((4,))
    for _ in range(5):
        started = program(x)
        equal(cj.allreduce(x), every((4,)).sum(0))
        equal(other(x), mine((4,), rank=SIZE - 1))
        np.testing.assert_allclose(started, every((4,)).mean(0) + 5, rtol=1e-6)


def test_buffers_may_be_given_away():
    step = jax.jit(lambda x: cj.allreduce(x) * 0.5, donate_argnums=0)
    x = jnp.full(1000, 2.0)
    for _ in range(3):
        x = step(x)
    equal(x, jnp.full(1000, 2.0 * (SIZE / 2) ** 3))


# -- errors --------------------------------------------------------------------------------------


@BOTH
def test_arguments_are_checked_when_a_function_is_traced(how):
    with pytest.raises(UnsupportedTypeError, match="AVG"):
        how(lambda x: cj.allreduce(x, op=cc.AVG))(jnp.arange(3))
    with pytest.raises(ArgumentError, match="root"):
        how(lambda x: cj.broadcast(x, root=SIZE))(jnp.ones(3))
    with pytest.raises(ArgumentError, match="op is 'median'"):
        how(lambda x: cj.allreduce(x, op="median"))(jnp.ones(3))
    with pytest.raises(ArgumentError, match="comm is 'all'"):
        how(lambda x: cj.allreduce(x, comm="all"))(jnp.ones(3))
    if SIZE > 1:
        with pytest.raises(ArgumentError):
            how(cj.reduce_scatter)(jnp.ones(SIZE + 1))
        with pytest.raises(ArgumentError):
            how(jax.vmap(cj.alltoall))(jnp.ones((SIZE, SIZE + 1)))
    with pytest.raises(UnsupportedTypeError, match="key_data"):
        how(cj.broadcast)(jax.random.key(0))


@pytest.mark.several
def test_the_error_of_the_library_reaches_the_program():
    part = cc.world().dup()
    wrong = jax.jit(lambda x: cj.allreduce(x, comm=part))(jnp.ones(3)) if SIZE == 1 else None
    assert wrong is None
    with pytest.raises(MismatchError, match="allreduce"), cj.own_errors():
        jax.jit(lambda x: cj.allreduce(x, comm=part))(jnp.ones(3 + RANK))
    total = jax.jit(cj.allreduce)(jnp.ones(3))  # on another communicator
    equal(total, jnp.full(3, float(SIZE)))
