"""reduce: the result on the root, None elsewhere."""

import numpy as np
import pytest
from cases import (
    DTYPES,
    FULL,
    LARGE,
    SUPPORTED,
    contribution,
    digest,
    longer,
    names,
    op_of,
    runnable,
    sizes,
    verify,
)
from interpreter import run

import collectives as cc

ALGORITHMS = names("reduce")


def skip_unless_runnable(name, p):
    if not runnable("reduce", name, p):
        pytest.skip(cc.algorithms.get("reduce", name).refusal(p))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_matrix(plain, algorithm, dtype):
    """Every operation and length, with the roots in turn, in flight together."""
    comm = plain.comm
    skip_unless_runnable(algorithm, comm.size)
    cases = [(op, n) for op in SUPPORTED if dtype in SUPPORTED[op] for n in sizes(comm.size)]
    requests = [
        comm.ireduce(
            contribution(op, dtype, n, comm.rank),
            root=turn % comm.size,
            op=op_of(op),
            algorithm=algorithm,
        )
        for turn, (op, n) in enumerate(cases)
    ]
    for turn, ((op, n), request) in enumerate(zip(cases, requests, strict=True)):
        y = request.wait()
        if comm.rank == turn % comm.size:
            verify(y, op, dtype, n, comm.size)
        else:
            assert y is None
    for turn, (op, n) in enumerate(cases):
        if FULL or turn % 7 == 0:
            root = turn % comm.size
            x = contribution(op, dtype, n, comm.rank)
            y = comm.reduce(x, root=root, op=op_of(op), algorithm=algorithm)
            if comm.rank == root:
                verify(y, op, dtype, n, comm.size)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, None])
def test_every_root_of_every_communicator(group, algorithm):
    comm = group.comm
    for root in range(comm.size):
        for n in (1, comm.size + 1, 1009):
            x = contribution("SUM", "float32", n, comm.rank)
            y = comm.reduce(x, root=root, algorithm=algorithm)
            assert (y is None) == (comm.rank != root)
            if y is not None:
                verify(y, "SUM", "float32", n, comm.size)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_large(world, algorithm):
    comm = world.comm
    root = comm.size - 1
    x = contribution("SUM", "float32", LARGE, comm.rank)
    y = comm.reduce(x, root=root, algorithm=algorithm)
    if comm.rank == root:
        verify(y, "SUM", "float32", LARGE, comm.size)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_where_the_result_goes(world, algorithm):
    comm = world.comm
    for root in {0, comm.size - 1}:
        x = contribution("SUM", "float32", 1009, comm.rank).copy()
        before = digest(x)
        new = comm.reduce(x, root=root, algorithm=algorithm)
        out = np.full_like(x, np.nan)
        got = comm.reduce(x, out, root=root, algorithm=algorithm)
        assert digest(x) == before
        inplace = comm.reduce(x, x, root=root, algorithm=algorithm)
        if comm.rank == root:
            assert got is out
            assert inplace is x
            assert digest(new) == digest(out) == digest(x)
        else:
            assert got is inplace is None
            assert np.isnan(out).all()
            assert digest(x) == before


def test_out_is_ignored_where_nothing_arrives(world):
    comm = world.comm
    out = np.empty(3) if comm.rank == 0 else "not an array"
    comm.reduce(np.ones(3), out)
    if comm.rank == 0:
        assert (out == comm.size).all()


@pytest.mark.parametrize("nbytes", [64, 1000])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_segments_change_no_bits(plain, segments, algorithm, nbytes):
    comm = plain.comm
    root = comm.size // 2
    for n in (1009, longer(nbytes)):
        x = contribution("SUM", "float32", n, comm.rank)
        with segments(comm, 0):
            want = comm.reduce(x, root=root, algorithm=algorithm)
        with segments(comm, nbytes):
            got = comm.reduce(x, root=root, algorithm=algorithm)
        if comm.rank == root:
            verify(got, "SUM", "float32", n, comm.size)
            assert digest(got) == digest(want)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_agrees_with_the_plain_interpreter(world, algorithm):
    comm = world.comm
    root = comm.size - 1
    y = comm.reduce(contribution("SUM", "float32", 1009, comm.rank), root=root, algorithm=algorithm)
    if comm.rank == root:
        inputs = [contribution("SUM", "float32", 1009, r) for r in range(comm.size)]
        row = cc.algorithms.get("reduce", algorithm)
        assert digest(y) == digest(run(row, inputs, root, np.add, [1009])[root][0])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_scales(world, algorithm):
    comm = world.comm
    for root in range(comm.size):
        x = contribution("SUM", "float64", 1009, comm.rank)
        y = comm.reduce(x, root=root, algorithm=algorithm, prescale=0.5, postscale=3.0)
        if comm.rank == root:
            verify(y, "SUM", "float64", 1009, comm.size, 1.5)
        y = comm.reduce(x, root=root, op=cc.AVG, algorithm=algorithm)
        if comm.rank == root:
            verify(y, "AVG", "float64", 1009, comm.size)
        assert digest(x) == digest(contribution("SUM", "float64", 1009, comm.rank))


def test_root_may_be_a_numpy_integer(world):
    y = world.comm.reduce(np.ones(2), root=np.int64(world.comm.size - 1))
    assert (y is not None) == (world.comm.rank == world.comm.size - 1)
