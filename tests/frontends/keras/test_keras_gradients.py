"""The promises of all front ends on gradients, for `DistributedOptimizer` on Keras's backend."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from gradients import *  # noqa: F403  the tests
from gradients import Rows

import collectives.keras as hvd

BACKEND = keras.backend.backend()


class Keras:
    hvd = hvd
    has_rows = BACKEND == "tensorflow"

    def seeds(self):
        state = keras.layers.Dropout(0.5, seed=hvd.rank()).seed_generator.state
        return [(state, lambda x: keras.ops.convert_to_numpy(x.value))]

    def reduced(self, gradients, groups=None, **options):
        made = [keras.Variable(np.zeros(each.shape, "float32")) for each in gradients]
        if callable(groups):
            groups = groups(made)
        optimizer = keras.optimizers.SGD(1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, groups=groups, **options)
        grads = list(map(self._gradient, gradients))
        if BACKEND != "jax":
            optimizer.apply(grads, made)
            return [-keras.ops.convert_to_numpy(each.value) for each in made]
        optimizer.build(made)
        state = [each.value for each in optimizer.variables]
        values, _ = optimizer.stateless_apply(state, grads, [each.value for each in made])
        return [-keras.ops.convert_to_numpy(each) for each in values]

    def _gradient(self, gradient):
        if not isinstance(gradient, Rows):
            return keras.ops.convert_to_tensor(gradient)
        import tensorflow as tf

        return tf.IndexedSlices(*map(tf.constant, gradient))


@pytest.fixture
def front_end():
    return Keras()
