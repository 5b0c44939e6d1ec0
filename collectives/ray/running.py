"""`run`: a function on actors that are ranks for one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from collectives.launch.spawning import pickled
from collectives.ray.placing import Actors, Wish, checked

T = TypeVar("T")


def run(
    function: Callable[..., T],
    n: int,
    *args: Any,
    cpus: float = 1,
    gpus: float = 0,
    timeout: float = 60.0,
    elastic: bool = False,
    **keywords: Any,
) -> list[T]:
    """Call a function on `n` new actors of a Ray cluster, and return the results in the order of
    ranks. Local.

    Parameters
    ----------
    function : callable
        Called as ``function(*args, **keywords)`` on each rank, where `world` has the job's ranks.
    n : int
        Number of ranks. Ranks of one host have numbers in a row.
    cpus, gpus : float
        The resources of each rank, of the cluster, or of the placement group that this
        program is in.
    timeout : float
        Seconds until Ray must have placed all ranks, and until these must have found each other.
    elastic : bool
        Continue when actors end: the function has to, for example by `elastic.run`.
    *args, **keywords : object
        The arguments, the same on all ranks.

    Returns
    -------
    list
        The result of each rank; if `elastic`, without those whose actors have ended.

    Raises
    ------
    ArgumentError
        If an argument has an invalid value, or cannot be pickled.
    Exception
        The exception of the function, if it raised one on a rank. Its cause is a `RankError`
        that has the rank, its host and its traceback.
    PeerLostError
        If an actor ended before its rank returned; if `elastic`, only if all did.
    StallError
        If Ray has not placed all ranks in time; the text lists the needed resources, and those
        of the cluster.
    """
    checked(n, cpus, gpus)
    task = pickled(function, args, keywords)
    actors = Actors(Wish(n, 1, cpus, gpus), timeout)
    try:
        jobs = actors.jobs(timeout, {})
        return actors.results(
            [each.serve.remote(*job, task) for each, job in zip(actors.ranks, jobs, strict=True)],
            elastic,
        )
    finally:
        actors.close()
