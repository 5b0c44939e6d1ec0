"""The promises of all front ends on gradients, for the tape and optimizers of ``tf_keras``."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from gradients import *  # noqa: F403  the tests
from gradients import Rows, of_horovod
from gradients import test_derivatives_are_those_of_one_process as test_derivatives  # noqa: F401
from places import RANK, SIZE

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


class Collectives:
    collectives = of_horovod(hvd, lambda x, n: tf.tile(x, [n, 1]))

    def __init__(self, way):
        self._way = way

    def derivatives(self, function, x):
        def loss(x):
            return tf.reduce_sum(function(x**2) ** 3)

        return [each.numpy() for each in self._way(self._both)(loss, tf.constant(x))]

    def _both(self, loss, x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = loss(x)
            first = inner.gradient(y, x)
            y = tf.reduce_sum(first**2)
        return first, outer.gradient(y, x)


@pytest.fixture
def differentiable(way):
    return Collectives(way)


def test_derivatives_of_batch_normalisation(differentiable):
    x = np.random.default_rng(3).normal(size=(SIZE * (SIZE + 2), 3))
    mine = slice(RANK * (RANK + 2), (RANK + 1) * (RANK + 3))  # each rank has two rows more
    layer = hvd.SyncBatchNormalization(dtype="float64")

    def plain(x):  # that of Keras has a wrong second derivative
        return (x - tf.reduce_mean(x, 0)) / tf.sqrt(tf.math.reduce_variance(x, 0) + layer.epsilon)

    made = differentiable.derivatives(lambda x: layer(x, training=True), x[mine])
    for each, whole in zip(made, differentiable.derivatives(plain, x), strict=True):
        np.testing.assert_allclose(each, whole[mine], atol=1e-10 * np.abs(whole).max())


def test_derivatives_of_slices(way):
    """They are those of the values that other ranks get."""

    def run(op, values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            rows = tf.IndexedSlices(values, tf.range(3), [3, 2])
            dense = tf.convert_to_tensor(hvd.allreduce(rows, op=op))
            loss = tf.reduce_sum(dense * (RANK + 1.0))
        return tape.gradient(loss, values)

    total = SIZE * (SIZE + 1) / 2
    values = tf.constant([[1.0, 2.0]] * 3)
    for op, expected in ((hvd.Sum, total), (hvd.Average, total / SIZE)):
        made = way(lambda values, op=op: run(op, values))(values)
        np.testing.assert_allclose(tf.convert_to_tensor(made), np.full((3, 2), expected), rtol=1e-6)


@pytest.mark.several
@pytest.mark.parametrize("call", [hvd.allreduce, hvd.reducescatter])
def test_other_operations_have_no_gradient(way, call):
    x = tf.ones(SIZE)

    def run():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x, op=hvd.Max)
        return tape.gradient(y, x)

    with pytest.raises(ValueError, match=f"{call.__name__} with op Max has no gradient"):
        way(run)()
