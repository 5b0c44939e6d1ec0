"""Parameter servers with the variables of Keras's models, on each backend."""

import keras
import numpy as np
from places import SIZE

import collectives as cc
from collectives import server


def test_variables_of_a_model():
    if SIZE == 1:
        return  # a server and a worker are two ranks
    layer = keras.layers.Dense(3, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((4,)), layer])
    kernel, bias = model.trainable_variables
    with server.ParameterServer(cc.world(), model, optimizer=server.SGD(1.0)) as ps:
        for _ in range(2 if ps.is_worker else 0):
            ps.pull()
            ps.push([kernel.value - 1, keras.ops.convert_to_tensor(bias) + 1])
    assert np.allclose(keras.ops.convert_to_numpy(kernel.value), 1)
    assert np.allclose(keras.ops.convert_to_numpy(bias.value), -1)
