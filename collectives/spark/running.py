"""`run`: the tasks of a barrier stage as ranks."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from collectives.engines import rank as ranks
from collectives.errors import ArgumentError, CommunicatorError, PeerLostError, StallError
from collectives.launch.spawning import Failure, cause, pickled
from collectives.process.rendezvous import Rendezvous, Served
from collectives.process.rendezvous_server import Server

T = TypeVar("T")

LOOK = 0.05  # seconds between two looks at the job
FAREWELL = 5.0  # seconds that Spark has to end tasks


def run(
    function: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> list[T]:
    """Call a function on tasks of the active Spark context, and return the results in the order of
    ranks. Local.

    Parameters
    ----------
    function : callable
        Called as ``function(*args, **kwargs)`` on each rank, where `world` has the job's ranks.
    args : sequence
        The positional arguments, the same on all ranks.
    kwargs : dict, optional
        The keyword arguments.
    num_proc : int, optional
        Number of ranks; by default the context's ``defaultParallelism``. Each is a task, and all
        run at the same time. Ranks of one host have numbers in a row.
    env : dict, optional
        Environment variables of the ranks during the call.
    timeout : float
        Seconds until Spark must have started all tasks, and until the ranks must have found each
        other.

    Returns
    -------
    list
        The result of each rank.

    Raises
    ------
    ArgumentError
        If an argument has an invalid value, or cannot be pickled.
    CommunicatorError
        If there is no active Spark context, or Spark cannot run the tasks.
    Exception
        The exception of the function, if it raised one on a rank. Its cause is a `RankError`
        that has the rank, its host and its traceback.
    PeerLostError
        If the worker process or the executor of a rank ended before it returned.
    StallError
        If Spark has not started all tasks in time; the text has the number that it can run at once.
    """
    context = _context()
    n = context.defaultParallelism if num_proc is None else num_proc
    if not isinstance(n, int) or n < 1:
        raise ArgumentError(f"num_proc is {num_proc!r}, and must be a positive number of ranks")
    task = pickled(function, args, kwargs or {})
    job = _Job(context, n, task, dict(env or {}), timeout)
    try:
        return ranks.results(n, job.look)
    finally:
        job.end()


def _context() -> Any:
    """Return the active Spark context."""
    from pyspark import SparkContext

    found = SparkContext._active_spark_context
    if found is None:
        raise CommunicatorError(
            "there is no active Spark context: call run in a program of PySpark, after "
            "SparkSession.builder.getOrCreate()"
        )
    return found


class _Failed:
    """The sum that Spark makes of the outcomes of ranks that have failed, while others run."""

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value: list[Any], more: list[Any]) -> list[Any]:
        return [*value, *more]


class _Job:
    """A job of Spark with one barrier stage, run by a thread."""

    def __init__(
        self, context: Any, n: int, task: bytes, env: dict[str, str], timeout: float
    ) -> None:
        from pyspark import InheritableThread

        self._context, self._n, self._timeout = context, n, timeout
        self._limit = time.monotonic() + timeout
        self._has_started = False
        self._group = f"collectives-{uuid.uuid4().hex}"
        self._failed = context.accumulator([], _Failed())
        self._outcomes: list[tuple[int, ranks.Outcome]] | None = None
        self._error: Exception | None = None
        secret = secrets.token_bytes(32)
        failed = self._failed

        def rank(_: object) -> Iterator[tuple[int, ranks.Outcome]]:
            number, outcome = _served(task, env, timeout, secret)
            if outcome.result is None:
                failed.add([(number, outcome)])
            yield number, outcome

        def collect() -> None:
            try:
                context.setJobGroup(self._group, f"{n} ranks", interruptOnCancel=True)
                tasks = context.parallelize(range(n), n).barrier()
                self._outcomes = tasks.mapPartitions(rank).collect()
            except Exception as error:
                self._error = error

        self._thread = InheritableThread(target=collect, daemon=True)
        self._thread.start()

    def look(self) -> list[ranks.Outcome | Failure | None]:
        """Return the outcome of each rank; None if its task is under way."""
        self._thread.join(LOOK)
        if self._error is not None:
            raise self._ended(self._error)
        if not self._has_started:
            self._look_whether_started()
        ends: list[ranks.Outcome | Failure | None] = [None] * self._n
        for number, outcome in self._outcomes or self._failed.value:
            ends[number] = outcome
        return ends

    def end(self) -> None:
        """Have Spark end the tasks that are under way. Local."""
        if self._thread.is_alive():
            self._context.cancelJobGroup(self._group)
            self._thread.join(FAREWELL)

    def _stages(self) -> list[Any]:
        """Return what Spark says of the stages of the job."""
        tracker = self._context.statusTracker()
        found = map(tracker.getJobInfo, tracker.getJobIdsForGroup(self._group))
        stages = [tracker.getStageInfo(stage) for each in found if each for stage in each.stageIds]
        return [each for each in stages if each]

    def _look_whether_started(self) -> None:
        counts = [each.numActiveTasks + each.numCompletedTasks for each in self._stages()]
        self._has_started = self._outcomes is not None or max(counts, default=0) >= self._n
        if not self._has_started and time.monotonic() > self._limit:
            raise StallError(
                f"Spark has not started {self._n} ranks in {self._timeout:g} s: each is a task, "
                f"and they run at the same time. {self._slots()}Ask for fewer ranks or more "
                f"executors, or end other jobs"
            )

    def _slots(self) -> str:
        """Return in words how many tasks Spark can run at once, if it can be asked."""
        with contextlib.suppress(Exception):
            jvm = self._context._jsc.sc()
            profile = jvm.resourceProfileManager().defaultResourceProfile()
            return f"The cluster can run {jvm.maxNumConcurrentTasks(profile)} tasks at once. "
        return ""

    def _ended(self, error: Exception) -> BaseException:
        """Return the error for a job that Spark has given up."""
        n = self._n
        failures = [ranks.failure(rank, n, each) for rank, each in self._failed.value]
        text = _reason(error)
        lost = re.search(r"barrier task ResultTask\((\d+), (\d+)\) finished unsuccessfully\.", text)
        if lost is None:
            return (
                cause(failures, n)
                if failures
                else CommunicatorError(f"Spark has not run the {n} ranks: {text}")
            )
        hosts = self._hosts(int(lost[1]))
        process = int(lost[2])
        rank = ranks.numbered(hosts).index(process)
        found = PeerLostError(
            f"rank {rank} of {n} on {hosts[process]} has ended: {text[lost.end() :].strip()}"
        )
        return cause([Failure(rank, found, "", "its task has ended", hosts[process]), *failures], n)

    def _hosts(self, stage: int) -> list[str]:
        """Return the hosts of the tasks of a stage, as Spark's records have them."""
        hosts = ["its host"] * self._n
        with contextlib.suppress(Exception):
            tasks = self._context._jsc.sc().statusStore().taskList(stage, 0, self._n)
            for each in (tasks.apply(index) for index in range(tasks.size())):
                hosts[each.index()] = each.host()
        return hosts


