"""Many calls on several ranks, for the runner with the core and the one without it.

The results, bit by bit, and the texts of the errors are printed as JSON, and must be the same.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from typing import Any

import numpy as np

import collectives as cc
from collectives import algorithms
from collectives.algorithms import Exchange

DTYPES = ("float32", "float16", "float64", "int32", "uint8", "bool", "complex64", "float128")
OPS = ("SUM", "MAX", "MIN", "PROD", "AVG", "LAND", "LXOR", "BOR", "BXOR")
MOVES = ("broadcast", "allgather", "gather", "scatter", "alltoall")
FOLDS = ("allreduce", "reduce", "reduce_scatter", "scan", "exscan")


def up_and_down(r: int, p: int):
    """The sum passes up to the last rank, and the result passes back down."""
    if r > 0:
        yield Exchange(recv=(r - 1, 0), fold=True)
    if r < p - 1:
        yield Exchange(send=(r + 1, 0))
        yield Exchange(recv=(r + 1, 0))
    if r > 0:
        yield Exchange(send=(r - 1, 0))


def bits(value: Any) -> Any:
    """Write a result so that equal texts are equal bits."""
    if isinstance(value, np.ndarray):
        said = hashlib.sha1(np.ascontiguousarray(value).tobytes()).hexdigest()[:12]
        return f"{value.dtype} {value.shape} {said}"
    if isinstance(value, (list, tuple)):
        return [bits(each) for each in value]
    return repr(value)


class Log:
    """The calls of a rank, and their results or errors."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Any]] = []

    def __call__(self, name: str, call: Any, *args: Any, **options: Any) -> Any:
        try:
            result = call(*args, **options)
        except Exception as error:
            text = str(error).partition(" (the last calls of each rank: ")[0]
            self.lines.append((name, f"{type(error).__name__}: {text}"))
            return None
        self.lines.append((name, bits(result)))
        return result


