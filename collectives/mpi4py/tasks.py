"""Collectives of mpi4py whose arguments are read: their starts here, and their ends.

Each function takes the arguments of mpi4py's method after the communicator of this library, and
returns a `Task`, or None if MPI has to run the call. This depends only on arguments that MPI
requires to be equal on all ranks: the root, the operation and the datatype of a reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from collectives._core import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    EXSCAN,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCAN,
    SCATTER,
    Reduction,
)
from collectives.communicator import Communicator
from collectives.mpi4py.datatypes import Dtype, fold_of, function_of, is_contiguous
from collectives.mpi4py.messages import Bytes, Message, aligned, is_in_place

Load = Callable[[], Any]

# MPI runs the folds by functions of programs of more ranks, or if a rank would receive more bytes.
FEW = 32
MOST = 64 << 20


def nothing() -> None:
    """Do nothing. Local."""


class Task(NamedTuple):
    """A collective that can be run any number of times."""

    start: Callable[[bool], Any]  # runs it if that is True; otherwise returns its requests
    finish: Callable[[], None] = nothing  # puts received data in its place


def barrier(comm: Communicator) -> Task:
    return _task(comm, BARRIER)


def bcast(comm: Communicator, buf: Any, root: int = 0) -> Task | None:
    if not 0 <= root < comm.size:
        return None
    is_root = comm.rank == root
    message = Message(buf, "buf", writes=not is_root)
    if is_root:  # its buffer may be read-only
        return _task(comm, BROADCAST, message.load, root=root)
    data = message.data
    return _task(comm, BROADCAST, lambda: data, data, root=root, finish=message.finish)


def gather(comm: Communicator, sendbuf: Any, recvbuf: Any, root: int = 0) -> Task | None:
    if not 0 <= root < comm.size:
        return None
    if comm.rank != root:
        source = Message(sendbuf, "sendbuf")
        return _task(comm, GATHER, source.load, root=root)
    load, target = _joined(comm, sendbuf, recvbuf)
    return _task(comm, GATHER, load, target.data, root=root, finish=target.finish)


def allgather(comm: Communicator, sendbuf: Any, recvbuf: Any) -> Task:
    load, target = _joined(comm, sendbuf, recvbuf)
    return _task(comm, ALLGATHER, load, target.data, finish=target.finish)


def scatter(comm: Communicator, sendbuf: Any, recvbuf: Any, root: int = 0) -> Task | None:
    if not 0 <= root < comm.size:
        return None
    source = None
    if comm.rank == root:
        source = Message(sendbuf, "sendbuf", comm.size)
        if is_in_place(recvbuf):
            return _task(comm, SCATTER, source.load, root=root)
    target = Message(recvbuf, "recvbuf", writes=True)
    out, finish = target.data, target.finish
    if source is None:
        return _task(comm, SCATTER, None, out, root=root, finish=finish)
    _fit(comm, source, target, received=comm.size)
    return _task(comm, SCATTER, source.load, out, root=root, finish=finish)


def alltoall(comm: Communicator, sendbuf: Any, recvbuf: Any) -> Task:
    target = source = Message(recvbuf, "recvbuf", comm.size, writes=True)
    if not is_in_place(sendbuf):
        source = Message(sendbuf, "sendbuf", comm.size)
        _fit(comm, source, target)
    return _task(comm, ALLTOALL, source.load, target.data, finish=target.finish)


def allgatherv(comm: Communicator, sendbuf: Any, recvbuf: Any) -> Task:
    load, target = _joined_parts(comm, sendbuf, recvbuf)

    def start(blocking: bool) -> Any:
        parts = target.counts, None, None, target.displs
        return comm._vector(ALLGATHER, load(), target.data, *parts, blocking=blocking)

    return Task(start, target.finish)


def gatherv(comm: Communicator, sendbuf: Any, recvbuf: Any, root: int = 0) -> Task | None:
    if not 0 <= root < comm.size:
        return None
    if comm.rank != root:
        source = Message(sendbuf, "sendbuf")

        def send(blocking: bool) -> Any:
            if blocking:
                return comm._engine.vector_alone(GATHER, source.load(), None, root)
            return [comm._message(source.load(), root, None, None)] if len(source.data) else []

        return Task(send)
    load, target = _joined_parts(comm, sendbuf, recvbuf)

    def start(blocking: bool) -> Any:
        data = load()
        if blocking:
            every = target.counts, target.displs
            return comm._engine.vector_alone(GATHER, data, target.data, root, *every)
        parts = _parts(target)
        parts[root][:] = data
        others = [(rank, part) for rank, part in enumerate(parts) if rank != root and len(part)]
        return [comm._message(None, None, part, rank) for rank, part in others]

    return Task(start, target.finish)


def scatterv(comm: Communicator, sendbuf: Any, recvbuf: Any, root: int = 0) -> Task | None:
    if not 0 <= root < comm.size:
        return None
    own = comm.rank == root and is_in_place(recvbuf)
    target = None if own else Message(recvbuf, "recvbuf", writes=True)
    out = None if target is None else target.data
    finish = nothing if target is None else target.finish
    if comm.rank != root:
        assert target is not None

        def receive(blocking: bool) -> Any:
            if blocking:
                return comm._engine.vector_alone(SCATTER, None, out, root)
            return [comm._message(None, None, out, root)] if len(target.data) else []

        return Task(receive, finish)
    source = Message(sendbuf, "sendbuf", comm.size, by_counts=True)

    def start(blocking: bool) -> Any:
        data = source.load()
        if blocking:
            every = source.counts, source.displs
            return comm._engine.vector_alone(SCATTER, data, out, root, *every)
        parts = _parts(source)
        if out is not None:
            out[:] = parts[root]
        others = [(rank, part) for rank, part in enumerate(parts) if rank != root and len(part)]
        return [comm._message(part, rank, None, None) for rank, part in others]

    return Task(start, finish)


def alltoallv(comm: Communicator, sendbuf: Any, recvbuf: Any) -> Task:
    target = source = Message(recvbuf, "recvbuf", comm.size, writes=True, by_counts=True)
    if not is_in_place(sendbuf):
        source = Message(sendbuf, "sendbuf", comm.size, by_counts=True)
    sent, received = source.counts, target.counts
    assert sent is not None

    def start(blocking: bool) -> Any:
        parts = sent, received, source.displs, target.displs
        return comm._vector(ALLTOALL, source.load(), target.data, *parts, blocking=blocking)

    return Task(start, target.finish)


def reduce(
    comm: Communicator, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0
) -> Task | None:
    if not 0 <= root < comm.size:
        return None
    if comm.rank == root:
        return _folded(comm, REDUCE, sendbuf, recvbuf, op, root)
    source = Message(sendbuf, "sendbuf")
    if not op.is_predefined:
        return _gathered(comm, REDUCE, source, None, op, root)
    fold = fold_of(op, source.datatype)
    if fold is None:
        return None
    load = _elements(source, fold[1])
    return _task(comm, REDUCE, load, None, fold[0], root)


def allreduce(comm: Communicator, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> Task | None:
    return _folded(comm, ALLREDUCE, sendbuf, recvbuf, op)


def scan(comm: Communicator, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> Task | None:
    return _folded(comm, SCAN, sendbuf, recvbuf, op)


def exscan(comm: Communicator, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> Task | None:
    return _folded(comm, EXSCAN, sendbuf, recvbuf, op)


def reduce_scatter_block(
    comm: Communicator, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM
) -> Task | None:
    source, target = _parts_to_fold(sendbuf, recvbuf, comm.size)
    if not op.is_predefined:
        _compare(source, target, target.count)
        return _exchanged(comm, source, target, op, [target.count] * comm.size)
    fold = fold_of(op, target.datatype)
    if fold is None:
        return None
    _compare(source, target, target.count)
    reduction, dtype = fold
    out, finish = _placed(target, dtype, target.count)
    load = _elements(source, dtype)
    return _task(comm, REDUCE_SCATTER, load, out, reduction, finish=finish)


def reduce_scatter(
    comm: Communicator,
    sendbuf: Any,
    recvbuf: Any,
    recvcounts: Any = None,
    op: MPI.Op = MPI.SUM,
) -> Task | None:
    """Without counts, the ranks exchange them, as in mpi4py."""
    source, target = _parts_to_fold(sendbuf, recvbuf, 1)
    fold = fold_of(op, target.datatype)
    if fold is None and op.is_predefined:
        return None
    if recvcounts is None and source is not target:
        counts = comm.allgather(np.array([target.count])).ravel().tolist()
    else:
        counts = list(recvcounts)
    _compare(source, target, sum(counts))
    if fold is None:
        return _exchanged(comm, source, target, op, counts)
    return _scattered(comm, source, target, fold, counts)


# By the names of mpi4py's methods.
TASKS: dict[str, Callable[..., Task | None]] = {
    function.__name__.capitalize(): function
    for function in (
        *(barrier, bcast, gather, gatherv, scatter, scatterv, allgather, allgatherv),
        *(alltoall, alltoallv, reduce, allreduce, scan, exscan),
        *(reduce_scatter_block, reduce_scatter),
    )
}


def _task(
    comm: Communicator,
    kind: int,
    load: Load | None = None,
    out: Any = None,
    op: Reduction | None = None,
    root: int = 0,
    finish: Callable[[], None] = nothing,
) -> Task:
    """Return a task that calls the core with the result of `load` each time."""

    def start(blocking: bool) -> Any:
        x = None if load is None else load()
        return comm._call(kind, x, out, op, root, None, blocking=blocking)

    return Task(start, finish)


def _joined(comm: Communicator, sendbuf: Any, recvbuf: Any) -> tuple[Load, Message]:
    """Return the contribution of a rank to a gather, and the received message."""
    target = Message(recvbuf, "recvbuf", comm.size, writes=True)
    nbytes = len(target.data) // comm.size
    if is_in_place(sendbuf):
        return lambda: target.load()[comm.rank * nbytes :][:nbytes], target
    source = Message(sendbuf, "sendbuf")
    _fit(comm, source, target, sent=comm.size)
    return source.load, target


def _joined_parts(comm: Communicator, sendbuf: Any, recvbuf: Any) -> tuple[Load, Message]:
    """Return the same of a vector form."""
    target = Message(recvbuf, "recvbuf", comm.size, writes=True, by_counts=True)
    if not is_in_place(sendbuf):
        return Message(sendbuf, "sendbuf").load, target

    def own() -> Bytes:
        target.load()
        return _parts(target)[comm.rank]

    return own, target


def _parts(message: Message) -> list[Bytes]:
    """Return the parts of the data of a vector form, in place."""
    counts = message.counts
    assert counts is not None
    displs = message.displs or [0, *accumulate(counts)][:-1]
    return [message.data[at : at + n] for at, n in zip(displs, counts, strict=True)]


def _fit(
    comm: Communicator, source: Message, target: Message, sent: int = 1, received: int = 1
) -> None:
    """Raise an error unless `sent` sendbufs are together as long as `received` recvbufs."""
    if len(source.data) * sent != len(target.data) * received:
        raise ValueError(
            f"sendbuf has {len(source.data)} bytes and recvbuf {len(target.data)}, which does not "
            f"fit on {comm.size} ranks"
        )


def _compare(source: Message, target: Message, count: int) -> None:
    """Raise mpi4py's error if the data that a rank sends does not fit the data that it receives."""
    if source.datatype != target.datatype:
        raise ValueError("sendbuf and recvbuf have different datatypes; they must be equal")
    if source.count != count:
        raise ValueError(
            f"{'recvbuf' if source is target else 'sendbuf'} has {source.count} elements, and "
            f"{count} are wanted"
        )


