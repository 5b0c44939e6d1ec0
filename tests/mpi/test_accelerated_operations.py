"""Operations of MPI on accelerated communicators: places, and those that programs have made."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from accelerated import DERIVED, FORMS, WAYS, Form, Pair, Through, as_it_is, folded
from mpi4py import MPI

from collectives.mpi4py import Served, accelerate, tasks
from collectives.mpi4py.datatypes import PAIR_DTYPES

FOLDING = ("Allreduce", "Reduce", "Scan", "Exscan", "Reduce_scatter_block")


def _larger(a: Any, b: Any, datatype: MPI.Datatype | None) -> None:
    """Keep the larger of two numbers, for the datatype that it is given."""
    assert datatype == MPI.DOUBLE
    x, y = np.frombuffer(a, np.float64), np.frombuffer(b, np.float64)
    np.maximum(x, y, out=y)


def _halves(a: Any, b: Any, datatype: MPI.Datatype | None) -> None:
    """Keep the smaller numbers in the first half of a buffer, and the larger ones in the second."""
    x, y = np.frombuffer(a), np.frombuffer(b)
    half = len(x) // 2
    np.minimum(x[:half], y[:half], out=y[:half])
    np.maximum(x[half:], y[half:], out=y[half:])


def _joined(a: Any, b: Any, datatype: MPI.Datatype | None) -> None:
    """Join numbers as strings of digits, of which zero has none: the order matters."""
    x, y = np.frombuffer(a), np.frombuffer(b)
    y += x * 10.0 ** sum(y >= 10.0**digits for digits in range(15))


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


@pytest.mark.parametrize("way", ["blocking", *WAYS])
@pytest.mark.parametrize("commute", [False, True])
@pytest.mark.parametrize("name", [*FOLDING, "Reduce_scatter"])
def test_functions_take_whole_buffers(
    pair: Pair, made: Any, name: str, commute: bool, way: str
) -> None:
    """As in MPICH, at every size; a reduce_scatter folds the whole part of a rank."""
    comm: Any = pair.ours if way == "blocking" else Through(pair.ours, way)
    p, me = comm.size, comm.rank
    lengths = set()

    def function(a: Any, b: Any, datatype: MPI.Datatype | None) -> None:
        lengths.add(len(a))
        assert len(a) == len(b)
        _halves(a, b, datatype)

    op = made(function, commute)
    ranks = {"Scan": range(me + 1), "Exscan": range(me)}.get(name, range(p))
    pair.ours.Barrier()  # so that requests run here
    before = _here(pair)
    for n in (2, 6, 10, 14, 500, 1000, 12_000, 25_000, 200_000):
        counts = [n + 2 * r for r in range(p)]
        total = {"Reduce_scatter": sum(counts), "Reduce_scatter_block": n * p}.get(name, n)
        n = counts[me] if name == "Reduce_scatter" else n
        x, y = np.arange(float(total)) + me, np.full(n, -1.0)
        options = {"recvcounts": counts} if name == "Reduce_scatter" else {}
        getattr(comm, name)(x, y, op=op, **options)
        if not ranks or (name == "Reduce" and me):
            continue
        at = sum(counts[:me]) if options else n * me if total > n else 0
        first, second = np.split(np.arange(float(n)) + at, 2)
        assert y.tolist() == [*(first + min(ranks)), *(second + max(ranks))]
        assert lengths == ({8 * n} if len(ranks) > 1 else set())
        lengths.clear()
    assert _here(pair) == before + (9 if way == "blocking" else 0)


@pytest.mark.parametrize("way", ["blocking", *WAYS])
@pytest.mark.parametrize("form", DERIVED)
@pytest.mark.parametrize("name", FOLDING)
def test_functions_on_derived_datatypes(
    pair: Pair, made: Any, name: str, form: Form, way: str
) -> None:
    """The function finds gaps between the elements, and the order in memory is that of the
    datatype; MPICH folds the wrong elements of a reduce_scatter.
    """
    comm: Any = pair.ours if way == "blocking" else Through(pair.ours, way)
    p, me = comm.size, comm.rank
    parts = p if name == "Reduce_scatter_block" else 1
    digits = [[(k + r) % 9 + 1.0 for k in range(4 * parts)] for r in range(p)]
    x, _ = form(digits[me])
    y, read = form([-1.0] * 4)
    x = [x[0], y[-1]] if parts > 1 else [*x[:-1], y[-1]]
    before = _here(pair)
    getattr(comm, name)(x, y, op=made(_joined, False))
    assert _here(pair) == before + (way == "blocking")
    ranks = {"Scan": range(me + 1), "Exscan": range(me)}.get(name, range(p))
    if not ranks or (name == "Reduce" and me):
        assert read() == [-1.0] * 4
        return
    first = 4 * me if parts > 1 else 0
    want = ["".join(f"{digits[r][first + k]:.0f}" for r in ranks) for k in range(4)]
    assert read() == list(map(float, want))


def test_functions_that_are_left_to_mpi(
    pair: Pair, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks take the same way, whatever the layout of their own memory is."""
    comm, p = accelerate(pair.theirs.Dup()), pair.ours.size
    op, x = made(_larger, True), np.arange(6.0) * pair.ours.rank
    before = MPI.DOUBLE.Create_indexed_block(1, [-1]).Commit()  # the element is before its place

    def keeps(a: Any, b: Any, datatype: MPI.Datatype | None) -> None:
        b[:] = b

    y = np.full(6, -1.0)
    comm.Allreduce([x[2:], 1, before], [y[2:], 1, before], made(keeps, True))
    assert comm.served()["Allreduce"] == Served(0, 1)
    monkeypatch.setattr(tasks, "MOST", 48 * p - 1)
    comm.Allreduce(x, y, op)
    comm.Allreduce(x[:5], y[:5], op)
    assert comm.served()["Allreduce"] == Served(1, 2)
    monkeypatch.setattr(tasks, "FEW", p - 1)
    comm.Allreduce(x[:5], y[:5], op)
    assert comm.served()["Allreduce"] == Served(1, 3)
    assert y.tolist() == (np.arange(6.0) * (p - 1)).tolist()
    comm.Free()
    before.Free()


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
@pytest.mark.parametrize("name", ["Allreduce", "Iallreduce"])
def test_a_function_that_raises(pair: Pair, made: Any, name: str) -> None:
    """Each rank that calls it gets its error, and the communicator is as it was."""
    comm = accelerate(pair.theirs.Dup())
    comm.Barrier()

    def fails(a: Any, b: Any, datatype: MPI.Datatype) -> None:
        raise ZeroDivisionError("no such fold")

    call, op = getattr(comm, name), made(fails, False)
    with pytest.raises(ZeroDivisionError, match="no such fold"):
        (call(np.ones(3), np.zeros(3), op) or MPI.REQUEST_NULL).Wait()
    y = np.zeros(3)
    comm.Allreduce(np.ones(3), y)
    assert (y == comm.size).all()
    comm.Free()
