"""The promises of all front ends on gradients, for the tape and optimizers of ``tf_keras``."""

from __future__ import annotations

import pytest
import tensorflow as tf
from gradients import *  # noqa: F403  the tests
from gradients import Rows

import collectives.tensorflow as hvd


class Tape:
    hvd = hvd
    has_rows = True
    tensor = staticmethod(tf.constant)

    def seeds(self):
        state = tf.keras.layers.Dropout(0.5, seed=hvd.rank()).seed_generator.state
        behind = tf.Variable(hvd.rank(), name="seed_generator_state")
        return [(each, lambda x: x.numpy()) for each in (state, state.value, behind)]

    def reduced(self, gradients, groups=None, **options):
        made = [tf.Variable(tf.zeros(each.shape)) for each in gradients]
        if callable(groups):
            groups = groups(made)
        with tf.GradientTape() as tape:
            value = tf.add_n(list(map(self._loss, made, gradients)))
        tape = hvd.DistributedGradientTape(tape, groups=groups, **options)
        return [tf.convert_to_tensor(each).numpy() for each in tape.gradient(value, made)]

    def _loss(self, variable, gradient):
        if not isinstance(gradient, Rows):
            return tf.reduce_sum(variable * gradient)
        return tf.reduce_sum(tf.gather(variable, gradient.indices) * gradient.values)


class Legacy(Tape):
    """An optimizer of ``tf_keras``."""

    def reduced(self, gradients, groups=None, **options):
        import tf_keras

        import collectives.tensorflow.keras as keras_hvd

        made = [tf.Variable(tf.zeros(each.shape)) for each in gradients]
        if callable(groups):
            groups = groups(made)
        grads = [
            tf.IndexedSlices(*map(tf.constant, each))
            if isinstance(each, Rows)
            else tf.constant(each)
            for each in gradients
        ]
        optimizer = tf_keras.optimizers.SGD(1.0)
        optimizer = keras_hvd.DistributedOptimizer(optimizer, groups=groups, **options)
        optimizer.apply_gradients(zip(grads, made, strict=True))
        return [-each.numpy() for each in made]


@pytest.fixture(params=[Tape, Legacy])
def front_end(request):
    if request.param is Legacy:
        pytest.importorskip("tf_keras")
    return request.param()
