"""Communication hooks for DistributedDataParallel, which reduce gradients in the background.

`allreduce` submits each bucket of gradients to `collectives.background`. The buckets that the next
forward pass needs first are reduced first, and a codec sends fewer bytes. The process group
of DDP may have any backend, and the gradients may be on an accelerator.
"""

# Annotations are not strings here: DDP compares those of a hook with its own classes.

from functools import partial
from typing import Any

import torch
from torch import distributed as dist

from collectives import background, default
from collectives.algorithms.bits import checked
from collectives.communicator import Communicator
from collectives.compression import Compressor
from collectives.errors import ArgumentError
from collectives.reductions import AVG
from collectives.text.words import shown
from collectives.torch.distributed.group import CollectivesProcessGroup
from collectives.torch.distributed.work import CallbackThread

__all__ = ["State", "allreduce"]


class State:
    """The state of the hook `allreduce`: the first argument of ``register_comm_hook``. Collective.

    Parameters
    ----------
    compression : Compressor or str, optional
        A codec of `collectives.compression`, or its name, such as ``"int8"``. It adds the part
        of a bucket that it leaves out to the same bucket in the next step.
    group : Communicator or ProcessGroup, optional
        The ranks: a communicator, or a process group with the backend ``"collectives"``. By
        default, that of torch's default group if it has this backend, and otherwise all ranks of
        the job.
    bits : str, optional
        As for `background.submit`: with ``"size"``, a gradient has the same bits in any bucket. By
        default, what the communicator has.
    by_priority : bool
        Whether a bucket that is needed earlier in the next forward pass runs before others that
        wait. These are the buckets that the backward pass fills later.

    Attributes
    ----------
    comm : Communicator
        The ranks.

    Raises
    ------
    ArgumentError
        If `group` or `bits` is invalid.
    """

    _number = 0  # number of states so far, the same on all ranks

    def __init__(
        self,
        compression: Compressor | str | None = None,
        *,
        group: Any = None,
        bits: str | None = None,
        by_priority: bool = True,
    ) -> None:
        self.comm: Communicator = communicator(group)
        self.bits: str | None = bits if bits is None else checked(bits)
        self.compression: Compressor | str | None = compression
        self.by_priority: bool = by_priority
        State._number += 1
        self.name: str = f"gradients {State._number}"
        self.callbacks: CallbackThread = CallbackThread("collectives hooks")
        background.start(self.comm)


def communicator(group: Any) -> Communicator:
    """Return the communicator of a process group, or the default one. Local."""
    if isinstance(group, Communicator):
        return group
    if group is None and dist.is_initialized():
        group = dist.group.WORLD
        if not isinstance(group, CollectivesProcessGroup):
            return default.world()
    if isinstance(group, CollectivesProcessGroup):
        return group.communicator
    if group is None:
        return default.world()
    raise ArgumentError(
        f"group is {shown(group)}, and must be a Communicator, or a process group of "
        f"torch.distributed with the backend 'collectives'"
    )


def allreduce(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over the ranks, in the background.
    Collective. DDP calls it, after ``model.register_comm_hook(State(), allreduce)``.

    Parameters
    ----------
    state : State
    bucket : GradBucket
        Its gradients are replaced by their averages.

    Returns
    -------
    Future
        Its value is the buffer of the bucket, once it has the averages; or it raises the error.
    """
    buffer, index = bucket.buffer(), bucket.index()
    handle = background.submit(
        "allreduce",
        buffer,
        buffer,
        op=AVG,
        # DDP makes new buckets after the first step: these are other arrays.
        name=f"{state.name}, bucket {index} of {buffer.numel()} elements",
        priority=index if state.by_priority else 0,
        bits=state.bits,
        group=state.comm,
        compression=state.compression,
    )

    def take(_: Any) -> Any:
        handle.wait()
        if handle.copies is not None:  # DDP does not know the stream of the copy
            handle.copies.settle()
        return buffer

    parent: torch.futures.Future[None] = torch.futures.Future()
    child: torch.futures.Future[torch.Tensor] = parent.then(take)  # its errors reach C++
    end = partial(parent.set_result, None)
    if handle.copies is None:
        handle.add_done_callback(lambda _: end())
    else:  # the completing thread does not wait for the device
        handle.add_done_callback(lambda _: state.callbacks.run(end))
    return child
