"""Operations of MPI on accelerated communicators: places, and those that programs have made."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from accelerated import FORMS, Form, Pair, as_it_is, folded
from mpi4py import MPI

from collectives.errors import PeerAbortedError
from collectives.mpi4py import Served, accelerate
from collectives.mpi4py.datatypes import PAIR_DTYPES

FOLDING = ("Allreduce", "Reduce", "Scan", "Exscan", "Reduce_scatter_block")


def _larger(a: Any, b: Any, datatype: MPI.Datatype | None) -> None:
    """Keep the larger of two numbers, for the datatype that it is given."""
    assert datatype == MPI.DOUBLE
    x, y = np.frombuffer(a, np.float64), np.frombuffer(b, np.float64)
    np.maximum(x, y, out=y)


def _first(a: Any, b: Any, datatype: MPI.Datatype | None) -> None:
    b[:] = a


@pytest.fixture
def made() -> Any:
    """Return a function that makes operations, which are freed."""
    operations = []

    def make(function: Callable[..., Any], commute: bool) -> MPI.Op:
        operations.append(MPI.Op.Create(function, commute))
        return operations[-1]

    yield make
    for each in operations:
        each.Free()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("commute", [False, True])
def test_functions(pair: Pair, made: Any, commute: bool, form: Form, in_place: bool) -> None:
    for function in (_larger, _first):
        if commute and function is _first:
            continue
        op = made(function, commute)
        before = _here(pair)
        got = folded(pair.ours, op, form, in_place)
        assert got == folded(pair.theirs, op, as_it_is, in_place)
        assert _here(pair) - before == (6 if in_place else 7)


def _here(pair: Pair) -> int:
    served = pair.ours.served()
    return sum(served[name].here for name in (*FOLDING, "Reduce_scatter") if name in served)


def test_a_function_that_keeps_its_arguments(pair: Pair, made: Any) -> None:
    """There is memory behind them when the arrays and the communicator are gone."""
    kept: list[Any] = []

    def keeps(a: Any, b: Any, datatype: MPI.Datatype | None) -> None:
        x, y = np.frombuffer(a), np.frombuffer(b)
        y += x
        kept.append((x, y))

    op = made(keeps, True)
    for n in (3, 300_000):
        comm = accelerate(pair.theirs.Dup())
        comm.Allreduce(np.full(n, 1.0 + n), np.empty(n), op)
        comm.Free()
    gc.collect()
    for x, y in kept:
        assert np.isfinite(x).all()
        assert np.isfinite(y).all()


def test_functions_in_requests(pair: Pair, made: Any) -> None:
    comm = pair.ours
    op = made(_larger, True)
    x = np.arange(1000.0) * (-1) ** comm.rank
    want = np.empty_like(x)
    pair.theirs.Allreduce(x, want, MPI.MAX)
    comm.Barrier()
    results = [np.empty_like(x) for _ in range(2)]
    requests = [comm.Iallreduce(x, each, op) for each in results]
    MPI.Request.Waitall(requests)
    persistent = comm.Allreduce_init(x, np.empty_like(x), op)
    for _ in range(2):
        persistent.Start()
        persistent.Wait()
    persistent.Free()
    for each in results:
        np.testing.assert_array_equal(each, want)


def test_an_operation_that_python_has_not_made(pair: Pair, made: Any) -> None:
    """MPI calls the function of an operation that is only a handle here."""
    op = MPI.Op.fromhandle(made(_larger, True).handle)
    x, y = np.full(3, float(pair.ours.rank)), np.empty(3)
    before = _here(pair)
    pair.ours.Allreduce(x, y, op)
    assert (y == pair.ours.size - 1).all()
    assert _here(pair) == before + 1


def test_what_has_gaps_is_left_to_mpi(pair: Pair, made: Any) -> None:
    comm = accelerate(pair.theirs.Dup())
    x = np.arange(6.0) * comm.rank
    datatype = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    op = made(_first, False)
    y = np.full(6, -1.0)
    comm.Allreduce([x, 1, datatype], [y, 1, datatype], op)
    assert comm.served()["Allreduce"] == Served(0, 1)
    twice = MPI.DOUBLE.Create_contiguous(2).Commit()
    comm.Allreduce([x, 3, twice], [y, 3, twice], op)
    assert comm.served()["Allreduce"] == Served(1, 1)
    assert (y == 0).all()
    comm.Free()
    datatype.Free()
    twice.Free()


@pytest.mark.parametrize("name", PAIR_DTYPES)
@pytest.mark.parametrize("op", [MPI.MINLOC, MPI.MAXLOC], ids=["MINLOC", "MAXLOC"])
def test_places(pair: Pair, name: str, op: MPI.Op) -> None:
    """Arrays of structures are used as they lie; of raw bytes, the gaps are left as they are."""
    comm, p, datatype = pair.ours, pair.ours.size, getattr(MPI, name)
    dtype = PAIR_DTYPES[name]
    x = np.zeros(3 * p, dtype)
    x["value"] = (np.arange(3 * p) * 7 + comm.rank * 5) % 4
    x["index"] = comm.rank
    for is_raw in (False, True, comm.rank % 2 == 0):
        for call in FOLDING:
            parts = p if call == "Reduce_scatter_block" else 1
            results = []
            for each in pair:
                y = np.full(3 * p // parts * dtype.itemsize, 77, np.uint8).view(dtype)
                given, taken = ((a.view(np.uint8) if is_raw else a) for a in (x, y))
                sizes = (3 * p // parts, 3 * p // parts)
                getattr(each, call)(
                    [given, sizes[0], datatype] if parts == 1 else [given, datatype],
                    [taken, sizes[1], datatype],
                    op=op,
                )
                results.append(y)
            ours, theirs = results
            if (call == "Reduce" and comm.rank) or (call == "Exscan" and not comm.rank):
                continue
            for field in ("value", "index"):
                np.testing.assert_array_equal(ours[field], theirs[field], call)
            if is_raw:
                assert _gaps(ours) <= {77}


def _gaps(x: Any) -> set[int]:
    """Return the bytes between fields, and behind them."""
    rows = x.view(np.uint8).reshape(-1, x.dtype.itemsize)
    used = [False] * x.dtype.itemsize
    for name in x.dtype.names:
        field, at = x.dtype.fields[name]
        used[at : at + field.itemsize] = [True] * field.itemsize
    return set(rows[:, ~np.array(used)].ravel().tolist())


def test_places_in_place_and_in_requests(pair: Pair) -> None:
    comm = pair.ours
    before = _here(pair)
    for is_raw in (False, True):
        x = np.zeros(2, PAIR_DTYPES["DOUBLE_INT"])
        x["value"], x["index"] = (comm.rank % 2, -comm.rank), comm.rank
        spec = [x.view(np.uint8) if is_raw else x, 2, MPI.DOUBLE_INT]
        y = np.zeros_like(x)
        there = [y.view(np.uint8) if is_raw else y, 2, MPI.DOUBLE_INT]
        comm.Iallreduce(spec, there, MPI.MAXLOC).Wait()
        assert y.tolist() == [(min(1, comm.size - 1), min(1, comm.size - 1)), (0, 0)]
        comm.Allreduce(MPI.IN_PLACE, spec, MPI.MAXLOC)
        assert x.tolist() == y.tolist()
    assert _here(pair) == before + 2


def test_places_of_what_is_no_pair(pair: Pair) -> None:
    x = np.zeros(3)
    for comm in pair:
        with pytest.raises(MPI.Exception):
            comm.Allreduce(x, np.empty_like(x), MPI.MINLOC)


def test_places_of_pairs_without_a_datatype(pair: Pair) -> None:
    """mpi4py finds no datatype for an array of structures."""
    x = np.zeros(3, PAIR_DTYPES["DOUBLE_INT"])
    for comm in pair:
        for call in (comm.Allreduce, comm.Iallreduce, comm.Scan, comm.Allgather):
            with pytest.raises(KeyError, match="cannot map"):
                call(x, np.empty_like(x), *(() if call == comm.Allgather else (MPI.MINLOC,)))
        comm.Barrier()


@pytest.mark.parametrize("op", [MPI.SUM, MPI.MAXLOC], ids=["SUM", "MAXLOC"])
def test_ranks_describe_parts_as_they_like(pair: Pair, op: MPI.Op) -> None:
    comm, p = pair.ours, pair.ours.size
    dtype = PAIR_DTYPES["FLOAT_INT"] if op == MPI.MAXLOC else np.dtype(np.float64)
    datatype = MPI.FLOAT_INT if op == MPI.MAXLOC else MPI.DOUBLE
    x, y = np.ones(2 * p, dtype), np.zeros(2, dtype)
    given, taken = (each.view(np.uint8) if comm.rank % 2 else each for each in (x, y))
    comm.Reduce_scatter_block([given, datatype], [taken, 2, datatype], op)
    assert y.tolist() == ([(1, 1)] * 2 if op == MPI.MAXLOC else [p] * 2)


def test_another_object_of_an_operation(pair: Pair) -> None:
    """It is the same operation, which runs here on all ranks, whichever object they have."""
    comm, x = pair.ours, np.ones(3)
    before = _here(pair)
    for op, want in ((MPI.SUM, comm.size), (MPI.MAX, 1)):
        y = np.zeros(3)
        comm.Allreduce(x, y, MPI.Op(op) if comm.rank else op)
        assert (y == want).all()
    assert _here(pair) == before + 2


@pytest.mark.several
def test_a_function_that_raises(pair: Pair, made: Any) -> None:
    """Each rank that waits for its result is told; none goes on with a wrong one."""
    comm = accelerate(pair.theirs.Dup())
    comm.Barrier()

    def fails(a: Any, b: Any, datatype: MPI.Datatype) -> None:
        raise ZeroDivisionError("no such fold")

    told: Any = None
    try:
        comm.Allreduce(np.ones(3), np.zeros(3), made(fails, False))
    except (ZeroDivisionError, PeerAbortedError) as error:
        told = error
    everyone = pair.theirs.allgather(type(told).__name__)
    assert "ZeroDivisionError" in everyone
    assert set(everyone) <= {"ZeroDivisionError", "PeerAbortedError"}
    assert "no such fold" in str(told)
