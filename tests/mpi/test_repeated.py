"""Calls of one class one after the other, which differ in one thing each."""

import weakref

import numpy as np
import pytest

import collectives as cc

FIRST = {"dtype": np.float64, "n": 5, "op": cc.SUM, "prescale": 1.0, "postscale": 1.0}
CHANGES = [
    {},
    {"dtype": np.int64},
    {"n": 6},
    {"op": cc.MAX},
    {"op": cc.AVG},
    {"prescale": 3.0},
    {"postscale": 0.5},
    {"op": cc.reduction(lambda x, y: np.add(x, y, out=y), commutative=True)},
]


def allreduce(comm, call, dtype, n, op, prescale, postscale):
    """Make a call in one of three ways; compare its result, and those that went before it."""
    each = [np.arange(n, dtype=dtype) + rank for rank in range(comm.size)]
    want = np.max(each, axis=0) if op is cc.MAX else np.sum(each, axis=0)
    want = want * prescale * postscale / (comm.size if op is cc.AVG else 1)
    options = {"op": op, "prescale": prescale, "postscale": postscale}
    x = each[comm.rank].copy()
    if call == "started":
        requests = [comm.iallreduce(x, **options) for _ in range(3)]
        results = [request.wait() for request in requests]
    elif call == "in place":
        results = [comm.allreduce(x, out=x, **options)]
    else:
        results = [comm.allreduce(x, **options), comm.allreduce(x, out=np.empty_like(x), **options)]
    for result in results:
        np.testing.assert_allclose(result, want)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change), "nothing"))
@pytest.mark.parametrize("call", ["blocking", "in place", "started"])
def test_a_call_that_differs_from_the_last_one(plain, call, change):
    for options in (FIRST, FIRST, FIRST | change, FIRST | change, FIRST):
        allreduce(plain.comm, call, **options)


def test_calls_after_the_choices_are_forgotten(plain):
    comm = plain.comm
    request = comm.iallreduce(np.ones(3))
    comm.forget()
    comm.allreduce(np.ones(3))
    np.testing.assert_array_equal(request.wait(), comm.size)
    for _ in range(3):
        np.testing.assert_array_equal(comm.allreduce(np.ones(3)), comm.size)


def test_roots_and_barriers_in_turn(plain):
    comm = plain.comm
    for turn in range(3 * comm.size):
        root = turn % comm.size
        comm.barrier()
        got = comm.broadcast(np.full(4, comm.rank * 10 + turn))
        np.testing.assert_array_equal(got, turn)
        got = comm.broadcast(np.full(4, comm.rank * 10 + turn), root=root)
        np.testing.assert_array_equal(got, root * 10 + turn)
        got = comm.reduce(np.full(4, turn), root=root)
        assert (got is None) == (comm.rank != root)
        if got is not None:
            np.testing.assert_array_equal(got, turn * comm.size)


@pytest.mark.parametrize("call", ["blocking", "started", "planned"])
def test_no_array_is_kept_after_its_call(plain, call):
    comm = plain.comm
    x, out = np.ones(5), np.empty(5)
    arrays = [weakref.ref(x), weakref.ref(out)]
    if call == "started":
        comm.iallreduce(x, out=out).wait()
    elif call == "planned":
        comm.plan("allreduce", x, out=out)()
    else:
        comm.allreduce(x, out=out)
    del x, out
    assert [each() for each in arrays] == [None, None]


def test_an_argument_that_makes_a_call_while_another_call_reads_it(plain):
    comm = plain.comm

    class Calling:
        def __float__(self):
            return float(comm.allreduce(np.full(5, 2.0))[0])

    for _ in range(3):
        got = comm.allreduce(np.ones(5), prescale=Calling())
        np.testing.assert_array_equal(got, 2.0 * comm.size**2)
        with pytest.raises(cc.CollectivesError):
            comm.allreduce(np.ones(5), out=np.empty(4))
        np.testing.assert_array_equal(comm.allreduce(np.ones(5)), comm.size)


def test_the_same_memory_with_another_dtype_and_shape(plain):
    comm = plain.comm
    memory = np.ones(8, np.int64)
    halves = memory.view(np.int32)
    for _ in range(2):
        np.testing.assert_array_equal(comm.allreduce(memory), memory * comm.size)
        np.testing.assert_array_equal(comm.allreduce(halves), halves * comm.size)
        assert comm.allreduce(memory.reshape(2, 4)).shape == (2, 4)
        assert comm.allreduce(memory[:6]).shape == (6,)


def test_two_communicators_in_turn(plain):
    with plain.comm.dup() as other:
        for _ in range(3):
            np.testing.assert_array_equal(plain.comm.allreduce(np.ones(3)), other.size)
            np.testing.assert_array_equal(other.allreduce(np.full(3, 2.0)), 2 * other.size)
