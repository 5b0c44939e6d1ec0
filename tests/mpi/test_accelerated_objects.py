"""Collectives of objects on accelerated communicators: against those of mpi4py itself."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from accelerated import Pair
from mpi4py import MPI

from collectives.errors import ArgumentError
from collectives.mpi4py import Served, accelerate

LARGE = 1 << 16
OBJECTS: dict[str, Callable[[int], Any]] = {
    "none": lambda rank: None,
    "small": lambda rank: {"rank": rank, "words": ["a", "b"]},
    "long": lambda rank: "x" * (100 * rank + 200),  # some fit into a record, and some do not
    "large": lambda rank: [rank, "y" * LARGE],
}
FOLDS: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "SUM": (MPI.SUM, lambda rank: [rank]),
    "PROD": (MPI.PROD, lambda rank: 2.5 + rank),
    "MAX": (MPI.MAX, lambda rank: (rank % 3, rank)),
    "LXOR": (MPI.LXOR, lambda rank: rank % 3),
    "BAND": (MPI.BAND, lambda rank: 7 - rank),
    "MINLOC": (MPI.MINLOC, lambda rank: (-(rank % 2), rank)),
    "MAXLOC": (MPI.MAXLOC, lambda rank: (rank % 2, rank)),
    "function": (lambda x, y: f"({x}{y})", str),  # neither commutative nor associative
    "builtin": (operator.add, lambda rank: "abcdefgh"[rank % 8] * 300),
    "None": (lambda x, y: None, lambda rank: rank),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_moves(pair: Pair, kind: str) -> None:
    make, p, me = OBJECTS[kind], pair.ours.size, pair.ours.rank
    for root in {0, p - 1}:
        results = [
            (
                comm.bcast(make(root) if me == root else "ignored", root),
                comm.gather(make(me), root=root),
                comm.scatter([make(r) for r in range(p)] if me == root else None, root),
                comm.allgather(make(me)),
            )
            for comm in pair
        ]
        assert results[0] == results[1]


@pytest.mark.parametrize("kind", [*OBJECTS, "one is long"])
def test_alltoall(pair: Pair, kind: str) -> None:
    p, me = pair.ours.size, pair.ours.rank
    if kind == "one is long":
        objs = ["z" * LARGE if (me, r) == (p - 1, 0) else [me, r] for r in range(p)]
    else:
        objs = [OBJECTS[kind](me + r) for r in range(p)]
    assert pair.ours.alltoall(objs) == pair.theirs.alltoall(objs)


class Failing:
    """An iterable that raises an error."""

    def __iter__(self) -> Iterator[Any]:
        raise KeyError("mine")


def test_objects_in_an_array(pair: Pair) -> None:
    p, root = pair.ours.size, pair.ours.size - 1
    for comm in pair:
        assert comm.alltoall(np.arange(p)) == [comm.rank] * p
        assert comm.scatter(np.arange(p) if comm.rank == root else None, root) == comm.rank


def test_alltoall_of_what_cannot_be_sent(pair: Pair) -> None:
    p, me = pair.ours.size, pair.ours.rank
    wrong: Any
    for wrong in (["x"] * (p + 1), None, Failing(), [lambda: None] * p):
        with pytest.raises(ArgumentError, match=f"rank {p - 1}"):
            pair.ours.alltoall(wrong if me == p - 1 else ["x"] * p)
    assert pair.ours.alltoall(["x"] * p) == ["x"] * p


@pytest.mark.parametrize("name", FOLDS)
def test_folds(pair: Pair, name: str) -> None:
    op, make = FOLDS[name]
    mine = make(pair.ours.rank)
    for root in {0, pair.ours.size - 1}:
        ours, theirs = (
            (
                comm.reduce(mine, op, root=root),
                comm.allreduce(mine, op=op),
                comm.scan(mine, op),
                comm.exscan(mine, op),
            )
            for comm in pair
        )
        if name == "function":  # mpi4py uses other brackets; a scan of ours folds from the left
            wanted = "0"
            for rank in range(1, pair.ours.size):
                wanted = f"({wanted}{rank})"
            assert ours[0] == (wanted if pair.ours.rank == root else None)
            assert ours[1] == wanted
            bare = [each and each.replace("(", "").replace(")", "") for each in ours]
            assert bare == [each and each.replace("(", "").replace(")", "") for each in theirs]
        else:
            assert ours == theirs


def test_arrays(pair: Pair) -> None:
    comm = pair.ours
    for n in (3, LARGE):
        x = np.full(n, float(comm.rank))
        assert (comm.allreduce(x) == sum(range(comm.size))).all()
        got = comm.allgather({"x": x})
        assert [each["x"][-1] for each in got] == list(range(comm.size))
        got[0]["x"][:] = 5  # a copy, which may be written
        assert (x == comm.rank).all()
        y = comm.bcast(x)
        assert (y is x) == (comm.rank == 0)
        assert (y == 0).all()


def test_they_are_served(pair: Pair) -> None:
    comm = accelerate(pair.theirs.Dup())
    comm.barrier()
    comm.bcast(1)
    comm.allreduce(1)
    comm.gather(1)
    names = ("allreduce", "barrier", "bcast", "gather")
    assert comm.served() == dict.fromkeys(names, Served(1, 0))
    comm.Free()


class Unusual:
    """An object that only the program's own pickler can send."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        raise TypeError("never by pickle")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unusual) and self.number == other.number

    __hash__ = object.__hash__


