"""`run`: tasks that Dask pins to workers, and a store in its scheduler."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from collectives.engines import rank as ranks
from collectives.errors import ArgumentError, PeerLostError
from collectives.launch.spawning import Failure, pickled

T = TypeVar("T")

LOOK = 0.05  # seconds between two looks whether the workers are there


class _Variables:
    """A store of keys and values: variables of the scheduler, asked by a worker."""

    def __init__(self, job: str, timeout: float) -> None:
        self._job, self._timeout = job, timeout

    def _variable(self, key: str) -> Any:
        from distributed import Variable, get_client

        return Variable(f"{self._job}/{key}", client=get_client())

    def set(self, key: str, value: Any) -> None:
        """Set the `value` of `key`. Local."""
        self._variable(key).set(value)

    def get(self, key: str) -> bytes:
        """Return the value of `key` as soon as a rank has set it. Local."""
        value: bytes = self._variable(key).get(timeout=self._timeout)
        return value


def run(
    client: Any,
    function: Callable[..., T],
    n: int | None = None,
    *args: Any,
    workers: Sequence[str] | None = None,
    timeout: float = 60.0,
    elastic: bool = False,
    **keywords: Any,
) -> list[T]:
    """Call a function on `n` workers of a Dask cluster, and return the results in the order of
    ranks. Local.

    Parameters
    ----------
    client : distributed.Client
        The client of the cluster.
    function : callable
        Called as ``function(*args, **keywords)`` on each rank, where `world` has the job's ranks.
    n : int, optional
        Number of ranks; by default one on each worker. Workers of one host have numbers in a row.
    workers : sequence of str, optional
        Addresses of workers, in the order of ranks.
    timeout : float, optional
        Seconds until all ranks must have found each other.
    elastic : bool
        Continue when workers end: the function has to, for example by `elastic.run`.
    *args, **keywords : object
        The arguments, the same on all ranks.

    Returns
    -------
    list
        The result of each rank; if `elastic`, without those whose workers have ended.

    Raises
    ------
    ArgumentError
        If an argument has an invalid value, or there are too few workers.
    Exception
        The exception of the function, if it raised one on a rank. Its cause is a `RankError`
        that has the rank, its host and its traceback.
    PeerLostError
        If a worker ended before its rank returned; if `elastic`, only if all did.
    StallError
        If a rank has not come to the rendezvous, for example because its worker has other tasks.
    """
    places = _places(client, n, workers)
    job = f"collectives-{uuid.uuid4().hex}"
    task = pickled(function, args, keywords)
    futures = [
        client.submit(
            ranks.serve,
            ranks.by_store(_Variables(job, timeout), number, len(places)),
            task,
            key=f"{job}-{number}",
            workers=[place],
            pure=False,
        )
        for number, place in enumerate(places)
    ]
    lost: dict[int, Failure] = {}
    try:
        return ranks.results(len(places), lambda: _ends(client, futures, places, lost), elastic)
    finally:
        client.cancel(futures, force=True)
        client.run_on_scheduler(_forget, prefix=job)


def _forget(prefix: str, dask_scheduler: Any = None) -> None:
    """Delete the variables of a job from the scheduler, where this runs."""
    variables = dask_scheduler.extensions["variables"].variables
    for name in [name for name in variables if str(name).startswith(prefix)]:
        del variables[name]


def _workers(client: Any) -> dict[str, Any]:
    """Return the workers of the cluster by their addresses."""
    # Another thread of the client refreshes its `scheduler_info` without the workers.
    found: dict[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    return found


def _places(client: Any, n: int | None, workers: Sequence[str] | None) -> list[str]:
    there = _workers(client)
    if workers is None:
        workers = sorted(there, key=lambda each: (urlsplit(each).hostname or "", each))
    unknown = [each for each in workers if each not in there]
    if unknown:
        raise ArgumentError(f"workers has {unknown[0]!r}, which is no worker of the cluster")
    if len(set(workers)) != len(workers):
        raise ArgumentError("workers names a worker twice, and each is one rank")
    n = len(workers) if n is None else n
    if not 1 <= n <= len(workers):
        raise ArgumentError(f"n is {n!r}, and there are {len(workers)} workers, each of one rank")
    return list(workers[:n])


def _ends(
    client: Any, futures: list[Any], places: list[str], lost: dict[int, Failure]
) -> list[ranks.Outcome | Failure | None]:
    """Return the outcome of each rank; None if its task is under way. Those of `lost` workers stay
    lost, even if a new one comes at the same address.
    """
    time.sleep(LOOK)
    n = len(futures)
    ended = [each.done() for each in futures]
    there = _workers(client)
    ends: list[ranks.Outcome | Failure | None] = []
    for number, (future, place) in enumerate(zip(futures, places, strict=True)):
        if not ended[number] and place not in there and number not in lost:
            error: Any = PeerLostError(f"rank {number} of {n} on the worker {place} has ended")
            lost[number] = Failure(number, error, "", "its worker has ended", place)
            client.cancel([future], force=True)
        if number in lost:
            ends.append(lost[number])
        elif not ended[number]:
            ends.append(None)
        elif future.status == "finished":
            ends.append(future.result())
        else:
            error = future.exception()
            ends.append(Failure(number, error, "", str(error), place))
    return ends
