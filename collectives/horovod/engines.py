"""``horovod.ray``: `collectives.ray`, for functions that import Horovod."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from collectives.horovod.names import Installed
from collectives.ray import Executor, Settings


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
