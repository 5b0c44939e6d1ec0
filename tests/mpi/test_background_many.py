"""Many arrays that are submitted as one."""

import numpy as np
import pytest

import collectives as cc
from collectives import background
from collectives.errors import ArgumentError, BufferError, MismatchError, UnsupportedTypeError

MANY = background.submit_many


@pytest.fixture(scope="module")
def comm(world):
    made = world.comm.dup()
    yield made
    made.free()


def of(comm, counts=(3, 0, 70_000, 1)):
    """Arrays of a rank: of two dtypes, small and large."""
    arrays = [np.full(n, k + comm.rank, np.float32) for k, n in enumerate(counts)]
    return [*arrays, np.full((2, 3), comm.rank), np.array(comm.rank, np.float64)]


def verify(comm, got):
    ranks = comm.size * (comm.size - 1) // 2
    for k, (array, given) in enumerate(zip(got, of(comm), strict=True)):
        assert (array.shape, array.dtype) == (given.shape, given.dtype)
        assert (array == ranks + comm.size * (k if k < 4 else 0)).all()


def test_new_results_and_results_in_place(comm):
    arrays = of(comm)
    handles = [MANY(of(comm), group=comm), MANY(arrays, arrays, name="in place", group=comm)]
    verify(comm, handles[0].wait())
    verify(comm, handles[1].wait())
    assert all(array is got for array, got in zip(arrays, handles[1].wait(), strict=True))
    assert MANY([], group=comm).wait() == []
    op = cc.MAX if comm.rank else "max"  # however it is spelled
    assert MANY([np.array([comm.rank])], op=op, group=comm).wait()[0] == [comm.size - 1]


def test_among_other_submissions(comm):
    """Names match whatever the order; averages are those of one call."""
    names = range(6) if comm.rank % 2 else range(5, -1, -1)
    handles = {}
    for k in names:
        if k % 2:
            handles[k] = MANY([np.full(k, 2.0)] * 2, name=str(k), op=cc.AVG, group=comm)
        else:
            handles[k] = background.submit("allreduce", np.full(k, 1.0), name=str(k), group=comm)
    for k, handle in handles.items():
        if k % 2:
            assert [each.tolist() for each in handle.wait()] == [[2.0] * k] * 2
        else:
            assert handle.wait().tolist() == [comm.size] * k


def test_more_than_are_in_flight(comm):
    arrays = [np.full(70_000, k, np.float32) for k in range(20)]
    for k, got in enumerate(MANY(arrays, op="MAX", group=comm).wait()):
        assert (got == k).all()


@pytest.mark.several
def test_lists_that_differ(comm):
    last = comm.rank == comm.size - 1
    arrays = [np.ones(n) for n in ((2, 3) if last else (2, 4))]
    handle = MANY(arrays, name="list", group=comm)
    with pytest.raises(MismatchError, match=r"arrays of 2 float64, 4 float64, op .*SUM"):
        handle.wait()
    counts = [1] * 20
    counts[15] += last
    handle = MANY([np.ones(n) for n in counts], name="long list", group=comm)
    with pytest.raises(MismatchError, match=r"20 arrays, .* checksum"):
        handle.wait()
    assert MANY([np.ones(1)], name="list", group=comm).wait()[0] == [comm.size]


def test_wrong_arguments(comm):
    x = np.ones(4)
    for arrays, out, error, text in (
        (3, None, ArgumentError, "arrays is 3"),
        ([x, "a"], None, BufferError, r"arrays\[1\]"),
        ([x], [], ArgumentError, "out has 0 arrays"),
        ([x, x], [x, x], BufferError, r"out\[1\] overlaps out\[0\]"),
        ([x[1:], x[:1]], [x[:3], x[3:]], BufferError, "overlaps"),
        ([np.array(["a"])], None, UnsupportedTypeError, "arrays"),
    ):
        with pytest.raises(error, match=text):
            MANY(arrays, out, group=comm)
    with pytest.raises(ArgumentError, match="op"):
        MANY([x], op="NONE", group=comm)
    with pytest.raises(ArgumentError, match="name is 3"):
        MANY([x], name=3, group=comm)
    assert MANY([x], group=comm).wait()[0].tolist() == [comm.size] * 4
