"""The peer that ``collectives bench --peers`` adds: ``torch.distributed`` with its gloo backend.

torch is imported only when `join` is called. Allreduce and reduce of torch work in place. In the
timed blocks they reduce the result of the previous iteration, without the copy that a program might
need. Other collectives read one array and write another, as in the library.
"""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.measuring.operations import Arrays

GLOO_LABEL = "gloo"

PATIENCE = timedelta(minutes=5)  # the timeout of torch for ranks to join and for collectives

FOLDS = {
    "SUM": "SUM",
    "PROD": "PRODUCT",
    "MIN": "MIN",
    "MAX": "MAX",
    "BAND": "BAND",
    "BOR": "BOR",
    "BXOR": "BXOR",
    "AVG": "AVG",
}


class Prepared(NamedTuple):
    """A call of a peer, and a function that restores its input if the call overwrites it."""

    call: Callable[[], Any]
    refill: Callable[[], Any] | None = None


class Gloo:
    """The ranks as the default process group of torch. Collective."""

    mpi: Any
    torch: Any
    dist: Any

    def __init__(self, mpi: Any, torch: Any, dist: Any) -> None:
        self.mpi, self.torch, self.dist = mpi, torch, dist
        self.version: str = f"torch.distributed with gloo, torch {torch.__version__}"
        self._able: dict[tuple[str, str, str], bool] = {}

    def prepare(self, arrays: Arrays) -> Prepared | None:
        """Prepare the call that does the same as ours, or return None. Collective.

        gloo does not have all operations.
        """
        operation = arrays.operation
        make = getattr(self, f"_{operation.name}", None)
        if make is None or (operation.reduces and arrays.op.name not in FOLDS):
            return None
        key = operation.name, arrays.op.name, arrays.x.dtype.name
        if key in self._able and not self._able[key]:
            return None
        prepared: Prepared | None = None
        try:
            prepared = make(arrays)
            if key not in self._able:
                prepared.call()
        except (RuntimeError, TypeError, ValueError):
            # gloo or torch does not support the dtype or operation; all ranks get the error.
            prepared = None
        if key not in self._able:
            self._able[key] = all(self.mpi.allgather(prepared is not None))
        return prepared if self._able[key] else None

    def leave(self) -> None:
        """Dissolve the group. Collective."""
        self.dist.destroy_process_group()

    def _tensor(self, array: NDArray[Any], folds: bool = False) -> Any:
        """Return a tensor with the memory of an array; of bytes if the data is only moved."""
        if not folds:
            return self.torch.from_numpy(array.view(np.uint8))
        if array.dtype.name == "bfloat16":
            return self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(array)

    def _op(self, arrays: Arrays) -> Any:
        return getattr(self.dist.ReduceOp, FOLDS[arrays.op.name])

    def _single(self, name: str, old: str) -> Any:
        """Return a function of torch that has another name in older versions."""
        return getattr(self.dist, name, None) or getattr(self.dist, old)

    def _allreduce(self, arrays: Arrays) -> Prepared:
        out = self._tensor(arrays.out, True)
        return Prepared(
            partial(self.dist.all_reduce, out, op=self._op(arrays)),
            partial(np.copyto, arrays.out, arrays.x),
        )

    def _reduce(self, arrays: Arrays) -> Prepared:
        # The input of the other ranks is overwritten with partial results.
        array = arrays.out if arrays.has_output else arrays.x.copy()
        return Prepared(
            partial(
                self.dist.reduce, self._tensor(array, True), dst=arrays.root, op=self._op(arrays)
            ),
            partial(np.copyto, array, arrays.x),
        )

    def _broadcast(self, arrays: Arrays) -> Prepared:
        return Prepared(partial(self.dist.broadcast, self._tensor(arrays.x), src=arrays.root))

    def _barrier(self, arrays: Arrays) -> Prepared:
        return Prepared(self.dist.barrier)

    def _allgather(self, arrays: Arrays) -> Prepared:
        gather = self._single("all_gather_single", "all_gather_into_tensor")
        return Prepared(partial(gather, self._tensor(arrays.out), self._tensor(arrays.x)))

    def _reduce_scatter(self, arrays: Arrays) -> Prepared:
        scatter = self._single("reduce_scatter_single", "reduce_scatter_tensor")
        x, out = self._tensor(arrays.x, True), self._tensor(arrays.out, True)
        return Prepared(partial(scatter, out, x, op=self._op(arrays)))

    def _alltoall(self, arrays: Arrays) -> Prepared:
        x, out = self._tensor(arrays.x), self._tensor(arrays.out)
        return Prepared(partial(self.dist.all_to_all_single, out, x))

    def _gather(self, arrays: Arrays) -> Prepared:
        x, parts = self._tensor(arrays.x), None
        if arrays.has_output:
            parts = list(self._tensor(arrays.out).chunk(arrays.p))
        return Prepared(partial(self.dist.gather, x, parts, dst=arrays.root))

    def _scatter(self, arrays: Arrays) -> Prepared:
        out, parts = self._tensor(arrays.out), None
        if arrays.has_input:
            parts = list(self._tensor(arrays.x).chunk(arrays.p))
        return Prepared(partial(self.dist.scatter, out, parts, src=arrays.root))


def join(mpi: Any) -> Gloo | str:
    """Make the ranks a process group of torch, or return why there is none. Collective."""
    hosts = mpi.allgather(platform.node())
    problem, found = "", None
    try:
        torch: Any = importlib.import_module("torch")
        dist: Any = importlib.import_module("torch.distributed")
        if not (dist.is_available() and dist.is_gloo_available()):
            problem = f"torch {torch.__version__} has no gloo"
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        problem = "torch is not installed" if missing else f"torch cannot be imported: {error}"
    problem = _first(mpi, problem)
    if problem:
        return problem
    if len(set(hosts)) == 1:
        # The name of a host may not resolve to an address that gloo can use, as in containers.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    address = "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]
    rank, size = mpi.Get_rank(), mpi.Get_size()
    store = None
    try:
        if rank == 0:
            store = dist.TCPStore(
                address, 0, size, is_master=True, timeout=PATIENCE, wait_for_workers=False
            )
    except (RuntimeError, ValueError) as error:
        problem = _line(error)
    port = mpi.bcast(None if store is None else store.port)
    if port is None:
        return _first(mpi, problem)
    try:
        if store is None:
            store = dist.TCPStore(address, port, size, is_master=False, timeout=PATIENCE)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=PATIENCE)
        found = Gloo(mpi, torch, dist)
    except (RuntimeError, ValueError) as error:
        problem = _line(error)
    problem = _first(mpi, problem)
    if found is None or problem:
        if found is not None:
            found.leave()
        return problem
    return found


def _first(mpi: Any, problem: str) -> str:
    """Return, on all ranks, the problem of the first rank that has one."""
    problems = [each for each in mpi.allgather(problem) if each]
    return problems[0] if problems else ""


def _line(error: Exception) -> str:
    """Return the first line of an error of torch."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