def _reason(error: Exception) -> str:
    """Return what Spark says of the end of a job, without the stacks of Java."""
    java = getattr(error, "java_exception", None)
    text = str(error if java is None else java.getMessage())
    lines = [line for line in text.splitlines() if not line.startswith(("\tat ", "\t..."))]
    return "\n".join(lines).strip()


def _served(
    task: bytes, env: Mapping[str, str], timeout: float, secret: bytes
) -> tuple[int, ranks.Outcome]:
    """Be a rank, in a task. Collective."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    hosts = [each.address.rpartition(":")[0] for each in context.getTaskInfos()]
    order = ranks.numbered(hosts)
    number = order.index(context.partitionId())
    before = dict(os.environ)
    os.environ.update(env)
    try:
        return number, ranks.serve(_meeting(context, hosts[order[0]], order, timeout, secret), task)
    finally:
        for name in env:  # the process is that of other tasks later
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)


@contextlib.contextmanager
def _meeting(
    context: Any, first: str, order: Sequence[int], timeout: float, secret: bytes
) -> Iterator[Rendezvous]:
    """Meet the others at rank 0. One exchange of Spark's takes a second, so it says only where."""
    rank, size = order.index(context.partitionId()), len(order)
    server = Server(size, 0, secret) if rank == 0 else None
    try:
        told = context.allGather("" if server is None else str(server.port))
        met = Served(f"tcp:{first}:{told[order[0]]}", rank, size, timeout, secret)
        try:
            yield met
        finally:
            met.close()
    finally:
        if server is not None:
            server.close()
