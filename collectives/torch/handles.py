"""Tensors as the collectives take them, and what waits for asynchronous calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.handles import Handle
from collectives.text.words import shown

__all__ = ["poll", "synchronize"]

Tensors = Sequence[torch.Tensor]


def poll(handle: Handle) -> bool:
    """Return whether a collective is complete or has failed, so that `synchronize` will not wait.
    Local.

    Parameters
    ----------
    handle : Handle

    Raises
    ------
    ValueError
        If it is not a handle.
    """
    if not isinstance(handle, Handle):
        raise ValueError(f"handle is {shown(handle)}, and must come from an asynchronous call")
    return handle.done()


def synchronize(handle: Handle) -> Any:
    """Wait until a collective is complete; return its output.
    Local, but it waits for what the other ranks submit.

    Parameters
    ----------
    handle : Handle
        As returned by an asynchronous call. It may be waited for again.

    Returns
    -------
    Tensor, list or tuple of Tensor, or None
        As the blocking call; with the received splits for an `alltoall_async`. None for what is not
        a handle, as Horovod has it.

    Raises
    ------
    HorovodInternalError
        If the collective has failed: the ranks have submitted different things under its name, a
        rank is lost, or a deadline has passed.
    """
    return handle.wait() if isinstance(handle, Handle) else None


def array(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose memory the collectives can read: contiguous, without a graph. Local."""
    if not isinstance(tensor, torch.Tensor):
        raise HorovodArgumentError(f"tensor is {shown(tensor)}, and must be a torch.Tensor")
    if not tensor.is_cpu:
        raise HorovodArgumentError(
            f"the tensor is on {tensor.device}, and submissions take tensors in host memory only: "
            f"pass tensor.cpu(). collectives.Communicator.allreduce takes tensors of CUDA devices"
        )
    if tensor.layout is not torch.strided:
        raise HorovodArgumentError(
            f"the tensor has the layout {tensor.layout}, and must be dense: pass "
            f"tensor.to_dense(), or call sparse_allreduce_async"
        )
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def new(tensor: torch.Tensor) -> torch.Tensor:
    """Return an uninitialised tensor for a result like what `array` has returned. Local."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def changed(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return a tensor that a collective has changed. Local."""
    if result.data_ptr() != tensor.data_ptr():
        with torch.no_grad():
            tensor.copy_(result)
    elif not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
    return tensor
