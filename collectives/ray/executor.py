"""`Executor`: actors that are ranks for many calls, with the interface of Horovod's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collectives.errors import ArgumentError, CommunicatorError
from collectives.launch.spawning import pickled
from collectives.ray.placing import Actors, Wish, checked


@dataclass
class Settings:
    """The timeouts of an `Executor`.

    Attributes
    ----------
    timeout_s : float
        Seconds until ranks must have found each other.
    placement_group_timeout_s : float
        Seconds until Ray must have placed all ranks.
    """

    timeout_s: float = 30
    placement_group_timeout_s: float = 100


class Executor:
    """Actors of a Ray cluster that are ranks until `shutdown`, with the interface of Horovod's
    ``RayExecutor``.
    Local.

    In what they call, `world` has all of them.

    Parameters
    ----------
    settings : Settings, optional
        The timeouts, as `create_settings` returns them.
    num_workers : int, optional
        Number of ranks, on as few hosts as possible. Ranks of one host have numbers in a row.
    num_hosts, num_workers_per_host : int, optional
        Instead of `num_workers`: on how many hosts, and how many on each.
    cpus_per_worker : float
        CPUs that each rank takes.
    use_gpu : bool
        Whether each rank takes GPUs, too. All ranks of a host see the GPUs of all of these.
    gpus_per_worker : int, optional
        Their number; 1 by default.
    use_current_placement_group : bool
        Whether the ranks take the resources of the placement group that this program is in, if it
        is in one.

    Raises
    ------
    ArgumentError
        If an argument has an invalid value.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
    ) -> None:
        if (num_workers is None) == (num_hosts is None):
            raise ArgumentError(
                f"num_workers is {num_workers!r} and num_hosts is {num_hosts!r}: pass one of them"
            )
        if gpus_per_worker is not None and not (use_gpu and gpus_per_worker >= 1):
            raise ArgumentError(
                f"gpus_per_worker is {gpus_per_worker!r} and use_gpu is {use_gpu!r}: the number "
                f"must be 1 or more, and use_gpu True"
            )
        gpus = (gpus_per_worker or 1) if use_gpu else 0
        for number in (num_hosts or 1, num_workers or 1, num_workers_per_host):
            checked(number, cpus_per_worker, gpus)
        self._settings = settings or Settings()
        self._inherits = use_current_placement_group
        if num_workers is not None:
            self._wish = Wish(num_workers, 1, cpus_per_worker, gpus)
        else:
            assert num_hosts is not None
            self._wish = Wish(num_hosts, num_workers_per_host, cpus_per_worker, gpus, apart=True)
        self._actors: Actors | None = None
        self._environ: dict[str, str] = {}
        self._pending: list[Any] = []  # calls that `run_remote` has started

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: object = None,
    ) -> Settings:
        """Return settings.
        Local.

        Parameters
        ----------
        timeout_s : float
            Seconds until ranks must have found each other.
        ssh_identity_file, ssh_str, nics : object, optional
            Accepted for compatibility, and not used.
        placement_group_timeout_s : float
            Seconds until Ray must have placed all ranks.

        Returns
        -------
        Settings
        """
        return Settings(timeout_s, placement_group_timeout_s)

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the ranks.
        Local.

        Parameters
        ----------
        executable_cls : type, optional
            A class that each rank makes an object of, which the functions of `execute` get.
        executable_args : sequence, optional
            The positional arguments of the class.
        executable_kwargs : dict, optional
            Its keyword arguments.
        extra_env_vars : dict, optional
            Environment variables that are set on each rank before.

        Raises
        ------
        CommunicatorError
            If they have been started already.
        StallError
            If Ray has not placed all ranks in time; the text lists the needed resources, and
            those of the cluster.
        Exception
            The exception of the class; otherwise as for `run`.
        """
        if self._actors is not None:
            raise CommunicatorError("start() has been called already: call shutdown() before")
        self._environ = {name: str(value) for name, value in (extra_env_vars or {}).items()}
        self._actors = Actors(
            self._wish, self._settings.placement_group_timeout_s, inherits=self._inherits
        )
        try:
            self._join(self._actors)
            if executable_cls is not None:
                made = self._task(executable_cls, executable_args, executable_kwargs)
                self._actors.results([each.build.remote(made) for each in self._actors.ranks])
        except BaseException:
            self.shutdown()
            raise

    def _join(self, actors: Actors) -> None:
        jobs = actors.jobs(self._settings.timeout_s, self._environ)
        actors.results(
            [each.join.remote(*job) for each, job in zip(actors.ranks, jobs, strict=True)]
        )

    def _task(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return the task of a function, which Horovod's programs have otherwise."""
        return pickled(function, args or (), kwargs or {})

    def _ready(self, wait: bool = True) -> Actors:
        """Return the actors when no call is under way; if one has failed, they are ranks of a new
        job. Without `wait`, return them at once if calls are under way.
        """
        import ray

        actors = self._actors
        if actors is None:
            raise CommunicatorError("the ranks have not been started: call start() before")
        if self._pending:
            _, self._pending = ray.wait(
                self._pending, num_returns=len(self._pending), timeout=None if wait else 0
            )
        if not self._pending:
            failed = actors.results([each.has_failed.remote() for each in actors.ranks])
            if any(failed):
                self._join(actors)
        return actors

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a function on all ranks.
        Local.

        Parameters
        ----------
        fn : callable
            Called as ``fn(*args, **kwargs)``.
        args : sequence, optional
        kwargs : dict, optional

        Returns
        -------
        list
            The results, in the order of ranks.

        Raises
        ------
        ArgumentError
            If an argument cannot be pickled.
        CommunicatorError
            If `start` has not been called.
        Exception
            The exception of the function, if it raised one on a rank. Its cause is a
            `RankError` that has the rank, its host and its traceback. The next call has a new
            `world`, and communicators that were made before cannot be used.
        PeerLostError
            If an actor has ended. Call `shutdown` and `start`.
        """
        task = self._task(fn, args, kwargs)
        actors = self._ready()
        return actors.results([each.call.remote(task) for each in actors.ranks])

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Start a call of a function on all ranks.
        Local.

        Parameters
        ----------
        fn, args, kwargs : object
            As for `run`.

        Returns
        -------
        list of ray.ObjectRef
            One for each rank, in their order. ``ray.get`` waits for the results, and raises what
            the function raised.
        """
        task = self._task(fn, args, kwargs)
        asked = [each.value.remote(task) for each in self._ready(wait=False).ranks]
        self._pending += asked
        return asked

    def execute(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Call a function with the executable on all ranks.
        Local.

        Parameters
        ----------
        fn : callable
            Called with the object that the rank has made of ``executable_cls``, or None.

        Returns
        -------
        list
            The results, in the order of ranks.

        Raises
        ------
        Exception
            As for `run`.
        """
        task = self._task(fn)
        actors = self._ready()
        return actors.results([each.call.remote(task, True) for each in actors.ranks])

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call a function with the executable on rank 0 alone.
        Local.

        Parameters
        ----------
        fn : callable
            As for `execute`. It makes no collective call.

        Returns
        -------
        object
            The result.

        Raises
        ------
        Exception
            As for `run`.
        """
        task = self._task(fn)
        actors = self._ready()
        asked = actors.ranks[0].call.remote(task, True, True)
        return actors.results([asked])[0]

    def shutdown(self) -> None:
        """End the ranks, and give their resources back.
        Local.
        """
        if self._actors is not None:
            self._actors.close()
            self._actors = None
            self._pending = []
