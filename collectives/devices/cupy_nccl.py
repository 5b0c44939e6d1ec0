"""NCCL by CuPy's binding. It is imported when a program asks for NCCL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cupy.cuda import nccl

# Of nccl.h, where CuPy has no name for them in all of its versions.
AVG = 4  # ncclAvg, since 2.10
BFLOAT16 = 9  # ncclBfloat16, since 2.10
OLDEST = 21000

BYTES = 1  # ncclUint8
DTYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": BFLOAT16,
}
OPERATIONS = {"SUM": 0, "PROD": 1, "MAX": 2, "MIN": 3, "AVG": AVG}


class CupyNccl:
    """An implementation of `collectives.devices.driver.Nccl`."""

    dtypes: frozenset[str] = frozenset(DTYPES)

    def __init__(self) -> None:
        if not getattr(nccl, "available", False):
            raise ImportError("CuPy finds no NCCL: pip install nvidia-nccl-cu12")
        self.version: int = nccl.get_version()
        if self.version < OLDEST:
            raise ImportError(f"NCCL is {self.version}, and must be 2.10 or newer")

    def unique_id(self) -> bytes:
        return bytes(each & 0xFF for each in nccl.get_unique_id())

    def join(self, unique_id: bytes, size: int, rank: int) -> CupyGroup:
        try:
            return CupyGroup(nccl.NcclCommunicator(size, unique_id, rank))
        except TypeError:  # before version 14, CuPy takes signed chars
            signed = tuple(each - 256 if each > 127 else each for each in unique_id)
            return CupyGroup(nccl.NcclCommunicator(size, signed, rank))


class CupyGroup:
    """An implementation of `collectives.devices.driver.NcclGroup`."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def allreduce(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        self._comm.allReduce(source, target, count, DTYPES[dtype], OPERATIONS[op], stream)

    def reduce(
        self, source: int, target: int, count: int, dtype: str, op: str, root: int, stream: int
    ) -> None:
        self._comm.reduce(source, target, count, DTYPES[dtype], OPERATIONS[op], root, stream)

    def broadcast(self, source: int, target: int, nbytes: int, root: int, stream: int) -> None:
        self._comm.broadcast(source, target, nbytes, BYTES, root, stream)

    def allgather(self, source: int, target: int, nbytes: int, stream: int) -> None:
        self._comm.allGather(source, target, nbytes, BYTES, stream)

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        self._comm.reduceScatter(source, target, count, DTYPES[dtype], OPERATIONS[op], stream)

    def exchange(
        self,
        sends: Sequence[tuple[int, int, int]],
        receives: Sequence[tuple[int, int, int]],
        stream: int,
    ) -> None:
        nccl.groupStart()
        try:
            for peer, address, nbytes in sends:
                self._comm.send(address, nbytes, BYTES, peer, stream)
            for peer, address, nbytes in receives:
                self._comm.recv(address, nbytes, BYTES, peer, stream)
        finally:
            nccl.groupEnd()

    def check(self) -> None:
        self._comm.check_async_error()

    def abort(self) -> None:
        self._comm.abort()

    def close(self) -> None:
        self._comm.destroy()
