"""allreduce: every algorithm, operation, dtype and length, against NumPy, MPI and itself."""

import numpy as np
import pytest
from cases import (
    COMPLEX,
    DTYPES,
    FLOATS,
    FULL,
    INTEGERS,
    LARGE,
    SUPPORTED,
    contribution,
    digest,
    dtype_of,
    longer,
    names,
    op_of,
    runnable,
    sizes,
    verify,
)
from forms import MPI_OPS, Allreduce
from interpreter import run

import collectives as cc

ALGORITHMS = names("allreduce")


def skip_unless_runnable(name, p):
    if not runnable("allreduce", name, p):
        pytest.skip(cc.algorithms.get("allreduce", name).refusal(p))


@pytest.mark.parametrize("op", SUPPORTED)
def test_supported_dtypes(op):
    assert tuple(op_of(op).dtypes()) == SUPPORTED[op]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_matrix(plain, algorithm, dtype):
    """Every operation and length at once, in flight together; and again one by one.

    Where ranks outnumber cores, what is in flight together shares the turns of the processes.
    """
    comm = plain.comm
    skip_unless_runnable(algorithm, comm.size)
    cases = [(op, n) for op in SUPPORTED if dtype in SUPPORTED[op] for n in sizes(comm.size)]
    requests = [
        comm.iallreduce(contribution(op, dtype, n, comm.rank), op=op_of(op), algorithm=algorithm)
        for op, n in cases
    ]
    results = [request.wait() for request in requests]
    for (op, n), result in zip(cases, results, strict=True):
        verify(result, op, dtype, n, comm.size)
    if cc.algorithms.get("allreduce", algorithm).same_bits:
        plain.agree(digest(*results))
    # By default one in seven, which is each length in turn.
    for turn, ((op, n), result) in enumerate(zip(cases, results, strict=True)):
        if FULL or turn % 7 == 0:
            x = contribution(op, dtype, n, comm.rank)
            y = comm.allreduce(x, op=op_of(op), algorithm=algorithm)
            assert digest(y) == digest(result)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_large_with_every_algorithm(world, algorithm):
    comm = world.comm
    skip_unless_runnable(algorithm, comm.size)
    y = comm.allreduce(contribution("SUM", "float32", LARGE, comm.rank), algorithm=algorithm)
    verify(y, "SUM", "float32", LARGE, comm.size)
    world.agree(digest(y))


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_of_every_dtype(world, dtype):
    comm = world.comm
    op = "LXOR" if dtype == "bool" else "SUM"
    y = comm.allreduce(contribution(op, dtype, LARGE, comm.rank), op=op_of(op))
    verify(y, op, dtype, LARGE, comm.size)
    world.agree(digest(y))


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, None])
def test_every_communicator(group, algorithm):
    comm = group.comm
    if algorithm is not None:
        skip_unless_runnable(algorithm, comm.size)
    for n in sizes(comm.size):
        for dtype in ("float32", "int64"):
            y = comm.allreduce(contribution("SUM", dtype, n, comm.rank), algorithm=algorithm)
            verify(y, "SUM", dtype, n, comm.size)


@pytest.mark.parametrize("op", MPI_OPS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "float64"])
def test_agrees_with_mpi(world, op, dtype):
    comm = world.comm
    for n in sizes(comm.size):
        form = Allreduce(comm.size, n, dtype=dtype, op=op)
        x = form.x(comm.rank).copy()
        theirs = form.theirs(world.mpi, x)
        ours = comm.allreduce(x, op=op_of(op))
        if dtype in INTEGERS or op in ("MIN", "MAX"):
            which = form.comparable(world.mpi, x)
            np.testing.assert_array_equal(ours[which], theirs[which])
        else:
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=comm.size**2 * 2.3e-16 * 26)


@pytest.mark.parametrize("n", [0, 1, 1009, 20000])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_where_the_result_goes(world, algorithm, n):
    """A new array, `out`, and `x` itself hold the same bits; only in place is `x` changed."""
    comm = world.comm
    skip_unless_runnable(algorithm, comm.size)
    x = contribution("SUM", "float32", n, comm.rank).copy()
    before = x.copy()
    new = comm.allreduce(x, algorithm=algorithm)
    assert not np.shares_memory(new, x)
    out = np.full_like(x, np.nan)
    assert comm.allreduce(x, out, algorithm=algorithm) is out
    assert digest(x) == digest(before)
    assert comm.allreduce(x, x, algorithm=algorithm) is x
    verify(new, "SUM", "float32", n, comm.size)
    assert digest(new) == digest(out) == digest(x)


