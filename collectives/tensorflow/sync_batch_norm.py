"""Batch normalisation with the mean and the variance of the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from collectives.horovod import basics
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.ops import Sum
from collectives.tensorflow.moving import allgather
from collectives.tensorflow.reducing import reducescatter

__all__ = ["SyncBatchNormalization"]

Tensor = Any


@tf.keras.utils.register_keras_serializable(package="collectives")
class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Batch normalisation over the batches of all ranks.

    In training, each pass is collective, forward and backward. Ranks may have batches of different
    sizes.

    Parameters
    ----------
    fused : bool
        Horovod's argument; it must be false.
    **kwargs
        As for ``tf.keras.layers.BatchNormalization``.
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused or fused is None:
            raise HorovodArgumentError("SyncBatchNormalization does not support fused=True.")
        super().__init__(**kwargs)

    def _moments(self, inputs: Tensor, mask: Any) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance of the batches of all ranks."""
        mean, variance = super()._moments(inputs, mask)
        if basics.size() == 1:
            return mean, variance
        channels = mean.shape[0]
        count = tf.cast(tf.size(inputs) // channels, mean.dtype)
        if mask is not None:
            count = tf.reduce_sum(tf.cast(mask, mean.dtype))
        # The moments of no elements are not numbers.
        moments = [tf.where(count > 0, each, tf.zeros_like(each)) for each in (mean, variance)]
        row = tf.concat([*moments, count[tf.newaxis]], 0)[tf.newaxis]
        means, variances, counts = tf.split(_every(row), [channels, channels, 1], 1)
        shares = counts / tf.reduce_sum(counts)
        joint = tf.reduce_sum(shares * means, 0)
        return joint, tf.reduce_sum(shares * (variances + (means - joint) ** 2), 0)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _every(row: Tensor) -> Any:
    """Return the rows of all ranks. Their losses depend on each row: gradients are added."""

    def grad(back: Tensor) -> Tensor:
        return reducescatter(back, op=Sum)

    return allgather(row), grad