def _elements(message: Message, dtype: Dtype) -> Load:
    """Return a function that loads the elements of a message. Packed pairs have no gaps."""
    packed = _packed(message, dtype)
    if packed is None:
        return lambda: message.load().view(dtype)
    return lambda: message.load().view(packed).astype(dtype)


def _packed(message: Message, dtype: Dtype) -> np.dtype[Any] | None:
    """Return the dtype of pairs that MPI packs, because their datatype has gaps."""
    if message.datatype.Get_size() == np.dtype(dtype).itemsize:
        return None
    return np.dtype([(name, np.dtype(dtype)[name]) for name in np.dtype(dtype).names or ()])


def _folded(
    comm: Communicator, kind: int, sendbuf: Any, recvbuf: Any, op: MPI.Op, root: int = 0
) -> Task | None:
    """Return a fold in which each rank has as many elements as the result."""
    target = source = Message(recvbuf, "recvbuf", writes=True)
    if not is_in_place(sendbuf):
        source = Message(sendbuf, "sendbuf")
    if not op.is_predefined:
        _compare(source, target, target.count)
        return _gathered(comm, kind, source, target, op, root)
    fold = fold_of(op, target.datatype)
    if fold is None:
        return None
    _compare(source, target, target.count)
    reduction, dtype = fold
    out, finish = _placed(target, dtype, target.count, kind == EXSCAN and comm.rank == 0)
    load = _elements(source, dtype)
    return _task(comm, kind, load, out, reduction, root, finish)