@pytest.mark.parametrize("nbytes", [64, 1000])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_segments_change_no_bits(plain, segments, algorithm, nbytes):
    comm = plain.comm
    skip_unless_runnable(algorithm, comm.size)
    for dtype, n in (
        ("float32", 1009),
        ("float32", longer(nbytes)),
        ("float16", 1009),
        ("complex128", 7),
    ):
        x = contribution("SUM", dtype, n, comm.rank)
        with segments(comm, 0):
            want = comm.allreduce(x, algorithm=algorithm)
        verify(want, "SUM", dtype, n, comm.size)
        with segments(comm, nbytes):
            got = comm.allreduce(x, algorithm=algorithm)
            inplace = x.copy()
            comm.allreduce(inplace, inplace, algorithm=algorithm)
        assert digest(got) == digest(want) == digest(inplace), (dtype, n)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_agrees_with_the_plain_interpreter(world, algorithm):
    """The core folds in the order of the plan: equal bits, on every rank."""
    comm = world.comm
    skip_unless_runnable(algorithm, comm.size)
    for n in (comm.size + 1, 1009):
        y = comm.allreduce(contribution("SUM", "float32", n, comm.rank), algorithm=algorithm)
        digests = world.mpi.gather(digest(y))
        if comm.rank == 0:
            inputs = [contribution("SUM", "float32", n, r) for r in range(comm.size)]
            row = cc.algorithms.get("allreduce", algorithm)
            results = run(row, inputs, 0, np.add, [n])
            assert digests == [digest(parts[0]) for parts in results]


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_scales(world, dtype):
    comm = world.comm
    for n in (0, 1, 1009, 20000):
        x = contribution("SUM", dtype, n, comm.rank)
        y = comm.allreduce(x, prescale=0.25)
        verify(y, "SUM", dtype, n, comm.size, 0.25)
        y = comm.allreduce(x, postscale=-2.0)
        verify(y, "SUM", dtype, n, comm.size, -2.0)
        y = comm.allreduce(x, op=cc.AVG, prescale=0.5, postscale=3.0)
        verify(y, "AVG", dtype, n, comm.size, 1.5)
        y = x.copy()
        comm.allreduce(y, y, prescale=0.5, postscale=0.5)
        verify(y, "SUM", dtype, n, comm.size, 0.25)
        assert digest(x) == digest(contribution("SUM", dtype, n, comm.rank))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_scales_with_every_algorithm_and_segments(world, segments, algorithm):
    comm = world.comm
    skip_unless_runnable(algorithm, comm.size)
    x = contribution("SUM", "float64", 1009, comm.rank)
    for nbytes in (0, 64, 1000):
        with segments(comm, nbytes):
            y = comm.allreduce(x, op=cc.AVG, prescale=2.0, algorithm=algorithm)
        verify(y, "AVG", "float64", 1009, comm.size, 2.0)


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS])
@pytest.mark.parametrize("scale", ["prescale", "postscale"])
def test_integers_are_not_scaled(world, dtype, scale):
    op = cc.LOR if dtype == "bool" else cc.SUM
    x = np.ones(3, dtype)
    with pytest.raises(cc.errors.UnsupportedTypeError, match=f"need a floating dtype.*is {dtype}"):
        world.comm.allreduce(x, op=op, **{scale: 0.5})
    world.comm.allreduce(x, op=op, **{scale: 1.0})


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["MIN", "MAX"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nan_goes_on(world, algorithm, op, dtype):
    """Wherever one rank has NaN the result has it, as with numpy.minimum."""
    comm = world.comm
    skip_unless_runnable(algorithm, comm.size)
    x = contribution(op, dtype, 100, comm.rank).copy()
    x[comm.rank :: 16] = np.nan
    y = comm.allreduce(x, op=op_of(op), algorithm=algorithm)
    holes = np.arange(100) % 16 < comm.size
    np.testing.assert_array_equal(np.isnan(y.astype(np.float64)), holes)
    clean = np.stack([contribution(op, dtype, 100, r) for r in range(comm.size)])
    want = (clean.min if op == "MIN" else clean.max)(axis=0)
    np.testing.assert_array_equal(y[~holes], want[~holes])


def test_infinities(world):
    comm = world.comm
    x = np.array([np.inf, -np.inf, np.inf if comm.rank == 0 else -np.inf, 1e300])
    y = comm.allreduce(x)
    assert y[0] == np.inf
    assert y[1] == -np.inf
    assert np.isnan(y[2]) if comm.size > 1 else y[2] == np.inf
    assert comm.allreduce(x, op=cc.MAX)[2] == np.inf


def test_shape_is_kept(world):
    comm = world.comm
    for shape in ((), (1,), (0, 3), (3, 4, 5), (1, 1009)):
        y = comm.allreduce(np.ones(shape, np.int32))
        assert y.shape == shape
        assert (y == comm.size).all()


def test_module_function_and_counts(world):
    assert (cc.rank(), cc.size()) == (world.mpi.rank, world.mpi.size)
    assert 0 <= cc.local_rank() < cc.local_size() <= cc.size()
    out = np.empty(3)
    assert cc.allreduce(np.ones(3), out, op=cc.PROD, algorithm="ring") is out
    assert (out == 1).all()
    assert (cc.iallreduce(np.ones(3), postscale=2.0).wait() == 2 * cc.size()).all()


def test_many_sizes_share_a_choice(plain):
    """A choice is remembered for a class of sizes; what is remembered fits all of the class."""
    comm = plain.comm
    lengths = [*range(1, 70), *range(1000, 1030)]
    inputs = [np.arange(n) + comm.rank for n in lengths]
    requests = [comm.iallreduce(x, algorithm="ring") for x in inputs]
    for n, request in zip(lengths, requests, strict=True):
        want = comm.size * np.arange(n) + comm.size * (comm.size - 1) // 2
        np.testing.assert_array_equal(request.wait(), want)


def test_dtype_of_output_is_new(world):
    y = world.comm.allreduce(np.zeros(4, dtype_of("bfloat16")))
    assert y.dtype.name == "bfloat16"
