"""Models of ``tf_keras``, the older Keras, where it is installed."""

from __future__ import annotations

import runpy

import numpy as np
import pytest
import tensorflow as tf
from places import RANK, SIZE

import collectives.tensorflow.keras as hvd
from collectives.tensorflow import sync_batch_norm
from collectives.tensorflow.keras import legacy

keras = pytest.importorskip("tf_keras")

OPTIMIZERS = {
    "current": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "legacy": lambda rate: keras.optimizers.legacy.SGD(rate, momentum=0.9),
}


def trained(optimizer, x, y, callbacks=(), batch_size=4):
    """Return a model after two epochs, which begins alike on all ranks."""
    keras.utils.set_random_seed(RANK if callbacks else 0)
    model = keras.Sequential([keras.layers.Dense(3, input_shape=(5,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size, 2, verbose=0, callbacks=list(callbacks), shuffle=False)
    return model


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_is_that_of_one_process_with_all_data(kind):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SIZE * 8, 5)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    alone = trained(OPTIMIZERS[kind](0.01), x, y, batch_size=4 * SIZE)
    mine = np.concatenate([np.arange(k, k + 4) + 4 * RANK for k in (0, 4 * SIZE)])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[kind](0.01))
    model = trained(optimizer, x[mine], y[mine], callbacks)
    for each, same in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(each, same, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_momentum_is_scaled_as_the_learning_rate_is_warmed_up(kind):
    x, y = np.ones((8, 5), np.float32), np.ones((8, 1), np.float32)
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.04, warmup_epochs=1)
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[kind](0.04))
    model = trained(optimizer, x, y, [hvd.callbacks.BroadcastGlobalVariablesCallback(0), warmup])
    assert float(keras.backend.get_value(model.optimizer.learning_rate)) == pytest.approx(0.04)
    if SIZE > 1:
        before = [each.numpy() for each in gathered(model)]
        warmup._set(0)  # 0.04 * (1 + (SIZE - 1) / 2) / SIZE: there are two batches
        factor = (1 + (SIZE - 1) / 2) / SIZE
        for each, earlier in zip(gathered(model), before, strict=True):
            np.testing.assert_allclose(each.numpy(), factor * earlier, rtol=1e-6)


def gathered(model):
    """Return the momenta of an optimizer."""
    optimizer = model.optimizer
    if hasattr(optimizer, "get_slot"):
        return [optimizer.get_slot(each, "momentum") for each in model.trainable_variables]
    return optimizer.momentums


def test_a_model_is_loaded_with_a_distributed_optimizer(monkeypatch, tmp_path):
    monkeypatch.setattr(legacy, "is_used", lambda: True)
    x, y = np.ones((4, 5), np.float32), np.ones((4, 1), np.float32)
    model = trained(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), x, y)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = hvd.load_model(path)
    assert isinstance(loaded.optimizer, keras.optimizers.Adam)
    loaded.fit(np.full_like(x, RANK), y, verbose=0)  # gradients differ, averages do not
    every = hvd.allgather_object(loaded.get_weights())
    for weights in every:
        for each, same in zip(weights, every[0], strict=True):
            assert (each == same).all()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_elastic_states(kind, tmp_path):
    x, y = np.ones((8, 5), np.float32), np.full((8, 1), RANK, np.float32)
    keras.utils.set_random_seed(RANK)
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(5,))])
    model.compile(hvd.DistributedOptimizer(OPTIMIZERS[kind](0.01)), "mse")
    state = hvd.elastic.KerasState(model, batch=RANK, epoch=0)
    state.sync()
    kept = model.get_weights()
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.callbacks.BestModelCheckpoint("loss", filepath=str(tmp_path / "best.keras")),
    ]
    model.fit(x, y, 4, 2, verbose=0, callbacks=callbacks)
    assert (state.batch, state.epoch) == (0, 2)
    assert (tmp_path / "best.keras").exists() == (RANK == 0)
    state.restore()
    for weights in hvd.allgather_object(model.get_weights()):
        for each, same in zip(weights, kept, strict=True):
            assert (each == same).all()
    model.fit(x, y, 4, verbose=0, callbacks=[hvd.elastic.CommitStateCallback(state)])


@pytest.mark.parametrize("axis", [-1, [1, 2]])
def test_batches_are_normalised_over_all_ranks(monkeypatch, axis):
    monkeypatch.setattr(tf, "keras", keras)  # as TF_USE_LEGACY_KERAS=1 does
    layer = runpy.run_path(sync_batch_norm.__file__)["SyncBatchNormalization"](axis=axis)
    plain = keras.layers.BatchNormalization(axis)
    x = np.random.default_rng(0).normal(size=(4 * SIZE, 3, 3, 2)).astype(np.float32)
    mine = slice(4 * RANK, 4 * RANK + 4)
    made, expected = layer(x[mine], training=True), plain(x, training=True)
    np.testing.assert_allclose(made, expected[mine], atol=1e-5)
    np.testing.assert_allclose(layer.moving_mean, plain.moving_mean, atol=1e-6)
