"""Grouped calls: the results of many arrays at once are those of one after the other."""

import array
import functools
import importlib.util
import time

import cases
import dtypes
import ml_dtypes
import numpy as np
import pytest
from cases import contribution, digest
from forms import Allreduce

import collectives as cc
from collectives import _core
from collectives.calls import grouped
from collectives.errors import ArgumentError, CommunicatorError, MismatchError, UnsupportedTypeError

# Numbers of elements: none, small ones, one that is folded by itself, and small ones again.
COUNTS = (3, 0, 1, 1009, 2 * grouped.APART // 4, 17, 250)


def mixed(rank, counts=COUNTS):
    """Return arrays of several dtypes and sizes, and whole numbers in them: sums are exact."""
    arrays = []
    for k, n in enumerate(counts):
        numbers = np.resize(np.arange(100), n) + rank + k
        arrays.append(numbers.astype((np.float32, np.float64, np.int32)[k % 3]))
    return arrays


def verify_mixed(got, p, counts=COUNTS):
    assert type(got) is list
    assert len(got) == len(counts)
    for mine, *theirs in zip(got, *(mixed(r, counts) for r in range(p)), strict=True):
        assert mine.dtype == theirs[0].dtype
        np.testing.assert_array_equal(mine, sum(theirs))


def test_new_results(group):
    comm = group.comm
    arrays = mixed(comm.rank)
    verify_mixed(comm.allreduce_many(arrays), comm.size)
    for before, after in zip(mixed(comm.rank), arrays, strict=True):
        np.testing.assert_array_equal(before, after)


def test_in_place(group):
    comm = group.comm
    arrays = mixed(comm.rank)
    got = comm.allreduce_many(arrays, arrays)
    assert all(mine is theirs for mine, theirs in zip(got, arrays, strict=True))
    verify_mixed(arrays, comm.size)


def test_out(group):
    comm = group.comm
    arrays = mixed(comm.rank)
    out = [np.empty_like(x) for x in arrays]
    got = comm.allreduce_many(tuple(arrays), out=tuple(out))
    assert all(mine is theirs for mine, theirs in zip(got, out, strict=True))
    verify_mixed(out, comm.size)


def test_results_do_not_share_memory(world):
    got = world.comm.allreduce_many([np.ones(3), np.ones(4)])
    assert not np.shares_memory(*got)
    assert all(each.base is None for each in got)


def test_nothing(world):
    assert world.comm.allreduce_many([]) == []
    assert world.comm.allreduce_many([], []) == []
    request = world.comm.iallreduce_many([])
    assert request.test()
    assert request.wait() == []


def test_shapes_and_layouts(world):
    comm = world.comm
    x = np.arange(24.0).reshape(2, 3, 4) + comm.rank
    arrays = [x, x.T, x[:, ::2], np.float64(comm.rank), np.asfortranarray(x[0])]
    got = comm.allreduce_many(arrays)
    ranks = sum(range(comm.size))
    for mine, theirs in zip(got, arrays, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_array_equal(mine, (theirs - comm.rank) * comm.size + ranks)
    assert all(each.flags.c_contiguous for each in got[1:3])


@pytest.mark.parametrize("dtype", _core.DTYPES)
def test_dtypes(world, dtype):
    """Arrays of a dtype are packed together, past those of another."""
    comm = world.comm
    op = "LOR" if dtype == "bool" else "SUM"
    counts = (1, 5, 31)
    arrays = [contribution(op, dtype, n, comm.rank) for n in counts]
    arrays.insert(1, np.full(7, comm.rank, np.uint8))
    got = comm.allreduce_many(arrays, op=getattr(cc, op))
    assert (got.pop(1) == functools.reduce(dtypes.LOGICAL.get(op, np.add), range(comm.size))).all()
    for n, mine in zip(counts, got, strict=True):
        cases.verify(mine, op, dtype, n, comm.size)


@pytest.mark.parametrize("op", ["PROD", "MIN", "BXOR", "AVG"])
def test_ops(world, op):
    comm = world.comm
    dtype = "int64" if op == "BXOR" else "float64"
    counts = (2, 3, 9000)
    arrays = [contribution(op, dtype, n, comm.rank) for n in counts]
    got = comm.allreduce_many(arrays, op=getattr(cc, op))
    for n, mine in zip(counts, got, strict=True):
        cases.verify(mine, op, dtype, n, comm.size)


def test_a_fold_of_the_caller(world):
    comm = world.comm

    def larger(incoming, accumulator):
        np.maximum(incoming, accumulator, out=accumulator)

    arrays = [np.full(n, float(comm.rank)) for n in (1, 2, grouped.APART)]
    for each in comm.allreduce_many(arrays, op=cc.reduction(larger)):
        assert (each == comm.size - 1).all()


def test_scales(world):
    comm = world.comm
    arrays = [np.full(n, 8.0, np.float32) for n in (1, 2, grouped.APART)]
    for out in (None, arrays):
        got = comm.allreduce_many(arrays, out, prescale=0.5, postscale=0.25)
        assert all((each == comm.size).all() for each in got)


@pytest.mark.parametrize("algorithm", Allreduce.runnable())
def test_algorithms(world, algorithm):
    comm = world.comm
    verify_mixed(comm.allreduce_many(mixed(comm.rank), algorithm=algorithm), comm.size)


def test_all_ranks_have_the_same_bits(world):
    comm = world.comm
    arrays = [contribution("SUM", "float32", n, comm.rank) for n in (3, 1009, 257, 100_000)]
    world.agree(digest(*comm.allreduce_many(arrays)))


def test_few_collectives_for_many_arrays(world):
    """Small arrays of two dtypes are two collectives; a large one is folded where it is."""
    comm = world.comm
    arrays = [np.full(10, k + comm.rank, (np.int64, np.float32)[k % 2]) for k in range(100)]
    large = np.full(grouped.APART, comm.rank, np.float32)
    request = comm.iallreduce_many([*arrays, large], [*arrays, large])
    assert len(request._parts) == 3
    assert [part.is_packed for part in request._parts] == [True, True, False]
    request.wait()
    ranks = sum(range(comm.size))
    assert all((each == comm.size * k + ranks).all() for k, each in enumerate(arrays))
    assert (large == ranks).all()


def test_packed_arrays_have_a_limit(world, monkeypatch):
    monkeypatch.setattr(grouped, "PACKED", 1000)
    comm = world.comm
    arrays = [np.full(50, comm.rank, np.float64) for _ in range(10)]  # of 400 bytes
    request = comm.iallreduce_many(arrays)
    assert [len(part.which) for part in request._parts] == [2] * 5
    ranks = sum(range(comm.size))
    assert all((each == ranks).all() for each in request.wait())


def test_more_than_are_in_flight(world):
    comm = world.comm
    arrays = mixed(comm.rank, counts=(grouped.APART,) * 10)
    verify_mixed(comm.allreduce_many(arrays), comm.size, counts=(grouped.APART,) * 10)


def test_nonblocking(world):
    comm = world.comm
    early = comm.iallreduce_many(mixed(comm.rank))
    other = comm.iallreduce(np.ones(5))
    late = comm.iallreduce_many(mixed(comm.rank))
    comm.barrier()
    waits = [early.wait, late.wait, other.wait]
    if comm.rank % 2:
        waits.reverse()
    for wait in waits:
        wait()
    verify_mixed(early.wait(), comm.size)
    verify_mixed(late.wait(), comm.size)
    assert (other.wait() == comm.size).all()
    assert early.wait() is early.wait()
    assert repr(early) == f"<GroupedRequest of {len(COUNTS)} arrays: complete>"


def test_polling(world):
    comm = world.comm
    arrays = mixed(comm.rank)
    request = comm.iallreduce_many(arrays, arrays)
    limit = time.monotonic() + 60
    while not request.test():
        assert time.monotonic() < limit, request
        time.sleep(0)
    verify_mixed(arrays, comm.size)  # without a wait
    assert request.wait() is request.wait()


def test_too_many_at_a_time(world, monkeypatch):
    monkeypatch.setattr(grouped, "MOST", 3)
    comm = world.comm
    arrays = mixed(comm.rank, counts=(grouped.APART,) * 4)
    with pytest.raises(
        CommunicatorError, match=r"4 collectives would be in flight.* most 3 may be"
    ):
        comm.iallreduce_many(arrays)
    assert len(comm.allreduce_many(arrays)) == 4


def test_other_kinds_of_arrays(world):
    comm = world.comm
    arrays = [
        array.array("d", [1.0, 2.0]),
        memoryview(bytearray(3)),
        np.ones(2, ml_dtypes.bfloat16),
    ]
    got = comm.allreduce_many(arrays, arrays)
    assert got[0] is arrays[0]
    assert list(arrays[0]) == [comm.size, 2 * comm.size]
    assert arrays[2].astype(int).tolist() == [comm.size] * 2


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.any_mpi
@pytest.mark.ranks(2)
def test_torch_tensors(world):
    import torch

    comm = world.comm
    shapes = [(2, 3), (0,), (5,), (grouped.APART,)]
    arrays = [torch.full(shape, float(comm.rank)).to(torch.bfloat16) for shape in shapes]
    arrays.append(torch.ones(4, dtype=torch.float64))
    got = comm.allreduce_many(arrays)
    for mine, theirs in zip(got, arrays, strict=True):
        assert type(mine) is torch.Tensor
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
    assert all(bool((mine == sum(range(comm.size))).all()) for mine in got[:-1])
    assert all(x is y for x, y in zip(comm.allreduce_many(arrays, arrays), arrays, strict=True))
    assert all(bool((x == y).all()) for x, y in zip(arrays, got, strict=True))


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
@pytest.mark.any_mpi
@pytest.mark.ranks(2)
def test_jax_arrays(world):
    import jax

    comm = world.comm
    arrays = [jax.numpy.full(n, comm.rank, "float32") for n in (2, 3, grouped.APART)]
    request = comm.iallreduce_many([*arrays, np.ones(3)])
    for mine, theirs in zip(request.wait()[:-1], arrays, strict=True):
        assert isinstance(mine, type(theirs))
        assert bool((mine == sum(range(comm.size))).all())
    with pytest.raises(cc.errors.BufferError, match=r"out\[1\] is a JAX array, which is immutable"):
        comm.allreduce_many([np.ones(2), arrays[0]], [np.ones(2), arrays[0]])


ONE = np.ones(4)
READ_ONLY = np.ones(4)
READ_ONLY.flags.writeable = False
REFUSED = {
    "dtype": (([ONE, np.array([None])],), UnsupportedTypeError, r"arrays\[1\] has dtype object"),
    "a list": (([ONE, [1.0]],), BufferError, r"arrays\[1\] is a list"),
    "no list": ((3,), ArgumentError, r"arrays is 3, and must be a list of arrays"),
    "length": (([ONE], [ONE, ONE]), ArgumentError, "out has 2 arrays, and must have 1"),
    "count": (
        ([ONE], [np.ones(5)]),
        BufferError,
        r"out\[0\] has 5 elements, and arrays\[0\] has 4",
    ),
    "out dtype": (
        ([ONE, ONE], [np.ones(4), np.ones(4, int)]),
        BufferError,
        r"out\[1\] is int64 and arrays\[1\] is float64; they must be equal",
    ),
    "read only": (([READ_ONLY], [READ_ONLY]), BufferError, r"out\[0\] is read-only"),
    "strided": (([ONE[::2]], [ONE[::2]]), BufferError, r"out\[0\] is not C-contiguous"),
    "twice": (([ONE, ONE], [ONE, ONE]), BufferError, r"out\[1\] overlaps out\[0\]"),
    "crosswise": (
        ([ONE[:2], ONE[2:]], [ONE[2:], ONE[:2]]),
        BufferError,
        r"(out\[\d\] overlaps arrays|arrays\[\d\] overlaps out)\[\d\]; pass arrays that share no",
    ),
    "in part": (([ONE[:3]], [ONE[1:]]), BufferError, r"out\[0\] overlaps arrays\[0\]"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(world, kind):
    arguments, error, text = REFUSED[kind]
    with pytest.raises(error, match=text):
        world.comm.allreduce_many(*arguments)
    verify_mixed(world.comm.allreduce_many(mixed(world.comm.rank)), world.comm.size)


def test_overlaps_inside_of_a_long_array(world):
    """Two arrays that lie inside of a third, of which the first ends before the second."""
    x = np.ones(100)
    arrays = [x, np.ones(1), np.ones(1)]
    with pytest.raises(BufferError, match=r"out\[2\] overlaps out\[0\]"):
        world.comm.allreduce_many(arrays, [x, np.ones(1), x[50:51]])


def test_arrays_may_be_given_twice_where_they_are_read(world):
    for each in world.comm.allreduce_many([ONE, ONE]):
        assert (each == world.comm.size).all()


def test_nothing_starts_before_all_is_checked(plain):
    """The last of three has a dtype that cannot be scaled: the communicator works on."""
    comm = plain.comm
    arrays = [np.ones(grouped.APART), np.ones(3), np.ones(3, np.int32)]
    before = [x.copy() for x in arrays]
    with pytest.raises(UnsupportedTypeError, match="need a floating dtype"):
        comm.allreduce_many(arrays, arrays, prescale=2.0)
    with pytest.raises(ArgumentError, match="has no algorithm 'nonsense'"):
        comm.allreduce_many(arrays, arrays, algorithm="nonsense")
    for x, y in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(x, y)
    verify_mixed(comm.allreduce_many(mixed(comm.rank)), comm.size)


@pytest.mark.several
def test_ranks_that_disagree(world):
    comm = world.comm
    odd = comm.rank == 0
    with pytest.raises(
        MismatchError,
        match=r"rank 0 called allreduce_many\(arrays of 4 float64, 3 float32\);.*"
        r"called allreduce_many\(arrays of 3 float32, 4 float64\)",
    ):
        comm.allreduce_many([ONE, np.ones(3, "f4")] if odd else [np.ones(3, "f4"), ONE])
    with pytest.raises(MismatchError, match=r"20 arrays, 1 float64, .*checksum"):
        comm.allreduce_many([np.ones(1)] * 19 + [np.ones(1 + odd)])
    with pytest.raises((MismatchError, ArgumentError), match=r"arrays is 3"):
        comm.allreduce_many(3 if odd else [ONE])
    assert comm.allreduce_many([ONE])[0][0] == comm.size
