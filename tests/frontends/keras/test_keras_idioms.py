"""Idioms of older versions of Keras, and where the environment says that Keras is left as it is."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from horovod_names import exported, wanted

import collectives.keras as hvd


def test_it_has_the_names_of_horovod():
    assert exported("keras") == wanted("keras")


def test_programs_of_older_versions_run():
    optimizer = keras.optimizers.Adam(lr=0.25)
    assert float(keras.ops.convert_to_numpy(optimizer.lr)) == 0.25
    optimizer.lr = 0.5
    assert float(keras.ops.convert_to_numpy(optimizer.learning_rate)) == 0.5
    assert len(optimizer.variables()) == len(optimizer.variables) == 2
    optimizer = hvd.DistributedOptimizer(optimizer)
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    net.compile(
        loss="mse", optimizer=optimizer, experimental_run_tf_function=False, run_eagerly=True
    )
    net.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    assert len(optimizer.variables()) == 6
    assert optimizer.lr is optimizer.learning_rate
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    assert len(scaled.variables()) == 4
    scaled.lr = 1.0
    assert float(keras.ops.convert_to_numpy(scaled.inner_optimizer.lr)) == 1.0


def test_what_no_version_has_is_still_refused():
    with pytest.raises(ValueError, match="not recognized"):
        keras.optimizers.SGD(rate=0.1)
    with pytest.raises(TypeError, match="experimental"):
        keras.Sequential().compile(experimental=True)


def test_keras_may_be_left_as_it_is():
    assert pytest.IS_LEFT  # conftest.py has looked
