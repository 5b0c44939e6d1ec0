"""With ``op=SUM_REPRODUCIBLE``, the bits depend on the contributions alone, and are rounded once.

Each rank computes the right bits for itself, by the sums that `tests/core/test_exact_sums.py` holds
against rational numbers.
"""

import math

import numpy as np
import pytest
from cases import runnable
from dtypes import dtype_of
from mpi4py import MPI

import collectives as cc
from collectives import _core, background
from collectives.algorithms import names
from collectives.calls import exact_sums
from collectives.errors import (
    ArgumentError,
    BufferError,
    CommunicatorError,
    MismatchError,
    UnsupportedTypeError,
)

OP = cc.SUM_REPRODUCIBLE
DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


@pytest.fixture
def comm(plain):
    return plain.comm


def contributions(p, n, dtype="float32"):
    """Return what all ranks contribute, in rows: values of very different sizes."""
    rng = np.random.default_rng([p, n])
    dtype = dtype_of(dtype)
    wide = 6 if dtype.itemsize == 2 else 40
    x = rng.normal(size=(p, n)) * np.exp2(rng.integers(-wide, wide, (p, n)))
    if dtype.kind == "c":
        x = x + 1j * rng.normal(size=(p, n))
    x[rng.random((p, n)) < 0.01] = np.inf
    x[rng.random((p, n)) < 0.1] = -0.0
    return x.astype(dtype)


def summed(rows):
    """Return the sums of the columns, each rounded once."""
    out = np.empty(rows.shape[1], rows.dtype)
    if rows.size:
        _core.exact_rows(out, np.ascontiguousarray(rows))
    return out