@pytest.fixture
def by_json() -> Iterator[None]:
    """Replace mpi4py's pickler by one that knows Unusual, and no buffers."""
    before = MPI.pickle.PROTOCOL

    def dumps(obj: Any) -> bytes:
        return json.dumps(obj, default=lambda each: {"unusual": each.number}).encode()

    def loads(data: Any) -> Any:
        text = bytes(data).decode()
        return json.loads(text, object_hook=lambda each: Unusual(each["unusual"]))

    MPI.pickle.__init__(dumps, loads)  # type: ignore[misc]
    yield
    MPI.pickle.__init__()  # type: ignore[misc]
    MPI.pickle.PROTOCOL = before


def test_the_pickler_of_the_program(pair: Pair, by_json: None) -> None:
    comm, p = pair.ours, pair.ours.size
    mine = Unusual(comm.rank)
    every = [Unusual(rank) for rank in range(p)]
    assert comm.bcast(mine) == Unusual(0)
    assert comm.allgather(mine) == every
    assert comm.scatter(every) == mine
    assert comm.gather(mine) == (every if comm.rank == 0 else None)
    largest = comm.allreduce(mine, lambda x, y: x if x.number > y.number else y)
    assert largest == every[-1]
    assert comm.scan(mine, lambda x, y: y) == mine
    assert comm.exscan(mine, lambda x, y: y) == (every[comm.rank - 1] if comm.rank else None)


def test_errors(pair: Pair) -> None:
    comm = pair.ours
    with pytest.raises(ArgumentError, match="cannot pickle"):
        comm.allgather((each for each in ()) if comm.rank == 0 else 1)
    with pytest.raises(ArgumentError, match="cannot pickle"):
        comm.bcast(each for each in ())
    with pytest.raises(MPI.Exception):
        comm.bcast(1, root=comm.size)
    for objs in ([1] * (comm.size + 1), None, 3, Failing()):
        with pytest.raises(ArgumentError, match=r"objs has \d objects|objs is (None|3|.*Failing)"):
            comm.scatter(objs)
    if comm.size > 1:

        def failing(x: int, y: int) -> int:
            raise KeyError("mine")

        with pytest.raises(ArgumentError, match="op raised KeyError: 'mine'"):
            comm.allreduce(1, failing)
    comm.barrier()
