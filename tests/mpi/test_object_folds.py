"""Folds of Python objects: each once, in the order of the ranks; errors are heard of by all."""

import operator
import threading

import numpy as np
import pytest
from mpi4py import MPI

import collectives as cc
from collectives.calls.object_folds import FOLDS
from collectives.errors import ArgumentError, MismatchError

LARGE = 20_000


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def unloadable():
    raise OSError("not here")


class Unloadable:
    def __reduce__(self):
        return unloadable, ()


def joined(x, y):
    """A function that is not associative: the result shows the order of the calls."""
    return f"({x} {y})"


def in_order(ranks):
    text = str(ranks[0])
    for rank in ranks[1:]:
        text = f"({text} {rank})"
    return text


def test_the_order_of_the_ranks(group):
    comm, p, rank = group.comm, group.comm.size, group.comm.rank
    mine = str(rank)
    assert comm.allreduce_object(mine, joined) == in_order(range(p))
    for root in range(p):
        got = comm.reduce_object(mine, joined, root)
        assert got == (in_order(range(p)) if rank == root else None)
    assert comm.scan_object(mine, joined) == in_order(range(rank + 1))
    assert comm.exscan_object(mine, joined) == (in_order(range(rank)) if rank else None)


def test_the_operation_is_called_on_one_rank(world):
    """So what it returns is the same on all, even if it is another thing each time."""
    comm = world.comm
    calls = []

    def note(x, y):
        calls.append((x, y))
        return [*x, *y, object.__hash__(calls)]

    got = comm.allreduce_object([comm.rank], note)
    assert len(calls) == (comm.size - 1 if comm.rank == 0 else 0)
    world.agree(got)


def test_lists_are_joined_by_default(world):
    comm = world.comm
    assert comm.allreduce_object([comm.rank]) == list(range(comm.size))
    assert comm.scan_object([comm.rank]) == list(range(comm.rank + 1))


VALUES = {
    "SUM": (2.5, [1], "a"),
    "PROD": (3, 0.5),
    "MIN": (7, "b", (1, 2)),
    "MAX": (7, "b", (1, 2)),
    "LAND": (1, 0, "", [2]),
    "LOR": (1, 0, "", [2]),
    "LXOR": (1, 0, True),
    "BAND": (6, True, {1, 2}),
    "BOR": (6, True, {1, 2}),
    "BXOR": (6, True, {1, 2}),
}


@pytest.mark.parametrize("name", VALUES)
def test_as_mpi4py_does_it(world, name):
    comm, mpi = world.comm, world.mpi
    ours, theirs = getattr(cc, name), getattr(MPI, name)
    for value in VALUES[name]:
        mine = value
        if type(value) in (int, float) and not name.startswith("L"):
            mine = value + comm.rank
        assert comm.allreduce_object(mine, ours) == mpi.allreduce(mine, theirs)
        assert comm.reduce_object(mine, ours, comm.size - 1) == mpi.reduce(
            mine, theirs, comm.size - 1
        )
        assert comm.scan_object(mine, ours) == mpi.scan(mine, theirs)
        assert comm.exscan_object(mine, ours) == mpi.exscan(mine, theirs)
        assert comm.allreduce_object(mine, theirs) == mpi.allreduce(mine, theirs)


def test_every_operation_has_a_fold():
    every = {name for name in dir(cc) if type(getattr(cc, name)) is cc.Reduction}
    assert every - {"SUM_REPRODUCIBLE"} == set(FOLDS)


def test_an_exact_sum_adds_no_objects(world):
    for call in (world.comm.allreduce_object, world.comm.reduce_object, world.comm.scan_object):
        with pytest.raises(ArgumentError, match="op is SUM_REPRODUCIBLE, which adds arrays of num"):
            call(1.5, op=cc.SUM_REPRODUCIBLE)


def test_averages(either):
    comm = either.comm
    mean = (comm.size - 1) / 2
    assert comm.allreduce_object(comm.rank, cc.AVG) == mean
    assert comm.reduce_object(comm.rank, op=cc.AVG) == (mean if comm.rank == 0 else None)
    for call in (comm.scan_object, comm.exscan_object):
        with pytest.raises(ArgumentError, match=r"op is AVG, and a .*scan_object has a number of"):
            call(comm.rank, cc.AVG)
    comm.barrier()


def test_names_of_operations(world):
    """On each rank as it likes: they are the same operation."""
    comm = world.comm
    op = ("sum", "SUM", cc.SUM)[comm.rank % 3]
    assert comm.allreduce_object([comm.rank], op) == list(range(comm.size))
    assert comm.reduce_object(comm.rank, "Max") == (comm.size - 1 if comm.rank == 0 else None)
    assert comm.scan_object(1, "sum") == comm.rank + 1


@pytest.mark.parametrize("op", [operator.iadd, operator.add])
def test_large_arrays_and_operations_that_change_them(world, op):
    """The results of a scan do not change with those that come after them."""
    comm = world.comm
    mine = np.full(LARGE, comm.rank + 1.0)
    total = comm.size * (comm.size + 1) / 2
    got = comm.allreduce_object(mine, op)
    assert (got == total).all()
    assert got.flags.writeable
    assert (comm.scan_object(mine, op) == (comm.rank + 1) * (comm.rank + 2) / 2).all()
    before = comm.exscan_object(mine, op)
    assert before is None if comm.rank == 0 else (before == comm.rank * (comm.rank + 1) / 2).all()
    assert (mine == comm.rank + 1).all()


