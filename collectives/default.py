"""The collectives on the default communicator, which has all ranks of the job.

`cc.allreduce` is made of `Communicator.allreduce`, and likewise all others that move data.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from collectives import _core, coreless
from collectives.calls import comparing
from collectives.calls.base import defaulted
from collectives.communicator import Communicator
from collectives.process import abort, binding, ending, meeting, processes
from collectives.text.words import error_text

_F = TypeVar("_F", bound=Callable[..., Any])
_world: Communicator | None = None
_world_lock = threading.RLock()


def world() -> Communicator:
    """Return the default communicator, which has all ranks of the job.
    Collective on the first call.

    Raises
    ------
    BindingError
        If there is no usable MPI; the text names the packages to install.
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


def forget_world() -> None:
    """Let the next call of `world` make another one. Local."""
    global _world
    _world = None


processes.after_fork(forget_world)


_GRACE = 1.0  # seconds that threads and operations in flight have to end at exit


def _at_exit() -> None:
    """End with an error, and not with a hang, if the program leaves operations in flight."""
    if _core.is_forked():
        return
    _core.end_threads(_GRACE)  # daemon threads, which Python stops without waiting for them
    others = {each.ident for each in threading.enumerate() if each.ident is not None}
    _core.end_requests(others - {threading.get_ident()})
    limit = time.monotonic() + _GRACE
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


def _on_default(name: str) -> Callable[..., Any]:
    """Return a function that calls a method of the default communicator."""
    method = getattr(Communicator, name)

    def function(*args: Any, **options: Any) -> Any:
        comm = _world  # one call less in the usual case
        if comm is None or comm._mpi is None:
            comm = world()
        return method(comm, *args, **options) if options else method(comm, *args)

    return defaulted(function, Communicator, name)


if TYPE_CHECKING:  # editors and type checkers do not see the loop
    _of = world()
    allgather = _of.allgather
    allgather_object = _of.allgather_object
    allgatherv = _of.allgatherv
    allreduce = _of.allreduce
    allreduce_many = _of.allreduce_many
    allreduce_object = _of.allreduce_object
    alltoall = _of.alltoall
    alltoall_object = _of.alltoall_object
    alltoallv = _of.alltoallv
    barrier = _of.barrier
    broadcast = _of.broadcast
    broadcast_object = _of.broadcast_object
    exscan = _of.exscan
    exscan_object = _of.exscan_object
    gather = _of.gather
    gather_object = _of.gather_object
    gatherv = _of.gatherv
    iallgather = _of.iallgather
    iallgatherv = _of.iallgatherv
    iallreduce = _of.iallreduce
    iallreduce_many = _of.iallreduce_many
    ialltoall = _of.ialltoall
    ialltoallv = _of.ialltoallv
    ibarrier = _of.ibarrier
    ibroadcast = _of.ibroadcast
    iexscan = _of.iexscan
    igather = _of.igather
    igatherv = _of.igatherv
    irecv = _of.irecv
    ireduce = _of.ireduce
    ireduce_scatter = _of.ireduce_scatter
    ireduce_scatterv = _of.ireduce_scatterv
    iscan = _of.iscan
    iscatter = _of.iscatter
    iscatterv = _of.iscatterv
    isend = _of.isend
    isendrecv = _of.isendrecv
    plan = _of.plan
    recv = _of.recv
    reduce = _of.reduce
    reduce_object = _of.reduce_object
    reduce_scatter = _of.reduce_scatter
    reduce_scatterv = _of.reduce_scatterv
    scan = _of.scan
    scan_object = _of.scan_object
    scatter = _of.scatter
    scatter_object = _of.scatter_object
    scatterv = _of.scatterv
    send = _of.send
    sendrecv = _of.sendrecv
    stop_requested = _of.stop_requested
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
        "same",
        "scan",
        "scan_object",
        "scatter",
        "scatter_object",
        "scatterv",
        "send",
        "sendrecv",
        "size",
        "stop_requested",
        "world",
    ]
else:
    __all__ = ["local_rank", "local_size", "rank", "same", "size", "world"]
    for _name in sorted(coreless.COMMUNICATING.intersection(dir(Communicator)).difference(__all__)):
        globals()[_name] = _on_default(_name)
        __all__.append(_name)


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


@overload
def same(value: _F, *, every: int = 1, **options: Any) -> _F: ...
@overload
def same(*, every: int = 1, **options: Any) -> Callable[[_F], _F]: ...
@overload
def same(value: Any, name: str | None = None, **options: Any) -> None: ...
def same(
    value: Any = comparing.OMITTED, name: str | None = None, *, every: int = 1, **options: Any
) -> Any:
    """Raise an error on all ranks unless they have the same value; or compare the arguments and the
    result of a function.
    Collective, and so is each call of that function that is compared.

    Parameters
    ----------
    value : object or function
        A value, as for `Communicator.same`. A function is returned with a check: its arguments, but
        not the one named ``self`` or ``cls``, are compared before it runs, and its result
        afterwards. So the name can stand above a function, as ``@cc.same`` or
        ``@cc.same(every=10)``.
    name : str, optional
        As for `Communicator.same`.
    every : int
        The first call of the function is compared, and then one of so many.
    **options
        The other arguments of `Communicator.same`.

    Returns
    -------
    function or None
        The function with the check, if `value` is a function or not given.

    Raises
    ------
    MismatchError, ArgumentError
        As for `Communicator.same`. If `value` is a coroutine function or a generator function, or
        `every` is not a positive number: an ArgumentError.

    Examples
    --------
    >>> import collectives as cc
    >>> @cc.same
    ... def rate(step):
    ...     return 0.1 / (1 + step)
    >>> rate(3)
    0.025
    """
    return comparing.same_or_compared(world, value, name, every, options)