def data(rank: int, count: int, dtype: str) -> np.ndarray:
    rng = np.random.default_rng([rank, count])
    made = rng.normal(size=count) * 10.0 ** rng.integers(-3, 4, count)
    if dtype in ("float16", "float32", "float64", "float128") and count > 6:
        made[:6] = [np.nan, -0.0, 0.0, np.inf, -np.inf, 1.0][rank % 3 :] + [-0.0] * (rank % 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dtype == "complex64":
            return (made + 1j * made[::-1]).astype(dtype)
        if dtype == "float128":  # a third of it has bits beyond those of float64
            return made.astype(dtype) / 3
        return made.astype("int64").astype(dtype) if dtype[0] in "iu" else made.astype(dtype)


def folds(log: Log, comm: Any) -> None:
    """Collectives that fold, with each dtype and operation, and each algorithm."""
    for dtype in DTYPES:
        for op in OPS:
            log(f"allreduce {dtype} {op}", comm.allreduce, data(comm.rank, 41, dtype), op=op)
    for name in FOLDS:
        for count in (0, 1, 13, 60, 20000):
            x = data(comm.rank, count * (comm.size if name == "reduce_scatter" else 1), "float32")
            log(f"{name} {count}", getattr(comm, name), x)
            log(f"{name} {count} bits", getattr(comm, name), x, bits="size")
        for algorithm in algorithms.names(name):
            x = data(comm.rank, 60 * comm.size, "float32")
            log(f"{name} {algorithm}", getattr(comm, name), x, algorithm=algorithm)
    last = comm.size - 1
    x = data(comm.rank, 12, "float32")
    log("reduce to the last", comm.reduce, x, root=last, op=cc.AVG)
    log("scaled", comm.allreduce, x, prescale=0.3, postscale=1.7)
    log("scaled half", comm.allreduce, x.astype("float16"), prescale=0.3, op="avg")
    log("in place", comm.allreduce, x, out=x)
    parts = data(comm.rank, 6 * comm.size, "float64")
    mine = parts[6 * comm.rank : 6 * comm.rank + 6]
    log("reduce_scatter in place", comm.reduce_scatter, parts, out=mine)
    log("reduce_scatter in MPI's place", comm.reduce_scatter, parts, out=parts[:6])
    log("the rest", lambda: parts)
    pairs = np.zeros(5, "float64,int64")
    pairs["f0"], pairs["f1"] = [1, comm.rank, -comm.rank, np.nan, 0.0], comm.rank
    log("minloc", comm.allreduce, pairs, op=cc.MINLOC)
    log("maxloc", comm.allreduce, pairs, op=cc.MAXLOC)
    matrix = np.arange(6.0).reshape(2, 3) * comm.rank
    log("a matrix", comm.allreduce, matrix)
    log("in Fortran's order", comm.allreduce, matrix, out=np.empty((2, 3), order="F"))
    log("strided", comm.allreduce, np.arange(10)[::2])
    log("a number", comm.allreduce, 2.5)
    log("a memoryview", comm.allreduce, memoryview(np.arange(4.0)))
    log("an algorithm of the program", comm.allreduce, x, algorithm="up_and_down")

    def further(incoming: np.ndarray, accumulator: np.ndarray) -> None:
        larger = abs(incoming) > abs(accumulator)
        accumulator[larger] = incoming[larger]

    for is_free in (True, False):
        mine_too = cc.reduction(further, commutative=is_free)
        log(f"a function {is_free}", comm.allreduce, data(comm.rank, 33, "float64"), op=mine_too)


def moves(log: Log, comm: Any) -> None:
    """Collectives that move, vector forms, objects, messages and groups."""
    rank, size = comm.rank, comm.size
    for name in MOVES:
        for count in (0, 5, 3000):
            x = data(rank, count * (size if name in ("scatter", "alltoall") else 1), "float64")
            log(f"{name} {count}", getattr(comm, name), x)
        for algorithm in algorithms.names(name):
            x = np.arange(4 * size) + rank
            log(f"{name} {algorithm}", getattr(comm, name), x, algorithm=algorithm)
    x = np.arange(3) + rank
    log("text", comm.allgather, np.arange(3).astype("m8[s]").view("int64"))
    log("broadcast to out", comm.broadcast, x if rank == 0 else None, out=np.empty(3, int))
    counts = [k + 1 for k in range(size)]
    some = np.arange(float(counts[rank])) * 3
    log("allgatherv", comm.allgatherv, some)
    log("allgatherv counts", comm.allgatherv, some, counts=counts)
    out = np.full(sum(counts) + size, -1.0)
    displs = [sum(counts[:k]) + k for k in range(size)]
    log("allgatherv displs", comm.allgatherv, some, out=out, counts=counts, displs=displs)
    log("gatherv", comm.gatherv, some, root=size - 1)
    log("scatterv", comm.scatterv, np.arange(1.0 * size), out=np.empty(1))
    log("scatterv parts", comm.scatterv, np.arange(10.0))
    log("reduce_scatterv", comm.reduce_scatterv, np.arange(10.0) * rank)
    sends = [(rank + k) % 3 for k in range(size)]
    log("alltoallv", comm.alltoallv, np.arange(float(sum(sends))), sends)
    log("barrier", comm.barrier)
    big = {"rank": rank, "array": np.full(20000, rank)}
    log("broadcast_object", comm.broadcast_object, big)
    log("gather_object", comm.gather_object, ["x"] * rank)
    log("allgather_object", comm.allgather_object, big)
    log("scatter_object", comm.scatter_object, [str(k) for k in range(size)])
    log("alltoall_object", comm.alltoall_object, [(rank, k) for k in range(size)])
    log("allreduce_object", comm.allreduce_object, {rank}, op=lambda a, b: a | b)
    log("scan_object", comm.scan_object, f"{rank}", op=lambda a, b: a + b)
    after, before = (rank + 1) % size, (rank - 1) % size
    log("sendrecv", comm.sendrecv, x, after, np.empty(3, int), before)
    request = comm.isend(x, after, tag=4)
    log("recv", comm.recv, np.empty(3, int), before, tag=4)
    log("isend", request.wait)
    log("no rank", comm.recv, x, None)
    requests = [comm.iallreduce(np.full(3, k)) for k in range(3)]
    log("requests", lambda: [each.wait() for each in reversed(requests)])
    planned = comm.plan("allreduce", x, op=cc.MAX)
    log("planned", lambda: [planned(), planned.start().wait()])
    arrays = [data(rank, n, kind) for n in (3, 0, 9000, 40) for kind in ("float32", "float64")]
    log("many", comm.allreduce_many, arrays, op=cc.AVG)
    log("many in place", comm.allreduce_many, arrays, out=arrays)
    log("many at once", lambda: comm.iallreduce_many(arrays, op="max").wait())
    part = log("split", lambda: comm.split(rank % 2, -rank).allgather(np.array([rank])))
    assert part is not None
    log("no color", comm.split, None)
    with comm.dup() as other:
        log("dup", other.allreduce, x)
    log("same", comm.same, {"a": 1})
    log("not the same", comm.same, {"a": 1, "b": rank}, "model")
    log("algorithm", lambda: str(comm.explain("allreduce", 10000).algorithm.name))


def refusals(log: Log, comm: Any) -> None:
    """Calls that all ranks refuse, before anything is sent."""
    rank, size = comm.rank, comm.size
    x = np.arange(6.0)
    frozen = np.arange(6.0)
    frozen.flags.writeable = False
    wrong: list[tuple[Any, ...]] = [
        (comm.allreduce, None),
        (comm.allreduce, "text"),
        (comm.allreduce, [1.0, 2.0]),
        (comm.allreduce, x.astype(">f8")),
        (comm.allreduce, np.array(["a"])),
        (comm.allreduce, np.array([None])),
        (comm.allreduce, np.zeros(2, "m8[s]")),
        (comm.allreduce, np.ma.array([1.0])),
        (comm.allreduce, 1 << 70),
        (comm.allreduce, x, np.empty(5)),
        (comm.allreduce, x, np.empty(6, "float32")),
        (comm.allreduce, x, frozen),
        (comm.allreduce, x, np.empty(12)[::2]),
        (comm.allreduce, x[:4], x[1:5]),
        (comm.reduce_scatter, np.arange(6.0 * size), np.empty(7)),
        (comm.alltoall, np.arange(size + 1.0) if size > 1 else None),
        (comm.allgatherv, x, None),
        (comm.send, None, 0),
        (comm.send, x, size),
        (comm.send, x, "a"),
        (comm.recv, None, 0),
        (comm.sendrecv, x, rank, np.empty(6, int), rank),
        (comm.sendrecv, x, rank, x, rank),
        (comm.split, -3),
        (comm.split, 0, "a"),
        (comm.scatter_object, None),
        (comm.broadcast_object, lambda: 0),
        (comm.alltoall_object, [1] * (size + 1)),
        (comm.plan, "bcast"),
        (comm.allreduce_many, 3),
        (comm.allreduce_many, [x, "a"]),
        (comm.allreduce_many, [x, x], [np.empty(6)]),
        (comm.allreduce_many, [x], [np.empty(5)]),
        (comm.allreduce_many, [x], [np.empty(6, int)]),
        (comm.allreduce_many, [x[:4], x[2:]], [x[1:5], x[2:]]),
        (comm.plan, "allreduce", np.arange(10)[::2]),
        (comm.explain, 3),
        (cc.reduction, 3),
        (cc.wait_all, [3]),
        (cc.wait_any, (3,)),
    ]
    for k, (call, *args) in enumerate(wrong):
        log(f"{k}: {call.__name__}", call, *args)


def refused_options(log: Log, comm: Any) -> None:
    """Options that all ranks refuse."""
    rank, size = comm.rank, comm.size
    x = np.arange(6.0)
    options: list[dict[str, Any]] = [
        {"op": "nonsense"},
        {"op": 3},
        {"op": "band"},
        {"op": cc.MINLOC},
        {"algorithm": "bruk"},
        {"algorithm": 3},
        {"bits": "many"},
        {"prescale": "a"},
        {"postscale": None},
        {"timeout": -1},
        {"timeout": "soon"},
        {"op": cc.reduction(lambda a, b: None, name="mine"), "bits": "size"},
    ]
    for each in options:
        log(f"allreduce {next(iter(each))}", comm.allreduce, x, **each)
    log("integers", comm.allreduce, np.arange(3), op=cc.AVG)
    log("scaled integers", comm.allreduce, np.arange(3), prescale=2.0)
    log("the mean of a scan", comm.scan, x, op="avg")
    log("root", comm.reduce, x, root=size)
    log("root", comm.reduce, x, root="a")
    log("tag", comm.send, x, 0, tag=-1)
    log("counts", comm.allgatherv, x, counts=[6] * (size + 1))
    log("counts", comm.allgatherv, x, counts=[5] * size)
    log("counts", comm.allgatherv, x, counts=3)
    log("counts", comm.allgatherv, x, counts=[-1] * size)
    log("displs", comm.allgatherv, x, counts=[6] * size, displs=[0] * size)
    given = {"counts": [6] * size, "displs": [1] * size, "out": np.empty(6 * size)}
    log("displs", comm.allgatherv, x, **given)
    if size > 1:
        other = [1] * size
        own = [1 + (k == rank) for k in range(size)]
        log("receive_counts", comm.alltoallv, np.arange(size), other, receive_counts=own)
    own = comm.dup()
    log("a new result", own.allreduce, x, op=cc.reduction(np.add, name="sum"))


def disagreements(log: Log, comm: Any) -> None:
    """Calls that differ, each on a communicator of its own, which it breaks."""
    first = comm.rank == 0
    x = np.arange(6.0)
    for k, call in enumerate([
        lambda c: c.allreduce(x) if first else c.barrier(),
        lambda c: c.allreduce(x if first else x[:3]),
        lambda c: c.allreduce(x if first else np.arange(6)),
        lambda c: c.allreduce(x, op="sum" if first else "max"),
        lambda c: c.allgather(x) if first else c.allgatherv(x, counts=[6] * comm.size),
        lambda c: c.allreduce(x, algorithm="ring" if first else "halving_doubling"),
        lambda c: c.split(0) if first else c.allreduce(x),
        lambda c: c.same(1) if first else c.same(2),
    ]):  # fmt: skip
        own = comm.dup()
        log(f"disagreement {k}", call, own)
    if comm.size == 2:
        for k, place in enumerate([np.empty(5), np.empty(7), np.empty(6, "int64")]):
            own = comm.dup()
            if first:
                own.send(x, 1)
            else:
                log(f"message {k}", own.recv, place, 0)
        own = comm.dup()
        if not first:
            log("deadline", lambda: own.recv(np.empty(1), 0, timeout=0.2))
        comm.barrier()


def cases() -> list[tuple[str, Any]]:
    """Make the calls; return what this rank has logged."""
    algorithms.algorithm("allreduce")(up_and_down)  # here, because processes do not run this file
    log, comm = Log(), cc.world()
    comm.barrier()
    folds(log, comm)
    moves(log, comm)
    refusals(log, comm)
    refused_options(log, comm)
    if comm.size > 1:
        disagreements(log, comm)
    return log.lines


if __name__ == "__main__" and len(sys.argv) == 1:  # as one of the ranks of a launcher
    every = cc.gather_object(cases())
    if every is not None:
        print(json.dumps({cc.size(): every}))
elif __name__ == "__main__":
    found = {n: cc.spawn(cases, int(n), timeout=300) for n in sys.argv[1:]}
    print(json.dumps(found))