def same(got, want):
    got, want = np.ascontiguousarray(got), np.ascontiguousarray(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    np.testing.assert_array_equal(
        got.reshape(-1).view(np.uint8).reshape(-1, got.itemsize),
        want.reshape(-1).view(np.uint8).reshape(-1, got.itemsize),
    )


def sizes(p):
    return (0, 1, p - 1, p, p + 1, 101, 40_003)


@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce(comm, dtype):
    for n in sizes(comm.size):
        every = contributions(comm.size, n, dtype)
        x, want = every[comm.rank], summed(every)
        same(comm.allreduce(x, op=OP), want)
        same(x, every[comm.rank])
        same(comm.iallreduce(x, op="sum_reproducible").wait(), want)
        out = x.copy()
        assert comm.allreduce(out, out, op=OP) is out
        same(out, want)
        same(comm.allreduce_many([x, x[:3]], op=OP)[1], want[:3])


def test_segments(comm, segments):
    """Each piece of a block is folded in one step of all contributions."""
    every = contributions(comm.size, 40_009)
    x, want = every[comm.rank], summed(every)
    with segments(comm, 1 << 12):
        same(comm.allreduce(x, op=OP), want)
        got = comm.reduce(x, op=OP, root=comm.size - 1)
        if got is not None:
            same(got, want)


def test_long_scans_are_moved_by_pieces(comm, monkeypatch):
    """The pieces, and the parts of ranks in them, end anywhere."""
    monkeypatch.setattr(exact_sums, "SHORT", 0)
    monkeypatch.setattr(exact_sums, "PIECE", 640)
    for n in (0, 1, 1009):
        every = contributions(comm.size, n)
        x = every[comm.rank]
        same(comm.scan(x, op=OP), summed(every[: comm.rank + 1]))
        got = comm.exscan(x, op=OP)
        assert (got is None) == (comm.rank == 0)
        if got is not None:
            same(got, summed(every[: comm.rank]))


def test_many_ranks_add_words(comm, monkeypatch):
    monkeypatch.setattr(exact_sums, "MOST_AT_ONCE", 1)
    every = contributions(comm.size, 1009)
    same(comm.allreduce(every[comm.rank], op=OP), summed(every))


def test_whatever_is_learned(comm):
    every = contributions(comm.size, 70_001)
    x, want = every[comm.rank], summed(every)
    for n in (100, 5000, 70_001):
        comm._engine.settle(lambda n=n: same(comm.allreduce(x[:n], op=OP), want[:n]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_collectives(comm, dtype):
    p, rank = comm.size, comm.rank
    for n in sizes(p):
        every = contributions(p, n, dtype)
        x, want = every[rank], summed(every)
        for got in (comm.reduce(x, op=OP, root=p - 1), comm.ireduce(x, op=OP, root=p - 1).wait()):
            assert (got is None) == (rank != p - 1)
            if got is not None:
                same(got, want)
        for scan in (comm.scan(x, op=OP), comm.iscan(x, op=OP).wait()):
            same(scan, summed(every[: rank + 1]))
        if rank:
            same(comm.exscan(x, op=OP), summed(every[:rank]))
            same(comm.iexscan(x, op=OP).wait(), summed(every[:rank]))
        else:
            assert comm.exscan(x, op=OP) is None
            assert comm.iexscan(x, op=OP).wait() is None
        m = n // p
        part = slice(rank * m, (rank + 1) * m)
        same(comm.reduce_scatter(x[: p * m], op=OP), want[: p * m][part])
        same(comm.ireduce_scatter(x[: p * m], op=OP).wait(), want[: p * m][part])
        counts = [n // 2, *[0] * (p - 2), n - n // 2] if p > 1 else [n]
        edges = np.cumsum([0, *counts])
        got = comm.reduce_scatterv(x, counts=counts, op=OP)
        same(got, want[edges[rank] : edges[rank + 1]])


CASES = [
    (collective, name)
    for collective in ("allreduce", "reduce", "reduce_scatter", "scan", "exscan")
    for name in names(collective)
    if runnable(collective, name, MPI.COMM_WORLD.size)
]


@pytest.mark.parametrize(("collective", "algorithm"), CASES)
def test_all_algorithms(comm, collective, algorithm):
    p, rank = comm.size, comm.rank
    for dtype, n in (("float32", 5 * p), ("float64", 3 * p), ("complex64", 2 * p)):
        every = contributions(p, n, dtype)
        x, want = every[rank], summed(every)
        if collective == "reduce_scatter":
            want = want[rank * n // p : (rank + 1) * n // p]
        elif collective != "allreduce":
            want = summed(every[: rank + 1] if collective == "scan" else every[:rank])
            if collective == "reduce":
                want = summed(every)
        got = getattr(comm, collective)(x, op=OP, algorithm=algorithm)
        has_none = {"reduce": rank > 0, "exscan": rank == 0}
        if has_none.get(collective):
            assert got is None
        else:
            same(got, want)


def test_the_number_of_ranks_does_not_matter(comm):
    """A dot product over all ranks has the bits of one on each number of ranks."""
    n = 5040
    rng = np.random.default_rng(5)
    for dtype in ("float32", "float64"):
        a = (rng.normal(size=n) * np.exp2(rng.integers(-30, 30, n))).astype(dtype)
        b = rng.normal(size=n).astype(dtype)
        for size in range(1, comm.size + 1):
            part = comm.split(0 if comm.rank < size else None)
            if part is None:
                continue
            mine = np.arange(n)[part.rank :: size]
            dot = part.allreduce(cc.sum_local(a[mine] * b[mine]), op=OP)
            assert dot.dtype == dtype
            assert dot.shape == ()
            assert dot == np.dtype(dtype).type(math.fsum((a * b).tolist()))
            part.free()


def test_sums_in_all_collectives(comm):
    p, rank = comm.size, comm.rank
    every = np.stack([contributions(p, 2 * p * 3) for _ in range(2)]).reshape(2 * p, -1)
    every = every.reshape(p, 2, -1)
    sums = cc.sum_local(every[rank], 0)
    want = summed(every.reshape(2 * p, -1))
    same(comm.allreduce(sums, op=OP), want)
    same(comm.iallreduce(sums, op=OP).wait(), want)
    same(comm.allreduce(sums, op=OP, postscale=0.5), want * np.float32(0.5))
    out = np.empty_like(want)
    assert comm.allreduce(sums, out, op=OP) is out
    same(out, want)
    same(comm.scan(sums, op=OP), summed(every[: rank + 1].reshape(2 * (rank + 1), -1)))
    same(comm.reduce_scatter(sums, op=OP), want[6 * rank : 6 * rank + 6])
    got = comm.reduce(sums.reshape(2, -1), op=OP)
    assert (got is None) == (rank != 0)
    if got is not None:
        same(got, want.reshape(2, -1))
    if p > 2:
        same(comm.allreduce(sums, op=OP, algorithm="ring", bits="size"), want)


def test_plans(comm):
    p, rank = comm.size, comm.rank
    every = contributions(p, 1001)
    x = np.zeros(1001, np.float32)
    planned = comm.plan("allreduce", x, op=OP)
    with pytest.raises(CommunicatorError, match="was not started"):
        planned.wait()
    for turn in range(3):
        with np.errstate(invalid="ignore"):
            x[:] = every[rank] * np.float32(turn)
            want = summed(every * np.float32(turn))
        got = planned()
        same(got, want)
        assert planned.start() is planned
        assert planned.wait() is got
        same(got, want)
    with pytest.raises(ArgumentError, match="x has sums that are not rounded"):
        comm.plan("allreduce", cc.sum_local(x), op=OP)
    same(comm.plan("allreduce", every[rank].copy(), op=OP, algorithm="all_to_all")(), summed(every))
    if p > 2:
        with pytest.raises(ArgumentError, match=r"plan of allreduce 'ring' on . ranks would not"):
            comm.plan("allreduce", x, op=OP, algorithm="ring")


def test_sums_in_another_operation(comm):
    sums = cc.sum_local(np.ones(3))
    with pytest.raises(UnsupportedTypeError, match="reduce the result of sum_local with"):
        comm.allreduce(sums)
    with pytest.raises(UnsupportedTypeError, match=r"pass its fields one by one, x\['float64'\]"):
        comm.allreduce(np.zeros(2, [("float64", np.float64)]))
    with pytest.raises(UnsupportedTypeError, match=r"pass its fields one by one, x\['float64'\]"):
        comm.broadcast(sums)


def test_background(comm):
    p, rank = comm.size, comm.rank
    every = contributions(p, 1001)
    x, want = every[rank].copy(), summed(every)
    handles = [background.submit("allreduce", x, op=OP, name=f"x{k}", group=comm) for k in range(3)]
    for each in handles:
        same(each.wait(), want)
    background.submit("allreduce", x, x, op=OP, group=comm).wait()
    same(x, want)
    x = every[rank]
    same(background.submit("scan", x, op=OP, group=comm).wait(), summed(every[: rank + 1]))
    same(background.submit_many([x, x[:5]], op=OP, group=comm).wait()[1], want[:5])


def test_scales(comm):
    """The first acts on each contribution, the second on the result, as on every rank by itself."""
    every = contributions(comm.size, 1001)
    third, seventh = np.float32(1 / 3), np.float32(1 / 7)
    with np.errstate(invalid="ignore"):
        want = summed(every * third) * seventh
    x = every[comm.rank]
    for n in (1001, 5):
        got = comm.allreduce(x[:n], op=OP, prescale=float(third), postscale=float(seventh))
        same(got, want[:n])


def test_integers_are_exact_anyway(comm):
    x = np.arange(9) * (comm.rank + 1)
    same(comm.allreduce(x, op=OP), comm.allreduce(x))
    same(comm.allreduce(np.array([True]), op=OP), np.array([True]))


@pytest.mark.any_mpi
@pytest.mark.ranks(2)
def test_torch(comm):
    torch = pytest.importorskip("torch")
    every = contributions(comm.size, 1001, "bfloat16")
    x = torch.from_numpy(every[comm.rank].view(np.int16).copy()).view(torch.bfloat16)
    got = comm.allreduce(x, op=OP)
    assert got.dtype == torch.bfloat16
    same(got.view(torch.int16).numpy(), summed(every).view(np.int16))
    out = torch.empty((), dtype=torch.bfloat16)
    comm.allreduce(cc.sum_local(x[:0]), out, op=OP)
    assert float(out) == 0


def test_bad_arguments(comm):
    x = np.ones(8, np.float32)
    sums = cc.sum_local(np.ones((2, 3)), 0)
    with pytest.raises(UnsupportedTypeError, match="SUM_REPRODUCIBLE is not defined on float128"):
        comm.allreduce(np.ones(3, np.longdouble), op=OP)
    with pytest.raises(BufferError, match="out has 3 elements, and the result has 8"):
        comm.allreduce(x, x[:3].copy(), op=OP)
    with pytest.raises(BufferError, match="out has 3 elements of float32, and the result has 3 of"):
        comm.allreduce(sums, np.empty(3, np.float32), op=OP)
    with pytest.raises(UnsupportedTypeError, match="result of sum_local with op=SUM_REPRODUCIBLE"):
        comm.allreduce(sums)
    with pytest.raises(ArgumentError, match=r"prescale is 2\.0, and x has sums that are not"):
        comm.allreduce(sums, op=OP, prescale=2.0)
    with pytest.raises(ArgumentError, match="'rong'"):
        comm.allreduce(x, op=OP, algorithm="rong")
    if comm.size > 1:
        odd = cc.sum_local(np.ones((2, comm.size + 1)), 0)
        with pytest.raises(ArgumentError, match="ranks cannot share equally"):
            comm.reduce_scatter(odd, op=OP)
    comm.barrier()


@pytest.mark.several
def test_ranks_with_different_operations(world):
    """Under validation, all ranks are told, and the communicator can be used."""
    comm = world.comm
    for n in (8, 100_000):
        x = np.ones(n)
        with pytest.raises(MismatchError, match="SUM_REPRODUCIBLE") as caught:
            comm.allreduce(x, op=OP if comm.rank == 0 else cc.SUM)
        assert "rank 0 called" in str(caught.value)
        same(comm.allreduce(x, op=OP), np.full(n, float(comm.size)))
