"""Batch normalisation with the mean and the variance of the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from collectives.compiled.phases import Phases
from collectives.compiled.tensorflow import gathering
from collectives.horovod import basics
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.ops import Sum
from collectives.horovod.process_sets import global_process_set

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
        mask = kwargs["mask"] if "mask" in kwargs else args[0]
        if mask is None:
            # TensorFlow differentiates its variance with a constant mean. The first derivative is
            # right, and the second one lacks that of this zero.
            variance -= (mean - tf.stop_gradient(mean)) ** 2
        if basics.size() == 1:
            return mean, variance
        shape, channels = mean.shape, mean.shape.num_elements()
        mean, variance = tf.reshape(mean, [-1]), tf.reshape(variance, [-1])
        count = tf.cast(tf.size(inputs) // channels, mean.dtype)
        if mask is not None:
            count = tf.reduce_sum(tf.cast(mask, mean.dtype))
        # The moments of an empty batch are NaN.
        moments = [tf.where(count > 0, each, tf.zeros_like(each)) for each in (mean, variance)]
        row = tf.concat([*moments, count[tf.newaxis]], 0)[tf.newaxis]
        # The losses of all ranks depend on each row, so gradients are added.
        rows = gathering(Phases(), row, None, global_process_set, Sum)()
        means, variances, counts = tf.split(rows, [channels, channels, 1], 1)
        shares = counts / tf.reduce_sum(counts)
        joint = tf.reduce_sum(shares * means, 0)
        spread = tf.reduce_sum(shares * (variances + (means - joint) ** 2), 0)
        return tf.reshape(joint, shape), tf.reshape(spread, shape)
