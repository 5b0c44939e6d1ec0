"""Federated averaging of a model of Keras."""

import keras
import numpy as np

import collectives as cc
from collectives import federated


def test_a_model_of_keras():
    """Its variables are written, and their trained values are read."""
    comm = cc.world()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])

    def fit(variables, task):
        for each in variables:
            each.assign_add(np.full(each.shape, 1.0 + task.client, np.float32))
        return variables, 1 + task.client

    for each in model.trainable_variables:
        each.assign(np.full(each.shape, comm.rank, np.float32))
    result = federated.run(comm, model.trainable_variables, fit, rounds=3)
    numbers = np.arange(1, comm.size + 1)
    gained = 3 * (numbers**2).sum() / numbers.sum()
    for each, sent in zip(model.get_weights(), result.parameters, strict=True):
        assert np.allclose(each, gained)
        assert np.array_equal(each, sent)
