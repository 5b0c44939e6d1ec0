"""Batch normalisation with the mean and the variance of the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from collectives.horovod import basics
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.ops import Sum
from collectives.tensorflow.moving import allgather
from collectives.tensorflow.reducing import reducescatter

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
        self.fused = False  # otherwise `tf_keras` would not call `_moments`

    def _moments(self, inputs: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance of the batches of all ranks. In Keras 3, the other
        argument is a mask; in `tf_keras` there are more.
        """
        mean, variance = super()._moments(inputs, *args, **kwargs)
        if basics.size() == 1:
            return mean, variance
        mask = kwargs["mask"] if "mask" in kwargs else args[0]
        shape, channels = mean.shape, mean.shape.num_elements()
        mean, variance = tf.reshape(mean, [-1]), tf.reshape(variance, [-1])
        count = tf.cast(tf.size(inputs) // channels, mean.dtype)
        if mask is not None:
            count = tf.reduce_sum(tf.cast(mask, mean.dtype))
        # The moments of an empty batch are NaN.
        moments = [tf.where(count > 0, each, tf.zeros_like(each)) for each in (mean, variance)]
        row = tf.concat([*moments, count[tf.newaxis]], 0)[tf.newaxis]
        means, variances, counts = tf.split(_every(row), [channels, channels, 1], 1)
        shares = counts / tf.reduce_sum(counts)
        joint = tf.reduce_sum(shares * means, 0)
        spread = tf.reduce_sum(shares * (variances + (means - joint) ** 2), 0)
        return tf.reshape(joint, shape), tf.reshape(spread, shape)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _every(row: Tensor) -> Any:
    """Return the rows of all ranks. The losses of all ranks depend on each row, so gradients are
    added.
    """

    def grad(back: Tensor) -> Tensor:
        return reducescatter(back, op=Sum)

    return allgather(row), grad