def _placed(
    target: Message, dtype: Dtype, count: int, is_undefined: bool = False
) -> tuple[Any, Callable[[], None]]:
    """Return the array that a fold writes, and the function that puts it in another place."""
    packed = _packed(target, dtype)
    result = target.data.view(dtype if packed is None else packed)[:count]
    out = aligned(result) if packed is None else np.empty(count, dtype)

    def finish() -> None:
        if out is result or is_undefined:
            return
        if packed is not None:
            target.load()  # the memory after the result is not changed
        result[...] = out
        target.finish()

    return out, finish


def _parts_to_fold(sendbuf: Any, recvbuf: Any, parts: int) -> tuple[Message, Message]:
    """Return the sent and the received message of a reduce_scatter."""
    in_place = is_in_place(sendbuf)
    target = Message(recvbuf, "recvbuf", parts if in_place else 1, writes=True)
    return (target if in_place else Message(sendbuf, "sendbuf", parts)), target


def _scattered(
    comm: Communicator,
    source: Message,
    target: Message,
    fold: tuple[Reduction, Dtype],
    counts: list[int],
) -> Task:
    reduction, dtype = fold
    out, finish = _placed(target, dtype, counts[comm.rank])
    load = _elements(source, dtype)

    def start(blocking: bool) -> Any:
        parts = counts, None, None, None
        return comm._vector(REDUCE_SCATTER, load(), out, *parts, op=reduction, blocking=blocking)

    return Task(start, finish)


