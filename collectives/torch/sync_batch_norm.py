"""Batch normalisation with the mean and the variance of the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from collectives.horovod import basics
from collectives.horovod.ops import Sum
from collectives.torch.asynchronous import allgather_async, allreduce_async


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation over the batches of all ranks, which have at least 2 dimensions.

    In training, each pass is collective, forward and backward. Ranks may have batches of different
    sizes. The gradients of ``weight`` and ``bias`` are those of this rank's batch. On several
    ranks, there are no second derivatives: autograd raises a RuntimeError.

    Parameters
    ----------
    num_features, eps, momentum, affine, track_running_stats
        As for ``torch.nn.BatchNorm2d``.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"input has the shape {tuple(input.shape)}, and must have at least 2 dimensions: "
                "samples and channels"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the `input`, normalised. Collective in training, otherwise local."""
        self._check_input_dim(input)
        trains = self.training or not self.track_running_stats
        if basics.size() == 1 or not trains:
            return super().forward(input)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        arguments = input, self.weight, self.bias, self.eps
        made, mean, var, count = _Normalise.apply(*arguments)
        if self.training and self.running_mean is not None and self.running_var is not None:
            unbiased = var * (count / max(count - 1, 1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)
        normalised: torch.Tensor = made
        return normalised


def _shaped(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the values of the channels in a shape that broadcasts with a batch."""
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


class _Normalise(Function):
    """The normalisation of one batch."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Any, bias: Any, eps: float) -> Any:
        exact = x.double() if x.dtype is torch.float64 else x.float()
        axes = [k for k in range(x.dim()) if k != 1]
        count = x.numel() // max(x.shape[1], 1)
        if count:
            var, mean = torch.var_mean(exact, axes, correction=0)
        else:
            var, mean = exact.new_zeros(2, x.shape[1])
        mine = torch.cat((mean, var, mean.new_tensor([count]))).unsqueeze(0)
        every = allgather_async(mine).wait().double()
        counts = every[:, -1:]
        total = float(counts.sum())
        if not total:
            raise ValueError("the batches of all ranks are empty")
        means, variances = every[:, :-1].chunk(2, dim=1)
        joint = (counts * means).sum(0) / total
        spread = (counts * (variances + (means - joint) ** 2)).sum(0) / total
        mean, var = joint.to(exact.dtype), spread.to(exact.dtype)
        scale = torch.rsqrt(var + eps)
        centred = (exact - _shaped(mean, x)) * _shaped(scale, x)
        ctx.save_for_backward(centred, scale, weight)
        ctx.total, ctx.axes, ctx.dtype = total, axes, x.dtype
        result = centred
        if weight is not None:
            result = result * _shaped(weight, x) + _shaped(bias, x)
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        return result.to(x.dtype), mean, var, total

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> Any:
        centred, scale, weight = ctx.saved_tensors
        exact = grad.to(centred.dtype)
        by_weight = (exact * centred).sum(ctx.axes)
        by_bias = exact.sum(ctx.axes)
        sums = torch.cat((by_bias, by_weight))
        sums = allreduce_async(sums, None, None, Sum).wait() / ctx.total
        mean, slope = (_shaped(each, grad) for each in sums.chunk(2))
        factor = scale if weight is None else scale * weight
        by_input = (exact - mean - centred * slope) * _shaped(factor, grad)
        if weight is None:
            return by_input.to(ctx.dtype), None, None, None
        return by_input.to(ctx.dtype), by_weight.to(weight.dtype), by_bias.to(weight.dtype), None
