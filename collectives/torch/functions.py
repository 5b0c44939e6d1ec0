"""Send parameters, the state of optimizers, and Python objects to all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from collectives.horovod.handles import Handle
from collectives.horovod.objects import (
    allgather_object,
    broadcast_object,
    same,
    stop_requested,
)
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.text.words import shown
from collectives.torch.asynchronous import broadcast_async_, check_shapes, dense_strides

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "same",
    "stop_requested",
]


def broadcast_parameters(
    params: Any, root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Send parameters of one rank to all ranks, in place.
    Collective.

    Parameters
    ----------
    params : dict, or iterable of Tensor or of (str, Tensor)
        ``model.state_dict()``, ``model.named_parameters()`` or ``model.parameters()``. Entries
        that are None are left out.
    root_rank : int
        The root, by its number among all ranks.
    process_set : ProcessSet
        The ranks.

    Raises
    ------
    ValueError
        If `params`, or an entry of it, has another type, or a parameter has no shape yet. Nothing
        was sent.
    HorovodInternalError
        As for `broadcast`.
    """
    if isinstance(params, Mapping):
        pairs: list[Any] = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, torch.Tensor | str):
        pairs = [each if isinstance(each, tuple) else (None, each) for each in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    pairs = [(name, each) for name, each in pairs if each is not None]
    for name, each in pairs:
        if not isinstance(each, torch.Tensor):
            raise ValueError(
                f"{name} is {shown(each)}, and only tensors are sent: pass it to broadcast_object"
            )
    check_shapes(pairs)
    handles: list[Handle] = []
    for name, each in pairs:
        handles.append(broadcast_async_(each, root_rank, name, process_set))
    problem: BaseException | None = None
    for handle in handles:
        try:
            handle.wait()
        except RuntimeError as error:
            problem = problem or error
    if problem is not None:
        raise problem


class _Blank(NamedTuple):
    """A placeholder for a tensor in a state that is sent without its tensors."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # fused optimizers read memory in the order of the parameter's
    dtype: torch.dtype


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None
) -> None:
    """Send the state and the options of an optimizer of one rank to all ranks.
    Collective.

    The optimizers of other ranks need no state yet. All optimizers of torch can be sent. If an
    optimizer has no state, its parameters without a gradient get a gradient of zeros, as in
    Horovod.

    Parameters
    ----------
    optimizer : Optimizer
        With the same groups of parameters on all ranks. It may be distributed.
    root_rank : int
        The root, by its number among all ranks.
    model : Module, optional
        Ignored; accepted for compatibility with Horovod.

    Raises
    ------
    HorovodInternalError
        As for `broadcast`.
    """
    is_root = global_process_set.comm().rank == global_process_set.place(root_rank)
    mine = [each for group in optimizer.param_groups for each in group["params"]]
    check_shapes((f"number {k} of the optimizer", each) for k, each in enumerate(mine))
    if not optimizer.state:
        give_zeros(mine)
    tensors: list[torch.Tensor] = []
    state = _taken_out(optimizer.state_dict(), tensors) if is_root else None
    state = broadcast_object(state, root_rank)
    if not is_root:
        state = _filled_in(state, tensors)
    broadcast_parameters([(f"optimizer state {k}", t) for k, t in enumerate(tensors)], root_rank)
    if is_root:
        return
    groups = optimizer.param_groups
    optimizer.load_state_dict(state)
    for old, new in zip(groups, optimizer.param_groups, strict=True):
        old.clear()
        old.update(new)  # references to the group stay valid
    optimizer.param_groups = groups


def give_zeros(parameters: Iterable[torch.Tensor]) -> None:
    """Set missing gradients of trained parameters to zeros. Local."""
    for each in parameters:
        if each.requires_grad and each.grad is None:
            each.grad = torch.zeros_like(each)


def _taken_out(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a nested value with a `_Blank` for each tensor; append the tensors to a list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.cpu())
        return _Blank(tuple(value.shape), dense_strides(value), value.dtype)
    if isinstance(value, dict):
        return {key: _taken_out(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_taken_out(each, tensors) for each in value)
    return value


def _filled_in(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a copy of a nested value with new tensors, which are appended to a list, too."""
    if isinstance(value, _Blank):
        tensors.append(torch.empty_strided(value.shape, value.strides, dtype=value.dtype))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _filled_in(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_filled_in(each, tensors) for each in value)
    return value
