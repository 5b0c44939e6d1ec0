"""With ``init(bits="size")``, a gradient has the same bits alone and with others.

On two ranks it always has. On three, these tests fail without.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
from any_size import FEW, contribution, same
from places import RANK

import collectives.keras as hvd

X = contribution(RANK)


@pytest.fixture(scope="module", autouse=True)
def begun():
    hvd.shutdown()
    hvd.init(bits="size")
    yield
    hvd.shutdown()


@pytest.mark.parametrize("groups", [None, 2])
def test_optimizer(groups):
    weights = [keras.Variable(np.zeros(part.stop - part.start, "f4")) for part in FEW]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), groups=groups)
    gradients = [keras.ops.convert_to_tensor(X[part]) for part in FEW]
    optimizer.apply(gradients, weights)
    averages = keras.ops.convert_to_numpy(hvd.allreduce(X))
    for weight, part in zip(weights, FEW, strict=True):
        same(keras.ops.convert_to_numpy(weight), -averages[part])
