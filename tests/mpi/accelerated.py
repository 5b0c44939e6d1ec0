"""Communicators, buffers and calls for tests of accelerated communicators."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from collectives.mpi4py import Intracomm


class Pair(NamedTuple):
    """An accelerated communicator, and a plain one of the same ranks."""

    ours: Intracomm
    theirs: MPI.Intracomm


MIXED = ("Wait", "Test", "Waitany", "Testsome", "wait", "Get_status")
WAYS = ["nonblocking", "persistent"]


class Through:
    """A communicator whose blocking collectives run as others, which are waited for at once."""

    def __init__(self, comm: Any, way: str) -> None:
        self.comm, self.way, self.calls = comm, way, 0
        self.rank, self.size = comm.rank, comm.size

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*args: Any, **options: Any) -> None:
            self.calls += 1
            if self.way == "nonblocking":
                finish(getattr(self.comm, f"I{name.lower()}")(*args, **options), self.calls)
                return
            request = getattr(self.comm, f"{name}_init")(*args, **options)
            request.Wait()  # nothing was started
            request.Start()
            finish(request, self.calls)
            assert request
            request.Free()
            assert not request

        return call


def finish(request: Any, number: int) -> None:
    """Wait for a request, each time in another way."""
    way = MIXED[number % len(MIXED)]
    if way in ("Wait", "wait"):
        getattr(request, way)()
    elif way == "Waitany":
        assert MPI.Request.Waitany([MPI.REQUEST_NULL, request]) == 1
    elif way == "Testsome":
        while MPI.Request.Testsome([request]) == []:
            pass
    else:
        while not getattr(request, way)():
            pass
        request.Wait()
    assert isinstance(request, MPI.Prequest) or request == MPI.REQUEST_NULL


# Buffer specifications of a row of float64: each takes the numbers, and returns the argument and
# the function that reads them back.
Form = Callable[[Any], tuple[Any, Callable[[], list[float]]]]


def as_it_is(values: Any) -> tuple[Any, Callable[[], list[float]]]:
    x = np.array(values, np.float64)
    return x, x.tolist


def with_type(values: Any) -> tuple[Any, Callable[[], list[float]]]:
    x = np.array(values, np.float64)
    return [x, MPI.DOUBLE], x.tolist


def with_code(values: Any) -> tuple[Any, Callable[[], list[float]]]:
    x = np.array(values, np.float64)
    return (x, "d"), x.tolist


def in_columns(values: Any) -> tuple[Any, Callable[[], list[float]]]:
    x = np.asfortranarray(np.empty((2, len(values) // 2)))
    x.ravel("K")[:] = values
    return x, lambda: x.ravel("K").tolist()


def of_python(values: Any) -> tuple[Any, Callable[[], list[float]]]:
    x = array.array("d", values)
    return x, x.tolist


def unaligned(values: Any) -> tuple[Any, Callable[[], list[float]]]:
    x = np.zeros(8 * len(values) + 1, np.uint8)[1:].view(np.float64)
    x[:] = values
    return [x.view(np.uint8), MPI.DOUBLE], x.tolist


FORMS = [as_it_is, with_type, with_code, in_columns, of_python, unaligned]


def every_second(values: Any) -> tuple[Any, Callable[[], list[float]]]:
    """Every second number of an array, by a derived datatype."""
    x = np.full(2 * len(values), -7.0)
    x[::2] = values
    datatype = MPI.DOUBLE.Create_resized(0, 16).Commit()
    return [x, len(values), datatype], lambda: x[::2].tolist()


def reversed_pairs(values: Any) -> tuple[Any, Callable[[], list[float]]]:
    """Numbers whose pairs are exchanged in memory: the datatype has no gaps, and another order."""
    x = np.array(values, np.float64).reshape(-1, 2)[:, ::-1].copy()
    datatype = MPI.DOUBLE.Create_indexed_block(1, [1, 0]).Commit()
    return [x, len(values) // 2, datatype], lambda: x[:, ::-1].ravel().tolist()


def repeated(values: Any) -> tuple[Any, Callable[[], list[float]]]:
    x = np.array(values, np.float64)
    return [x, MPI.DOUBLE.Create_contiguous(2).Commit()], x.tolist


DERIVED = [every_second, reversed_pairs, repeated]


def per_part(spec: Any, parts: int) -> Any:
    """Return a specification whose count is that of one of the parts."""
    if isinstance(spec, list) and len(spec) == 3:
        return [spec[0], spec[1] // parts, spec[2]]
    return spec


def numbers(comm: MPI.Comm, n: int) -> list[float]:
    return [100.0 * comm.rank + k for k in range(n)]


# Collectives that move: what this rank sends and receives, as numbers of parts, and the call.
MOVES: dict[str, tuple[str, str]] = {
    "Allgather": ("one", "all"),
    "Alltoall": ("all", "all"),
    "Gather": ("one", "all at root"),
    "Scatter": ("all at root", "one"),
}


def moved(comm: MPI.Intracomm, name: str, sends: Form, receives: Form, root: int) -> list[float]:
    """Call a collective that moves 4 numbers a part; return the received numbers."""
    sent, received = MOVES[name]
    args: list[Any] = []
    read: Callable[[], list[float]] = list
    for words, form, is_input in ((sent, sends, True), (received, receives, False)):
        if words.endswith("root") and comm.rank != root:
            args.append(None)
            continue
        parts = comm.size if words.startswith("all") else 1
        n = 4 * parts
        spec, reader = form(numbers(comm, n) if is_input else [-1.0] * n)
        args.append(per_part(spec, parts))
        if not is_input:
            read = reader
    options = {"root": root} if sent.endswith("root") or received.endswith("root") else {}
    getattr(comm, name)(*args, **options)
    return read()


def vector_forms(comm: MPI.Intracomm, kind: str, in_place: bool) -> list[list[float]]:
    """Call the vector forms with counts 0, 1, 2, ...; return what they leave in memory."""
    p, me = comm.size, comm.rank
    counts = list(range(p))
    starts = [sum(counts) + p - sum(counts[: r + 1]) for r in range(p)]  # the last rank's first
    if kind == "plain":
        starts = [sum(counts[:r]) for r in range(p)]
    step = 2 if kind == "derived" else 1
    datatype = MPI.DOUBLE if step == 1 else MPI.DOUBLE.Create_resized(0, 16).Commit()
    mine = np.repeat(numbers(comm, me), step)

    def room(values: Any = None) -> tuple[Any, Any]:
        x = np.full(step * (sum(counts) + 2 * p), -1.0)
        if values is not None:
            x[step * starts[me] :][: step * me] = values
        where = {"displaced": (counts, starts), "derived": (counts, starts), "plain": counts}
        return x, [x, where[kind], datatype]

    results = []
    x, spec = room(mine)
    comm.Allgatherv(MPI.IN_PLACE if in_place else [mine, me, datatype], spec)
    results.append(x.tolist())
    x, spec = room(mine)
    own = in_place and me == 0
    comm.Gatherv(MPI.IN_PLACE if own else [mine, me, datatype], spec if me == 0 else None)
    results.append(x.tolist() if me == 0 else [])
    whole, spec = room()
    whole[:] = np.arange(len(whole))
    y = np.full(step * (me + 1), -1.0)
    target = MPI.IN_PLACE if own else [y, me, datatype]
    comm.Scatterv(spec if me == 0 else None, target)
    results.append(y.tolist())
    sent, received = [(me + r) % 3 for r in range(p)], [(me + r) % 3 for r in range(p)]
    places = [3 * r for r in reversed(range(p))]
    a, b = np.arange(step * 3.0 * p) + 100 * me, np.full(step * 3 * p, -1.0)
    if in_place:
        comm.Alltoallv(MPI.IN_PLACE, [a, (received, places), datatype])
        b = a
    elif kind == "plain":
        comm.Alltoallv([a, sent, datatype], [b, received, datatype])
    else:
        comm.Alltoallv([a, (sent, places), datatype], [b, (received, 3), datatype])
    results.append(b.tolist())
    return results


def typed(comm: MPI.Intracomm, in_place: bool) -> tuple[list[Any], Any]:
    """Return the arguments of an alltoallw, in which each pair of ranks has a datatype, a count and
    gaps of its own, and the array that receives.
    """
    p, me = comm.size, comm.rank
    kinds = [
        MPI.INT,
        MPI.INT.Create_vector(3, 1, 2).Commit(),
        MPI.INT.Create_contiguous(3).Commit(),
    ]
    counts = [3 if (me + r) % 3 == 0 else 1 for r in range(p)]
    types = [kinds[(me + r) % 3] for r in range(p)]
    places = [40 * (p - 1 - r) for r in range(p)]
    x, y = np.arange(10 * p, dtype="i4") + 100 * me, np.full(10 * p, -1, "i4")
    spec = [y, (counts, places), types]
    if in_place:
        y[:] = x
        return [MPI.IN_PLACE, spec], y
    return [[x, counts, places, types], spec], y


def folded(comm: MPI.Intracomm, op: MPI.Op, form: Form, in_place: bool) -> list[Any]:
    """Call the collectives that fold; return the results that MPI defines."""
    p, me, root = comm.size, comm.rank, comm.size - 1
    results: list[Any] = []
    for name in ("Allreduce", "Reduce", "Scan", "Exscan", "Reduce_scatter_block"):
        mine, _ = form(numbers(comm, 4 * p))
        parts = 1 if name != "Reduce_scatter_block" or in_place else p
        spec, read = form(numbers(comm, 4 * p) if in_place else [-1.0] * (4 * p // parts))
        options = {"root": root} if name == "Reduce" else {}
        own = in_place and (name != "Reduce" or me == root)
        getattr(comm, name)(MPI.IN_PLACE if own else mine, spec, op=op, **options)
        if (name != "Reduce" or me == root) and (name != "Exscan" or me):
            results.append(read()[:4] if name == "Reduce_scatter_block" else read())
    counts = [2 * r for r in range(p)]
    mine, _ = form(numbers(comm, sum(counts)))
    spec, read = form(numbers(comm, sum(counts) if in_place else counts[me]))
    comm.Reduce_scatter(MPI.IN_PLACE if in_place else mine, spec, counts, op)
    results.append(read()[: counts[me]])
    if not in_place:  # the ranks exchange the counts
        spec, read = form([-1.0] * counts[me])
        comm.Reduce_scatter(mine, spec, None, op)
        results.append(read())
    return results
