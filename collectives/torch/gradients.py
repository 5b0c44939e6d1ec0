"""The gradients of the collectives, for autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function

from collectives.horovod.ops import Average, Sum
from collectives.torch import moving, reducing


class Allreduce(Function):
    """`allreduce`: its gradient is reduced in the same way."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *terms: Any) -> Any:
        """Reduce the `tensor`; `ctx` keeps the `terms`. Collective."""
        ctx.terms = terms
        return reducing.allreduce_async(tensor, *terms).wait()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Reduce the gradient `grad`, by the terms in `ctx`. Collective."""
        average, _, *terms = ctx.terms
        return reducing.allreduce_async(grad, average, None, *terms).wait(), *[None] * 6


class GroupedAllreduce(Function):
    """`grouped_allreduce`: the gradients are reduced in the same way."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        """Reduce the tensors, which come after six terms in `arguments`; `ctx` keeps the terms.
        Collective.
        """
        ctx.terms = arguments[:6]
        return tuple(reducing.grouped_allreduce_async(arguments[6:], *ctx.terms).wait())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Reduce the gradients `grads`, by the terms in `ctx`. Collective."""
        average, _, *terms = ctx.terms
        reduced = reducing.grouped_allreduce_async(grads, average, None, *terms).wait()
        return *[None] * 6, *reduced


class Reducescatter(Function):
    """`reducescatter`: the gradients of the parts are joined."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *terms: Any) -> Any:
        """Reduce the `tensor`; `ctx` keeps the `terms`. Collective."""
        ctx.terms = terms
        return reducing.reducescatter_async(tensor, *terms).wait()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Join the gradients `grad` of all ranks, scaled by the terms in `ctx`. Collective."""
        _, op, process_set, prescale, postscale = ctx.terms
        factor = prescale * postscale * (process_set.size() if op == Sum else 1)
        if factor != 1.0:
            grad = grad * factor
        joined = moving.allgather_async(grad, None, process_set).wait()
        return joined, *[None] * 5


class Allgather(Function):
    """`allgather`: each rank has its rows of the mean of the gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Any, process_set: Any) -> Any:
        """Join the `tensor` of all ranks of `process_set` by `name`; `ctx` keeps how many rows it
        has. Collective.
        """
        ctx.rows, ctx.process_set = tensor.shape[0], process_set
        return moving.allgather_async(tensor, name, process_set).wait()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Reduce the gradient `grad`, and cut out the rows that `ctx` has counted. Collective."""
        process_set = ctx.process_set
        every = moving.allgather_async(torch.tensor([ctx.rows]), None, process_set).wait()
        terms = None, None, Average, 1.0, 1.0, process_set
        reduced = reducing.allreduce_async(grad, *terms).wait()
        first = int(every[: process_set.rank()].sum())
        return reduced.narrow(0, first, ctx.rows), None, None


class Broadcast(Function):
    """`broadcast`: the root has the mean of the gradients, and others zeros."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, name: Any, process_set: Any) -> Any:
        """Send the `tensor` of the `root` to all ranks of `process_set` by `name`; `ctx` keeps the
        root. Collective.
        """
        ctx.root, ctx.process_set = root, process_set
        return moving.broadcast_async(tensor, root, name, process_set).wait()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Reduce the gradient `grad`, for the root in `ctx`. Collective."""
        process_set = ctx.process_set
        terms = None, None, Average, 1.0, 1.0, process_set
        reduced = reducing.allreduce_async(grad, *terms).wait()
        if process_set.rank() != process_set.place(ctx.root):
            reduced = torch.zeros_like(reduced)
        return reduced, None, None, None


class Alltoall(Function):
    """`alltoall`: the gradients go back where the rows came from."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: Any, process_set: Any) -> Any:
        """Send the `tensor` by `splits` to all ranks of `process_set` by `name`; `ctx` keeps what
        has come. Collective.
        """
        moved, received = moving.alltoall_async(tensor, splits, name, process_set).wait()
        ctx.received, ctx.rows, ctx.process_set = received, tensor.shape[0], process_set
        ctx.mark_non_differentiable(received)
        return moved, received

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, unused: Any) -> Any:
        """Send the gradient `grad` back, by what `ctx` has kept; that of the received splits is
        `unused`. Collective.
        """
        back, _ = moving.alltoall_async(grad, ctx.received, None, ctx.process_set).wait()
        if back.shape[0] < ctx.rows:  # rows that were sent to nobody
            rest = back.new_zeros(ctx.rows - back.shape[0], *back.shape[1:])
            back = torch.cat((back, rest))
        return back, None, None, None
