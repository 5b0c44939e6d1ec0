"""A worker process of an engine as a rank, and the outcomes of ranks as its driver reads them."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from collectives import _core, default
from collectives.communicator import Communicator
from collectives.errors import CommunicatorError, RankError
from collectives.launch.spawning import Failure, cause
from collectives.process import hosted, report
from collectives.process.rendezvous import Store

_busy = threading.Lock()  # a process is one rank at a time


class Outcome(NamedTuple):
    """The end of a rank: the pickled result, or the pickled error and its traceback."""

    host: str
    result: bytes | None
    error: bytes = b""
    trace: str = ""


def serve(
    store: Store,
    rank: int,
    size: int,
    task: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]],
    timeout: float | None,
) -> Outcome:
    """Be a rank of a new job, which `world` has during the call of the task's function.
    Collective.
    """
    import cloudpickle

    where = socket.gethostname()
    function, args, keywords = task
    try:
        with hosted.leaving(), _job(store, rank, size, timeout):
            return Outcome(where, cloudpickle.dumps(function(*args, **keywords)))
    except Exception as error:
        trace = report.shortened(type(error), error, error.__traceback__)
        try:
            data = cloudpickle.dumps(error)
            pickle.loads(data)
        except Exception:
            data = b""
        return Outcome(where, None, data, trace)


@contextlib.contextmanager
def _job(store: Store, rank: int, size: int, timeout: float | None) -> Any:
    """Have a job's ranks as `world`. If the body fails, ranks that wait for this one are told."""
    if not _busy.acquire(blocking=False):
        raise CommunicatorError(
            f"rank {rank} of {size} came to a process that is a rank of another job at this time. "
            f"A worker is one rank at a time"
        )
    before = default._world
    try:
        comm = Communicator.from_rendezvous(store, rank, size, timeout=timeout)
        default._world = comm
        try:
            yield
        except BaseException as error:
            _core.give_up_all(f"{type(error).__name__}: {error}")
            raise
        finally:
            default._world = before
            comm.free()
    finally:
        _busy.release()


def failure(rank: int, size: int, outcome: Outcome) -> Failure:
    """Return the failure that a rank's outcome tells of. Local."""
    words = outcome.trace.strip().rpartition("\n")[2]
    try:
        error = pickle.loads(outcome.error)
    except Exception:
        text = f"rank {rank} of {size} raised an exception that cannot be pickled:\n\n"
        error = RankError(text + outcome.trace)
    return Failure(rank, error, outcome.trace, words, outcome.host)


def results(outcomes: Sequence[Outcome], failures: Sequence[Failure] = ()) -> list[Any]:
    """Return the results in the order of ranks, or raise the error that others follow from."""
    n = len(outcomes)
    failed = [*failures]
    failed += [failure(r, n, each) for r, each in enumerate(outcomes) if each.result is None]
    if failed:
        raise cause(failed, n)
    return [pickle.loads(each.result) for each in outcomes if each.result is not None]
