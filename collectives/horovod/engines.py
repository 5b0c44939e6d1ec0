"""``horovod.ray`` and ``horovod.spark``: `collectives.ray` and `collectives.spark`, for functions
that import Horovod.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from collectives import spark
from collectives.horovod.names import Installed
from collectives.process import environment
from collectives.ray import Executor, Settings

START_TIMEOUT = "HOROVOD_SPARK_START_TIMEOUT"


class RayExecutor(Executor):
    """Horovod's name for `collectives.ray.Executor`."""

    def __init__(
        self,
        settings: Settings,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        **elastic: Any,
    ) -> None:
        asked = [name for name in ("min_workers", "max_workers") if elastic.get(name) is not None]
        if asked:
            raise NotImplementedError(
                f"RayExecutor does not start ranks after others are lost, and takes no "
                f"{', '.join(asked)}: pass num_workers"
            )
        super().__init__(
            settings,
            num_workers,
            num_hosts,
            num_workers_per_host,
            cpus_per_worker,
            use_gpu,
            gpus_per_worker,
            use_current_placement_group,
        )

    def _task(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> bytes:
        return super()._task(Installed(function), args, kwargs)


def run_on_spark(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: object = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Call a function on tasks of Spark, by `collectives.spark.run`. Local.

    Options of the launcher that have no meaning here, such as ``use_mpi``, are ignored.
    """
    given = {"stdout": stdout, "stderr": stderr, "executable": executable}
    asked = [name for name, value in given.items() if value is not None]
    if asked:
        raise NotImplementedError(
            f"horovod.spark.run takes no {', '.join(asked)}: ranks are the workers that Spark has "
            f"started, and their output is in the logs of its executors"
        )
    if start_timeout is None:
        start_timeout = environment.seconds(START_TIMEOUT, 600)
    return spark.run(Installed(fn), args, kwargs, num_proc, env=env, timeout=start_timeout)
