"""The collectives of mpi4py's communicators, as they run here.

A call on arrays that can be used as they lie goes straight to the core (`Engine.call_plain`). The
others read their buffer specifications first (`messages.py`). As in MPI, what is moved are bytes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

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
from collectives.mpi4py.datatypes import DTYPES, FOLDS, learn
from collectives.mpi4py.messages import Message, aligned, is_in_place

# The calls that the core runs on plain arrays, in the order of their kinds.
PLAIN = (
    *("Allreduce", "Reduce", "Bcast", "Barrier", "Allgather", "Reduce_scatter_block"),
    *("Alltoall", "Gather", "Scatter", "Scan", "Exscan"),
)

# Collectives that are MPI's own always; `served` counts them.
LEFT = (
    *("Alltoallw", "allgather", "allreduce", "alltoall", "barrier", "bcast", "exscan", "gather"),
    *("reduce", "scan", "scatter"),
    *("Iallgather", "Iallgatherv", "Iallreduce", "Ialltoall", "Ialltoallv", "Ialltoallw"),
    *("Ibarrier", "Ibcast", "Iexscan", "Igather", "Igatherv", "Ireduce", "Ireduce_scatter"),
    *("Ireduce_scatter_block", "Iscan", "Iscatter", "Iscatterv"),
)
NEIGHBORS = (
    *("Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall", "Neighbor_alltoallv"),
    *("Neighbor_alltoallw", "neighbor_allgather", "neighbor_alltoall"),
)


class Served(NamedTuple):
    """How often a collective was called: those that ran `here`, and those that went to `mpi`."""

    here: int
    mpi: int


class _State:
    """What all objects of one MPI communicator have in common."""

    def __init__(self) -> None:
        self.comm: Communicator | None = None
        self.here: Counter[str] = Counter()
        self.mpi: Counter[str] = Counter()


@functools.cache
def _key() -> int:
    """Return the key under which MPI keeps the state with its communicator."""
    return MPI.Comm.Create_keyval()


class Calls(MPI.Intracomm):
    """The collectives of a communicator, and what has run of them."""

    @functools.cached_property
    def _state(self) -> _State:
        state = self.Get_attr(_key())
        if state is None:
            state = _State()
            self.Set_attr(_key(), state)
        assert isinstance(state, _State)
        return state

    @functools.cached_property
    def _comm(self) -> Communicator:
        """The communicator of this library, made by the first call that is served. Collective."""
        state = self._state
        if state.comm is None:
            state.comm = Communicator(MPI.Intracomm(self))
            learn()
        return state.comm

    @functools.cached_property
    def _plain(self) -> Callable[[int, Any, Any, Reduction | None, int], bool]:
        return self._comm._engine.call_plain

    def served(self) -> dict[str, Served]:
        """Return which collectives were called, and how often they ran here or in MPI.
        Local.

        Returns
        -------
        dict of str to Served
            By the names of mpi4py's methods; those that were never called are left out.

        Examples
        --------
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from collectives.mpi4py import accelerate
        >>> comm = accelerate(MPI.COMM_WORLD).Dup()
        >>> comm.Allreduce(MPI.IN_PLACE, np.ones(3))
        >>> comm.served()
        {'Allreduce': Served(here=1, mpi=0)}
        >>> comm.Free()
        """
        state = self._state
        here = Counter(state.here)
        if state.comm is not None:
            here.update(dict(zip(PLAIN, state.comm._engine.plain_calls(), strict=True)))
        names = sorted({*(name for name in here if here[name]), *state.mpi})
        return {name: Served(here[name], state.mpi[name]) for name in names}

    # -- collectives: plain arrays first, then all else ------------------------------------------

    def Barrier(self) -> None:
        self._plain(BARRIER, None, None, None, 0)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        if self._plain(BROADCAST, buf, buf, None, root):
            return
        if self._is_elsewhere("Bcast", root, buf):
            return
        is_root = self._comm.rank == root
        message = Message(buf, "buf", reads=is_root, writes=not is_root)
        # The root's buffer may be read-only.
        self._run("Bcast", BROADCAST, message.data, None if is_root else message.data, None, root)
        if not is_root:
            message.finish()

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        if self._plain(GATHER, sendbuf, recvbuf, None, root):
            return
        if self._is_elsewhere("Gather", root, sendbuf, recvbuf):
            return
        if self._comm.rank != root:
            self._run("Gather", GATHER, _sent(sendbuf), None, None, root)
            return
        message = self._all_parts(recvbuf, is_in_place(sendbuf))
        source = self._own(message) if is_in_place(sendbuf) else _sent(sendbuf)
        self._run("Gather", GATHER, source, message.data, None, root)
        message.finish()

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        if self._is_elsewhere("Gatherv", root, sendbuf, recvbuf):
            return
        comm = self._comm
        self._state.here["Gatherv"] += 1
        if comm.rank != root:
            comm.gatherv(_sent(sendbuf), root=root)
            return
        message, source = self._gathered(sendbuf, recvbuf)
        comm.gatherv(
            source, out=message.data, counts=message.counts, displs=message.displs, root=root
        )
        message.finish()

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        if self._plain(SCATTER, sendbuf, recvbuf, None, root):
            return
        if self._is_elsewhere("Scatter", root, sendbuf, recvbuf):
            return
        source = None
        if self._comm.rank == root:
            source = Message(sendbuf, "sendbuf", self._comm.size, reads=True).data
        if source is not None and is_in_place(recvbuf):
            self._run("Scatter", SCATTER, source, None, None, root)
            return
        target = Message(recvbuf, "recvbuf", writes=True)
        self._run("Scatter", SCATTER, source, target.data, None, root)
        target.finish()

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        if self._is_elsewhere("Scatterv", root, sendbuf, recvbuf):
            return
        comm = self._comm
        self._state.here["Scatterv"] += 1
        target: Message | None
        if comm.rank != root:
            target = Message(recvbuf, "recvbuf", writes=True)
            comm.scatterv(None, out=target.data, root=root)
            target.finish()
            return
        source = Message(sendbuf, "sendbuf", comm.size, reads=True, by_counts=True)
        target = None if is_in_place(recvbuf) else Message(recvbuf, "recvbuf", writes=True)
        comm.scatterv(
            source.data,
            out=None if target is None else target.data,
            counts=source.counts,
            displs=source.displs,
            root=root,
        )
        if target is not None:
            target.finish()

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        if self._plain(ALLGATHER, sendbuf, recvbuf, None, 0):
            return
        message = self._all_parts(recvbuf, is_in_place(sendbuf))
        source = self._own(message) if is_in_place(sendbuf) else _sent(sendbuf)
        self._run("Allgather", ALLGATHER, source, message.data)
        message.finish()

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        message, source = self._gathered(sendbuf, recvbuf)
        self._state.here["Allgatherv"] += 1
        self._comm.allgatherv(
            source, out=message.data, counts=message.counts, displs=message.displs
        )
        message.finish()

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        if self._plain(ALLTOALL, sendbuf, recvbuf, None, 0):
            return
        message = self._all_parts(recvbuf, is_in_place(sendbuf))
        source = message.data
        if not is_in_place(sendbuf):
            source = Message(sendbuf, "sendbuf", self._comm.size, reads=True).data
        self._run("Alltoall", ALLTOALL, source, message.data)
        message.finish()

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        comm = self._comm
        in_place = is_in_place(sendbuf)
        target = Message(recvbuf, "recvbuf", comm.size, reads=in_place, writes=True, by_counts=True)
        source = target
        if not in_place:
            source = Message(sendbuf, "sendbuf", comm.size, reads=True, by_counts=True)
        assert source.counts is not None
        self._state.here["Alltoallv"] += 1
        comm.alltoallv(
            source.data.copy() if in_place else source.data,
            source.counts,
            target.data,
            receive_counts=target.counts,
            displs=source.displs,
            receive_displs=target.displs,
        )
        target.finish()

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        fold = FOLDS.get(op.handle)
        if fold is None:
            self._by_mpi("Reduce", sendbuf, recvbuf, op, root)
            return
        if sendbuf is MPI.IN_PLACE and root == self._comm.rank:
            sendbuf = recvbuf
        if self._plain(REDUCE, sendbuf, recvbuf, fold.reduction, root):
            return
        if self._is_elsewhere("Reduce", root, sendbuf, recvbuf, op):
            return
        if self._comm.rank == root:
            self._fold("Reduce", REDUCE, sendbuf, recvbuf, op, root)
            return
        message = Message(sendbuf, "sendbuf", reads=True)
        dtype = DTYPES.get(message.datatype.handle)
        if dtype in fold.dtypes:
            self._run("Reduce", REDUCE, message.elements(dtype), None, fold.reduction, root)
        else:
            self._by_mpi("Reduce", sendbuf, recvbuf, op, root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        fold = FOLDS.get(op.handle)
        if fold is None:
            self._by_mpi("Allreduce", sendbuf, recvbuf, op)
            return
        if sendbuf is MPI.IN_PLACE:
            sendbuf = recvbuf
        if not self._plain(ALLREDUCE, sendbuf, recvbuf, fold.reduction, 0):
            self._fold("Allreduce", ALLREDUCE, sendbuf, recvbuf, op)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        fold = FOLDS.get(op.handle)
        if fold is None:
            self._by_mpi("Scan", sendbuf, recvbuf, op)
            return
        if sendbuf is MPI.IN_PLACE:
            sendbuf = recvbuf
        if not self._plain(SCAN, sendbuf, recvbuf, fold.reduction, 0):
            self._fold("Scan", SCAN, sendbuf, recvbuf, op)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        fold = FOLDS.get(op.handle)
        if fold is None:
            self._by_mpi("Exscan", sendbuf, recvbuf, op)
            return
        if sendbuf is MPI.IN_PLACE:
            sendbuf = recvbuf
        if not self._plain(EXSCAN, sendbuf, recvbuf, fold.reduction, 0):
            self._fold("Exscan", EXSCAN, sendbuf, recvbuf, op)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        fold = FOLDS.get(op.handle)
        if fold is None:
            self._by_mpi("Reduce_scatter_block", sendbuf, recvbuf, op)
            return
        if self._plain(REDUCE_SCATTER, sendbuf, recvbuf, fold.reduction, 0):
            return
        self._fold_parts("Reduce_scatter_block", sendbuf, recvbuf, op)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: MPI.Op = MPI.SUM
    ) -> None:
        if FOLDS.get(op.handle) is None:
            self._by_mpi("Reduce_scatter", sendbuf, recvbuf, recvcounts, op)
            return
        self._fold_parts("Reduce_scatter", sendbuf, recvbuf, op, recvcounts)

    # -- how they run ----------------------------------------------------------------------------

    def _by_mpi(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of mpi4py's."""
        self._state.mpi[name] += 1
        return getattr(super(), name)(*args, **options)

    def _is_elsewhere(self, name: str, root: int, *args: Any) -> bool:
        """Have MPI raise its error, if there is no such root."""
        if 0 <= root < self._comm.size:
            return False
        self._by_mpi(name, *args, root=root)
        return True

    def _run(
        self, name: str, kind: int, x: Any, out: Any, op: Reduction | None = None, root: int = 0
    ) -> None:
        if op is None and x is not None and out is not None:
            times = self._comm.size if kind in (ALLGATHER, GATHER) else 1
            parts = self._comm.size if kind == SCATTER else 1
            if len(x) * times != len(out) * parts:
                raise ValueError(
                    f"sendbuf has {len(x)} bytes and recvbuf {len(out)}, which does not fit on "
                    f"{self._comm.size} ranks"
                )
        self._comm._call(kind, x, out, op, root, None)
        self._state.here[name] += 1

    def _all_parts(self, recvbuf: Any, reads: bool) -> Message:
        """Return the message that has a part of each rank."""
        return Message(recvbuf, "recvbuf", self._comm.size, reads=reads, writes=True)

    def _own(self, message: Message) -> NDArray[Any]:
        """Return this rank's part of a message."""
        nbytes = len(message.data) // self._comm.size
        return message.data[self._comm.rank * nbytes :][:nbytes]

    def _gathered(self, sendbuf: Any, recvbuf: Any) -> tuple[Message, NDArray[Any]]:
        """Return what a vector form of gather receives, and what this rank contributes."""
        comm, in_place = self._comm, is_in_place(sendbuf)
        message = Message(
            recvbuf, "recvbuf", comm.size, reads=in_place, writes=True, by_counts=True
        )
        if not in_place:
            return message, _sent(sendbuf)
        counts = message.counts
        assert counts is not None
        first = sum(counts[: comm.rank]) if message.displs is None else message.displs[comm.rank]
        return message, message.data[first:][: counts[comm.rank]].copy()

    def _fold(
        self, name: str, kind: int, sendbuf: Any, recvbuf: Any, op: MPI.Op, root: int = 0
    ) -> None:
        """Fold arrays that are not plain, where each rank has as many elements as the result."""
        in_place = sendbuf is recvbuf or is_in_place(sendbuf)
        target = Message(recvbuf, "recvbuf", reads=in_place, writes=True)
        source = target if in_place else Message(sendbuf, "sendbuf", reads=True)
        fold, dtype = FOLDS[op.handle], DTYPES.get(target.datatype.handle)
        _compare(source, target, target.count)
        if dtype not in fold.dtypes:
            args = (op, root) if kind == REDUCE else (op,)
            self._by_mpi(name, MPI.IN_PLACE if in_place else sendbuf, recvbuf, *args)
            return
        result = target.elements(dtype)
        out = aligned(result)
        self._run(name, kind, source.elements(dtype), out, fold.reduction, root)
        if out is not result and not (kind == EXSCAN and self._comm.rank == 0):
            result[...] = out

    def _fold_parts(
        self, name: str, sendbuf: Any, recvbuf: Any, op: MPI.Op, recvcounts: Any = None
    ) -> None:
        """Run a reduce_scatter; without counts, all parts are equal, or the ranks exchange them."""
        comm, in_place = self._comm, is_in_place(sendbuf)
        is_block = name == "Reduce_scatter_block"
        parts = comm.size if is_block else 1
        target = Message(recvbuf, "recvbuf", parts if in_place else 1, reads=in_place, writes=True)
        source = target if in_place else Message(sendbuf, "sendbuf", parts, reads=True)
        fold, dtype = FOLDS[op.handle], DTYPES.get(target.datatype.handle)
        if dtype not in fold.dtypes:
            args = (op,) if is_block else (recvcounts, op)
            self._by_mpi(name, sendbuf, recvbuf, *args)
            return
        if is_block:
            counts = [target.count] * comm.size
        elif recvcounts is None and not in_place:
            counts = comm.allgather(np.array([target.count])).ravel().tolist()
        else:
            counts = list(recvcounts)
        _compare(source, target, target.count if is_block else sum(counts))
        result = target.elements(dtype)[: counts[comm.rank]]
        out = aligned(result)
        self._state.here[name] += 1
        comm.reduce_scatterv(source.elements(dtype), out=out, counts=counts, op=fold.reduction)
        if out is not result:
            result[...] = out


def _compare(source: Message, target: Message, count: int) -> None:
    """Raise mpi4py's error where what a rank sends does not fit what it receives."""
    if source.datatype != target.datatype:
        raise ValueError("sendbuf and recvbuf have different datatypes; they must be equal")
    if source.count != count:
        raise ValueError(
            f"{'recvbuf' if source is target else 'sendbuf'} has {source.count} elements, and "
            f"{count} are wanted"
        )


def _sent(sendbuf: Any) -> NDArray[Any]:
    """Return the bytes that a rank sends as one part."""
    return Message(sendbuf, "sendbuf", reads=True).data


def left(name: str) -> Any:
    """Return a method that counts a call of MPI's."""

    def method(self: Calls, *args: Any, **options: Any) -> Any:
        return self._by_mpi(name, *args, **options)

    return functools.wraps(getattr(MPI.Topocomm, name))(method)


for _name in LEFT:
    setattr(Calls, _name, left(_name))