def _gathered(
    comm: Communicator, kind: int, source: Message, target: Message | None, op: MPI.Op, root: int
) -> Task | None:
    """Return a fold by the function of a program, which each rank with a result calls on the whole
    buffers of the ranks.
    """
    p, n = comm.size, source.nbytes
    if not _is_served(p, p * n, source.datatype):
        return None
    operands = {SCAN: comm.rank + 1, EXSCAN: comm.rank}.get(kind, p)
    rows = None if target is None else np.empty(p * n, np.uint8)
    move = GATHER if kind == REDUCE else ALLGATHER

    def start(blocking: bool) -> Any:
        return comm._call(move, source.load(), rows, None, root, None, blocking=blocking)

    def finish() -> None:
        if target is not None and rows is not None and operands and n:
            _fold_rows(op, target, rows.reshape(p, n)[:operands])

    return Task(start, finish)


def _exchanged(
    comm: Communicator, source: Message, target: Message, op: MPI.Op, counts: list[int]
) -> Task | None:
    """Return the same for a reduce_scatter, in which each rank folds its part."""
    p, size = comm.size, target.datatype.Get_size()
    if not _is_served(p, source.nbytes, target.datatype):
        return None
    sent, n = [count * size for count in counts], counts[comm.rank] * size
    rows = np.empty(p * n, np.uint8)

    def start(blocking: bool) -> Any:
        parts = sent, [n] * p, None, None
        return comm._vector(ALLTOALL, source.load(), rows, *parts, blocking=blocking)

    def finish() -> None:
        if n:
            _fold_rows(op, target, rows.reshape(p, n))

    return Task(start, finish)


def _is_served(ranks: int, nbytes: int, datatype: MPI.Datatype) -> bool:
    """Return whether ranks receive so many bytes and fold them by the function of a program."""
    if ranks > FEW or nbytes > MOST or not datatype.Get_size():
        return False
    return min(datatype.Get_extent()[1], 1 + datatype.Get_true_extent()[0]) > 0


def _fold_rows(op: MPI.Op, target: Message, rows: Any) -> None:
    """Call the function of an operation on packed buffers, in their order; put the result in its
    place, behind which memory is not changed.
    """
    datatype, nbytes = target.datatype, rows.shape[1]
    count, extent = nbytes // datatype.Get_size(), datatype.Get_extent()[1]
    function, has_gaps = function_of(op, datatype, count), not is_contiguous(datatype)
    before = None
    for row in rows:
        place = row
        if has_gaps:
            room = (count - 1) * extent + sum(datatype.Get_true_extent())
            place = np.zeros(max(room, count * extent), np.uint8)
            message = Message([place, count, datatype], "a buffer")
            message.data[:] = row
            message.finish()
        memory = MPI.memory.frombuffer(place[: count * extent])
        if before is not None:
            function(before, memory)
        before = memory
    target.load()
    target.data[:nbytes] = message.load() if has_gaps else place
    target.finish()
