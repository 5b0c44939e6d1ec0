"""With ``bits="size"``, an element has the same bits alone and with others.

On two ranks it always has. On three, these tests fail without.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from any_size import FEW, contribution, folded, same

import collectives as cc
import collectives.jax as cj
from collectives.errors import ArgumentError, MismatchError

RANK, SIZE = cc.rank(), cc.size()
BOTH = pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
X = jnp.asarray(contribution(RANK))
TOTAL = folded(SIZE)


@pytest.fixture(scope="module")
def comm():
    return cc.world().dup(bits="size")


def hold(results, total=TOTAL):
    for got, part in zip(results, FEW, strict=True):
        same(np.asarray(got), total[part])


@BOTH
def test_calls(how, comm):
    parts = [X[part] for part in FEW]
    hold([how(lambda x: cj.allreduce(x, bits="size"))(each) for each in parts])
    hold([how(lambda x: cj.allreduce(x, comm=comm))(each) for each in parts])
    rows = X[: 3000 * SIZE]
    got = how(lambda x: cj.reduce_scatter(x, bits="size"))(rows)
    same(np.asarray(got), TOTAL[: 3000 * SIZE].reshape(SIZE, -1)[RANK])


def test_gradients_of_calls():
    """The gradient of an allreduce is one with the same bits; of a batch, it is one call."""
    for part in FEW:
        gradient = jax.grad(lambda x, part=part: (cj.allreduce(x, bits="size") * X[part]).sum())
        same(np.asarray(gradient(jnp.zeros(part.stop - part.start))), TOTAL[part])
    several = jax.vmap(lambda x: cj.allreduce(x, bits="size"))(X[:9000].reshape(3, -1))
    same(np.asarray(several).ravel(), TOTAL[:9000])


@BOTH
def test_gradients_in_buckets(how, comm):
    parts = [X[part] for part in FEW]
    averages = np.asarray(cj.allreduce(X, op="avg", comm=comm))
    hold(how(lambda xs: cj.allreduce_gradients(xs, comm=comm))(parts), averages)


def test_what_is_refused(comm):
    with pytest.raises(ArgumentError, match="bits is 'sizes', and must be 'any', 'size' or None"):
        cj.allreduce(X, bits="sizes")
    if SIZE > 1:  # a rank alone compresses nothing
        with pytest.raises(ArgumentError, match="compression is int8"):
            cj.allreduce_gradients([X], comm=comm, compression="int8")
    if SIZE > 2:
        with pytest.raises(ArgumentError, match="bits is 'size', but allreduce 'ring' on"):
            cj.allreduce(X, bits="size", algorithm="ring")


@pytest.mark.skipif(SIZE == 1, reason="it takes several ranks")
def test_ranks_differ():
    own = cc.world().dup()  # the call breaks it
    with pytest.raises(MismatchError, match="bits=size"):
        cj.allreduce(X, bits="size" if RANK else None, comm=own)
