"""A worker process of an engine as a rank, and the outcomes of ranks as its driver reads them."""

from __future__ import annotations

import contextlib
import gc
import pickle
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from collectives import _core, default
from collectives.communicator import Communicator
from collectives.errors import CollectivesError, CommunicatorError, RankError
from collectives.launch import spawning
from collectives.launch.spawning import Failure
from collectives.process import as_torchrun, environment, hosted, report
from collectives.process.rendezvous import Keyed, Rendezvous, Store

AT_ONCE = 1e-6  # seconds
FAREWELL = 5.0  # seconds that other ranks have to fail after one has

# The rendezvous by which a rank meets the others, from the time when it is one.
Meeting = contextlib.AbstractContextManager[Rendezvous]

_busy = threading.Lock()  # a process is one rank at a time


class Outcome(NamedTuple):
    """The end of a rank's call: the pickled result, or the pickled error and its traceback."""

    host: str
    result: bytes | None
    error: bytes = b""
    trace: str = ""
    follows: bool = False  # whether the error follows from that of another rank

    @classmethod
    def of(cls, result: object) -> Outcome:
        """Return the outcome of a call that has returned. Local."""
        import cloudpickle

        return cls(socket.gethostname(), cloudpickle.dumps(result))


def serve(meeting: Meeting, task: bytes) -> Outcome:
    """Be a rank of a new job, which `world` has during the call of the task's function.
    Collective.
    """
    try:
        with job(meeting):
            outcome = Outcome.of(called(task))
    except Exception as error:
        outcome = failed(error)
        traceback.clear_frames(error.__traceback__)
    gc.collect()  # files and memory of the job, which are in reference cycles
    return outcome


def by_store(store: Store, rank: int, size: int) -> Meeting:
    """Return how a rank meets the others by a store. Local."""
    return contextlib.nullcontext(Keyed(store, rank, size))


def called(task: bytes, *first: Any) -> Any:
    """Return the result of a task whose function gets some arguments `first`. Local."""
    function, args, keywords = pickle.loads(task)
    return function(*first, *args, **keywords)


def failed(error: Exception) -> Outcome:
    """Return the outcome of a call that has raised an error. Local."""
    import cloudpickle

    trace = report.shortened(type(error), error, error.__traceback__)
    try:
        data = cloudpickle.dumps(error)
        pickle.loads(data)
    except Exception:
        data = b""
    return Outcome(socket.gethostname(), None, data, trace, spawning.follows(error))


@contextlib.contextmanager
def job(meeting: Meeting) -> Iterator[None]:
    """Have a job's ranks as `world`. If the body fails, ranks that wait for this one are told."""
    if not _busy.acquire(blocking=False):
        raise CommunicatorError(
            "a rank came to a process that is a rank of another job at this time. A worker is one "
            "rank at a time"
        )
    before = default._world
    try:
        with hosted.leaving(), meeting as met:
            comm = Communicator(hosted.join(met).COMM_WORLD)
            default._world = comm
            try:
                with _as_torchrun(comm):
                    yield
            except BaseException as error:
                give_up(error)
                _abandon(comm, error)
                raise
            else:
                comm.free()
            finally:
                default._world = before
    finally:
        _busy.release()


@contextlib.contextmanager
def _as_torchrun(comm: Communicator) -> Iterator[None]:
    """Have the variables of torchrun, for frameworks that would believe to be alone."""
    with contextlib.closing(as_torchrun.Port()) as port:
        host = as_torchrun.LOOPBACK if comm.nodes == 1 else socket.getfqdn()
        first = comm.broadcast_object((host, port.number))
        local = comm.local_rank, comm.local_size
        values = as_torchrun.variables(comm.rank, comm.size, local, comm.node, *first)
        with environment.having(**values):
            yield


def _abandon(comm: Communicator, error: BaseException) -> None:
    """Free a communicator whose operations in flight never end. Local."""
    comm._give_up(f"{type(error).__name__}: {error}")
    for request in _core.forsaken(comm._engine):
        with contextlib.suppress(CollectivesError):
            request.wait(AT_ONCE)
    with contextlib.suppress(CollectivesError):
        comm.free()
    _core.heard(comm._engine)  # the driver is told of the function's error


def give_up(error: BaseException) -> None:
    """Tell ranks that wait for this one that it has failed. Local."""
    _core.give_up_all(f"{type(error).__name__}: {error}")


def numbered(hosts: Sequence[str]) -> list[int]:
    """Return which process each rank is, for the hosts of processes: those of one host have numbers
    in a row. Local.
    """
    return sorted(range(len(hosts)), key=lambda each: (hosts.index(hosts[each]), each))


def failure(rank: int, size: int, outcome: Outcome) -> Failure:
    """Return the failure that a rank's outcome tells of. Local."""
    words = outcome.trace.strip().rpartition("\n")[2]
    try:
        error = pickle.loads(outcome.error)
    except Exception:
        text = f"rank {rank} of {size} raised an exception that cannot be pickled:\n\n"
        error = RankError(text + outcome.trace)
    return Failure(rank, error, outcome.trace, words, outcome.host, outcome.follows)


def results(
    n: int, look: Callable[[], Sequence[Outcome | Failure | None]], is_elastic: bool = False
) -> list[Any]:
    """Return the results in the order of ranks, or raise the error that others follow from, soon
    after a rank of `n` has failed. `look` returns the outcome of each, after a short wait. If the
    job is elastic, ranks whose processes have ended have no results. Local.
    """
    until = None
    while True:
        ends = look()
        lost = [each for each in ends if isinstance(each, Failure)]
        outcomes = [each for each in ends if isinstance(each, Outcome)]
        raised = [
            failure(rank, n, each)
            for rank, each in enumerate(ends)
            if isinstance(each, Outcome) and each.result is None
        ]
        has_failed = bool(raised or (lost and not (is_elastic and len(lost) < n)))
        if not has_failed and None not in ends:
            return [pickle.loads(each.result) for each in outcomes if each.result is not None]
        if has_failed:
            until = until or time.monotonic() + FAREWELL
            if time.monotonic() >= until or None not in ends:
                raise spawning.cause([*lost, *raised], n)
