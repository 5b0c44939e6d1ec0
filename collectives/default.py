"""The collectives on the default communicator, which has all ranks of the job."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from collectives import _core
from collectives._core import PlannedCall, Request
from collectives.calls.counts import Counts
from collectives.calls.grouped import GroupedRequest
from collectives.communicator import Communicator
from collectives.process import abort, binding, child, ending, meeting
from collectives.reductions import SUM
from collectives.text.words import error_text

__all__ = [
    "allgather",
    "allgather_object",
    "allgatherv",
    "allreduce",
    "allreduce_many",
    "allreduce_object",
    "alltoall",
    "alltoall_object",
    "alltoallv",
    "barrier",
    "broadcast",
    "broadcast_object",
    "exscan",
    "exscan_object",
    "gather",
    "gather_object",
    "gatherv",
    "iallgather",
    "iallgatherv",
    "iallreduce",
    "iallreduce_many",
    "ialltoall",
    "ialltoallv",
    "ibarrier",
    "ibroadcast",
    "iexscan",
    "igather",
    "igatherv",
    "irecv",
    "ireduce",
    "ireduce_scatter",
    "ireduce_scatterv",
    "iscan",
    "iscatter",
    "iscatterv",
    "isend",
    "isendrecv",
    "local_rank",
    "local_size",
    "plan",
    "rank",
    "recv",
    "reduce",
    "reduce_object",
    "reduce_scatter",
    "reduce_scatterv",
    "scan",
    "scan_object",
    "scatter",
    "scatter_object",
    "scatterv",
    "send",
    "sendrecv",
    "size",
    "world",
]


_world: Communicator | None = None
_world_lock = threading.RLock()


def world() -> Communicator:
    """Return the default communicator, which has all ranks of the job.
    Collective on the first call.

    Raises
    ------
    BindingError
        If there is no usable MPI; the text says what to install.
    CommunicatorError
        If this is a forked child process, or a thread that may not call MPI at the thread level
        that MPI was initialised with.
    """
    global _world
    if _world is None or _world._mpi is None:
        _core.guard()
        with _world_lock:
            if _world is None or _world._mpi is None:
                _world = Communicator()
    return _world


def replace_world(before: Communicator, after: Communicator) -> None:
    """Let `after` be the default communicator from now on, if `before` has been it. Local."""
    global _world
    with _world_lock:
        if _world is before:
            _world = after


def _forget_world() -> None:
    global _world
    _world = None


child.forget(_forget_world)


GRACE = 1.0  # seconds that threads and operations in flight have to end at exit


def _at_exit() -> None:
    """End with an error, and not with a hang, if the program leaves operations in flight."""
    if _core.is_forked():
        return
    _core.end_threads(GRACE)  # daemon threads, which Python stops without waiting for them
    others = {each.ident for each in threading.enumerate() if each.ident is not None}
    _core.end_requests(others - {threading.get_ident()})
    limit = time.monotonic() + GRACE
    left = ["?"]
    while left and time.monotonic() < limit:
        try:
            left = _core.pending()
            if left:
                time.sleep(0.001)  # others may need this core to get there
        except Exception as error:  # a warning that is one
            left = [error_text(error)]
            break
    left += _core.untold()
    left += [f"{call}, given up inside of MPI" for call in meeting.inside()]
    if left and not abort.has_reported():
        abort.end_job(
            f"exits with operations in flight: {'; '.join(left)}. Wait for every request before "
            f"the program ends"
        )
    for call in _core.take_leave_all():
        print(f"collectives: {call}", file=sys.stderr)
    abort.run_before_end()
    binding.finalise(ending.await_others)


atexit.register(_at_exit)
abort.watch()  # errors before the first communicator end the job, too


def allreduce(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.allreduce` on the default communicator. Collective."""
    return world().allreduce(x, out, **options)


