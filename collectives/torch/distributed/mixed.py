"""Groups whose devices have different backends, such as ``"cpu:collectives,cuda:nccl"``.

Torch uses a process group in Python for all devices, and makes no backends for the other devices
that the program names. So a `MixedProcessGroup` has a second group, which torch makes of the other
backends, and passes on calls with tensors on their devices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import distributed as dist

from collectives.communicator import Communicator
from collectives.torch.distributed.group import CollectivesProcessGroup
from collectives.torch.distributed.work import skip_dynamo

CALLS = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter_single",
    "_reduce_scatter_base",
    "reduce_scatter",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "broadcast",
    "all_gather_single",
    "_allgather_base",
    "allgather",
    "allgather_coalesced",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "gather",
    "scatter",
    "all_to_all_single",
    "alltoall_base",
    "alltoall",
    "send",
    "recv",
    "recv_anysource",
    "_start_coalescing",
    "_end_coalescing",
)


def others_of(caller: FrameType | None, name: str) -> dict[str, str]:
    """Return the other backends that a program has named, by device. Local.

    Torch does not pass the backends of other devices to a backend. They are only in the calling
    frame.
    """
    config = None if caller is None else caller.f_locals.get("backend_config")
    devices = getattr(config, "device_backend_map", {})
    return {device: str(each) for device, each in devices.items() if str(each) != name}


def group_of(options: Any, own: Any, backends: dict[str, str]) -> Any:
    """Make a group of torch for the other devices, with the program's options `own`. Torch keeps it
    until the default group is destroyed. Collective.
    """
    module: Any = dist.distributed_c10d
    made, _ = module._new_process_group_helper(
        options.group_size,
        options.group_rank,
        options.global_ranks_in_group,
        ",".join(f"{device}:{backend}" for device, backend in backends.items()),
        options.store,
        f"{options.group_id}, other devices",
        backend_options=own,
        timeout=options.timeout,
    )
    ranks = options.global_ranks_in_group or range(options.group_size)
    module._world.pg_group_ranks[made] = {rank: place for place, rank in enumerate(ranks)}
    return made


class MixedProcessGroup(CollectivesProcessGroup):
    """A process group that passes on calls with tensors on some `devices`. Collective."""

    others: Any
    devices: list[str]

    def __init__(self, comm: Communicator, others: Any, devices: list[str]) -> None:
        super().__init__(comm)
        self.others, self.devices = others, devices
        for each in map(torch.device, devices):
            with contextlib.suppress(RuntimeError):  # it is written in Python, too
                backend = others._get_backend(each)
                self._register_backend(each, dist.ProcessGroup.BackendType.CUSTOM, backend)


def _passing(name: str) -> Callable[..., Any]:
    """Return a method that passes a call on if its tensors are on another group's devices."""
    method = getattr(CollectivesProcessGroup, name)

    def call(self: MixedProcessGroup, *arguments: Any, **options: Any) -> Any:
        if _device_of(arguments) in self.devices:
            return getattr(self.others, name)(*arguments, **options)
        return method(self, *arguments, **options)

    return skip_dynamo(call)


def _device_of(value: Any) -> str | None:
    """Return the type of a device, or of the device of the first tensor in nested lists."""
    if isinstance(value, torch.device):
        return str(value.type)
    if isinstance(value, torch.Tensor):
        return str(value.device.type)
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(_device_of, value)), None)
    return None


for _name in CALLS:
    setattr(MixedProcessGroup, _name, _passing(_name))