CALLS = {
    "reduce_object": lambda comm, obj, op: comm.reduce_object(obj, op, comm.size - 1),
    "allreduce_object": lambda comm, obj, op: comm.allreduce_object(obj, op),
    "scan_object": lambda comm, obj, op: comm.scan_object(obj, op),
    "exscan_object": lambda comm, obj, op: comm.exscan_object(obj, op),
}
every_call = pytest.mark.parametrize("name", CALLS)


@every_call
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("not these two"), "ValueError: not these two"),
        (ValueError("bad \udc80 name"), "ValueError: bad "),
        (Unprintable(), "Unprintable: <no text"),
        (SystemExit("leave"), "SystemExit: leave"),
    ],
)
@pytest.mark.several
def test_an_operation_that_raises(either, name, error, text):
    """All ranks hear of it, but where only the root has anything to do with the result."""
    comm = either.comm

    def fail(x, y):
        raise error

    folds = comm.size - 1 if name == "reduce_object" else 0
    if name == "reduce_object" and comm.rank != folds:
        assert CALLS[name](comm, comm.rank, fail) is None
    else:
        with pytest.raises(
            ArgumentError, match=f"^{name}: rank {folds}: op raised .*{text}"
        ) as caught:
            CALLS[name](comm, comm.rank, fail)
        assert caught.value.__cause__ is (error if comm.rank == folds else None)
    assert comm.allgather_object(comm.rank) == list(range(comm.size))


def test_a_mean_that_cannot_be_divided(either):
    comm = either.comm
    with pytest.raises(ArgumentError, match="allreduce_object: rank 0: op raised TypeError"):
        comm.allreduce_object("a", cc.AVG)
    comm.barrier()


@every_call
def test_unpicklable_on_one_rank(either, name):
    comm = either.comm
    last = comm.size - 1
    obj = threading.Lock() if comm.rank == last else 1
    with pytest.raises(ArgumentError, match=f"^{name}: rank {last}: obj cannot be pickled"):
        CALLS[name](comm, obj, cc.SUM)
    comm.barrier()


@every_call
def test_what_cannot_be_loaded_on_the_root(either, name):
    """The others wait for the result, but in a reduction."""
    comm = either.comm
    folds = comm.size - 1 if name == "reduce_object" else 0
    obj = Unloadable() if comm.rank == 0 else 1
    if name == "reduce_object" and comm.rank != folds:
        assert CALLS[name](comm, obj, cc.SUM) is None
    else:
        text = f"^{name}: rank {folds}: the object of rank 0 cannot be loaded: OSError: not here"
        with pytest.raises(ArgumentError, match=text):
            CALLS[name](comm, obj, cc.SUM)
    assert comm.allgather_object(comm.rank) == list(range(comm.size))


@pytest.mark.parametrize("name", [name for name in CALLS if name != "reduce_object"])
def test_a_result_that_cannot_be_sent(either, name):
    comm = either.comm
    if comm.size < 3:
        pytest.skip("it takes three ranks for a fold to be sent by exscan")
    with pytest.raises(ArgumentError, match=f"^{name}: rank 0: the result of op cannot be pickled"):
        CALLS[name](comm, 1, lambda x, y: threading.Lock())
    comm.barrier()


@every_call
@pytest.mark.parametrize(
    ("op", "text"),
    [
        (
            "total",
            r"op is 'total', and must be one of collectives\.SUM, .*, its name, or a f",
        ),
        (None, "op is None, and must be one of"),
        (cc.reduction(np.copyto, name="last"), "op is <Reduction last>, which folds arrays in pl"),
    ],
)
def test_what_is_no_operation(either, name, op, text):
    with pytest.raises(ArgumentError, match=text):
        CALLS[name](either.comm, 1, op)
    either.comm.barrier()


@pytest.mark.several
def test_ranks_that_disagree(world):
    comm = world.comm
    with pytest.raises(MismatchError, match=r"rank 0 called allreduce_object\(op=MAX, root=0\)"):
        comm.allreduce_object(1, cc.MAX if comm.rank == 0 else cc.SUM)
    comm.barrier()


@pytest.mark.parametrize("root", [-1, 10**6, None, "0"])
def test_wrong_root(either, root):
    with pytest.raises(ArgumentError, match=rf"root is {root!r}, and must be"):
        either.comm.reduce_object(1, cc.SUM, root)


def test_module_functions(world):
    comm = world.comm
    p, rank = comm.size, comm.rank
    assert cc.allreduce_object(1) == p
    assert cc.reduce_object(1, cc.SUM, p - 1) == (p if rank == p - 1 else None)
    assert cc.scan_object(1) == rank + 1
    assert cc.exscan_object(1) == (rank or None)
    assert cc.alltoall_object([rank * p + r for r in range(p)]) == [r * p + rank for r in range(p)]