def iallreduce(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.iallreduce` on the default communicator. Collective."""
    return world().iallreduce(x, out, **options)


def allreduce_many(
    arrays: Iterable[Any], out: Iterable[Any] | None = None, **options: Any
) -> list[Any]:
    """Run `Communicator.allreduce_many` on the default communicator. Collective."""
    return world().allreduce_many(arrays, out, **options)


def iallreduce_many(
    arrays: Iterable[Any], out: Iterable[Any] | None = None, **options: Any
) -> GroupedRequest:
    """Run `Communicator.iallreduce_many` on the default communicator. Collective."""
    return world().iallreduce_many(arrays, out, **options)


def reduce(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.reduce` on the default communicator. Collective."""
    return world().reduce(x, out, **options)


def ireduce(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.ireduce` on the default communicator. Collective."""
    return world().ireduce(x, out, **options)


def broadcast(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.broadcast` on the default communicator. Collective."""
    return world().broadcast(x, out, **options)


def ibroadcast(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.ibroadcast` on the default communicator. Collective."""
    return world().ibroadcast(x, out, **options)


def allgather(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.allgather` on the default communicator. Collective."""
    return world().allgather(x, out, **options)


def iallgather(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.iallgather` on the default communicator. Collective."""
    return world().iallgather(x, out, **options)


def reduce_scatter(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.reduce_scatter` on the default communicator. Collective."""
    return world().reduce_scatter(x, out, **options)


def ireduce_scatter(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.ireduce_scatter` on the default communicator. Collective."""
    return world().ireduce_scatter(x, out, **options)


def alltoall(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.alltoall` on the default communicator. Collective."""
    return world().alltoall(x, out, **options)


def ialltoall(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.ialltoall` on the default communicator. Collective."""
    return world().ialltoall(x, out, **options)


def gather(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.gather` on the default communicator. Collective."""
    return world().gather(x, out, **options)


def igather(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.igather` on the default communicator. Collective."""
    return world().igather(x, out, **options)


def scatter(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.scatter` on the default communicator. Collective."""
    return world().scatter(x, out, **options)


def iscatter(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.iscatter` on the default communicator. Collective."""
    return world().iscatter(x, out, **options)


def scan(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.scan` on the default communicator. Collective."""
    return world().scan(x, out, **options)


def iscan(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.iscan` on the default communicator. Collective."""
    return world().iscan(x, out, **options)


def exscan(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.exscan` on the default communicator. Collective."""
    return world().exscan(x, out, **options)


def iexscan(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.iexscan` on the default communicator. Collective."""
    return world().iexscan(x, out, **options)


def allgatherv(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.allgatherv` on the default communicator. Collective."""
    return world().allgatherv(x, out, **options)


def iallgatherv(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.iallgatherv` on the default communicator. Collective."""
    return world().iallgatherv(x, out, **options)


def gatherv(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.gatherv` on the default communicator. Collective."""
    return world().gatherv(x, out, **options)


def igatherv(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.igatherv` on the default communicator. Collective."""
    return world().igatherv(x, out, **options)


def scatterv(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.scatterv` on the default communicator. Collective."""
    return world().scatterv(x, out, **options)


def iscatterv(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.iscatterv` on the default communicator. Collective."""
    return world().iscatterv(x, out, **options)


def reduce_scatterv(x: Any, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.reduce_scatterv` on the default communicator. Collective."""
    return world().reduce_scatterv(x, out, **options)


def ireduce_scatterv(x: Any, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.ireduce_scatterv` on the default communicator. Collective."""
    return world().ireduce_scatterv(x, out, **options)


def alltoallv(x: Any, counts: Counts, out: Any = None, **options: Any) -> Any:
    """Run `Communicator.alltoallv` on the default communicator. Collective."""
    return world().alltoallv(x, counts, out, **options)


def ialltoallv(x: Any, counts: Counts, out: Any = None, **options: Any) -> Request:
    """Run `Communicator.ialltoallv` on the default communicator. Collective."""
    return world().ialltoallv(x, counts, out, **options)


def broadcast_object(obj: Any, root: int = 0, **options: Any) -> Any:
    """Run `Communicator.broadcast_object` on the default communicator. Collective."""
    return world().broadcast_object(obj, root, **options)


def gather_object(obj: Any, root: int = 0, **options: Any) -> list[Any] | None:
    """Run `Communicator.gather_object` on the default communicator. Collective."""
    return world().gather_object(obj, root, **options)


def allgather_object(obj: Any, **options: Any) -> list[Any]:
    """Run `Communicator.allgather_object` on the default communicator. Collective."""
    return world().allgather_object(obj, **options)


def scatter_object(objs: Iterable[Any] | None, root: int = 0, **options: Any) -> Any:
    """Run `Communicator.scatter_object` on the default communicator. Collective."""
    return world().scatter_object(objs, root, **options)


def alltoall_object(objs: Iterable[Any], **options: Any) -> list[Any]:
    """Run `Communicator.alltoall_object` on the default communicator. Collective."""
    return world().alltoall_object(objs, **options)


def reduce_object(obj: Any, op: Any = SUM, root: int = 0, **options: Any) -> Any:
    """Run `Communicator.reduce_object` on the default communicator. Collective."""
    return world().reduce_object(obj, op, root, **options)


def allreduce_object(obj: Any, op: Any = SUM, **options: Any) -> Any:
    """Run `Communicator.allreduce_object` on the default communicator. Collective."""
    return world().allreduce_object(obj, op, **options)


def scan_object(obj: Any, op: Any = SUM, **options: Any) -> Any:
    """Run `Communicator.scan_object` on the default communicator. Collective."""
    return world().scan_object(obj, op, **options)


def exscan_object(obj: Any, op: Any = SUM, **options: Any) -> Any:
    """Run `Communicator.exscan_object` on the default communicator. Collective."""
    return world().exscan_object(obj, op, **options)


def barrier(**options: Any) -> None:
    """Run `Communicator.barrier` on the default communicator. Collective."""
    world().barrier(**options)


def ibarrier(**options: Any) -> Request:
    """Run `Communicator.ibarrier` on the default communicator. Collective."""
    return world().ibarrier(**options)


def send(x: Any, dest: int | None, *, tag: int = 0, timeout: float | None = None) -> None:
    """Run `Communicator.send` on the default communicator. Local."""
    world().send(x, dest, tag=tag, timeout=timeout)


def isend(x: Any, dest: int | None, *, tag: int = 0) -> Request:
    """Run `Communicator.isend` on the default communicator. Local."""
    return world().isend(x, dest, tag=tag)


def recv(out: Any, source: int | None, *, tag: int = 0, timeout: float | None = None) -> Any:
    """Run `Communicator.recv` on the default communicator. Local."""
    return world().recv(out, source, tag=tag, timeout=timeout)


def irecv(out: Any, source: int | None, *, tag: int = 0) -> Request:
    """Run `Communicator.irecv` on the default communicator. Local."""
    return world().irecv(out, source, tag=tag)


def sendrecv(
    x: Any,
    dest: int | None,
    out: Any,
    source: int | None,
    *,
    tag: int = 0,
    timeout: float | None = None,
) -> Any:
    """Run `Communicator.sendrecv` on the default communicator. Local."""
    return world().sendrecv(x, dest, out, source, tag=tag, timeout=timeout)


def isendrecv(x: Any, dest: int | None, out: Any, source: int | None, *, tag: int = 0) -> Request:
    """Run `Communicator.isendrecv` on the default communicator. Local."""
    return world().isendrecv(x, dest, out, source, tag=tag)


def plan(collective: str, x: Any = None, out: Any = None, **options: Any) -> PlannedCall:
    """Run `Communicator.plan` on the default communicator. Local."""
    return world().plan(collective, x, out, **options)


def rank() -> int:
    """Return this rank's number in the default communicator. Local after the first call."""
    return world().rank


def size() -> int:
    """Return the number of ranks of the default communicator. Local after the first call."""
    return world().size


def local_rank() -> int:
    """Return this rank's number among those of its host. Local after the first call."""
    return world().local_rank


def local_size() -> int:
    """Return the number of ranks of this host. Local after the first call."""
    return world().local_size
