"""The time that the front end for Keras adds to a step of ``fit``.

``KERAS_BACKEND=tensorflow mpiexec -n 2 python benchmarks/measure_keras.py``: a network like that of
examples/lectures/mnist_keras.py makes steps of ``fit`` with a plain optimizer, with a distributed
one, and with a plain one followed by one fused averaging of NumPy arrays of the gradients' sizes
(`allreduce_many`). The front end adds the difference between the distributed step and the latter.
The three take turns, some steps each time; times are medians over the turns, of the slower rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import keras
import numpy as np
from turns import in_turns, medians, options, row, say

import collectives as cc
import collectives.keras as hvd

SHAPE = 28, 28, 1


def network() -> keras.Model:
    """Return the network of the lectures' listing: 1.2 million parameters."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


class Averaging(keras.callbacks.Callback):
    """Average arrays of the sizes of a model's variables after each step. Collective."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.arrays = [np.ones(each.shape, np.float32) for each in model.trainable_variables]
        self.outs = [np.empty_like(each) for each in self.arrays]

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Do so."""
        cc.allreduce_many(self.arrays, self.outs, op=cc.AVG)


def stepping(optimizer: keras.Optimizer, batch: int, steps: int, averages: bool) -> Callable:
    """Return a function that makes some steps."""
    model = network()
    model.compile(optimizer, "sparse_categorical_crossentropy")
    rng = np.random.default_rng(hvd.rank())
    x = rng.random((batch * steps, *SHAPE), np.float32)
    y = rng.integers(0, 10, batch * steps)
    callbacks = [Averaging(model)] if averages else []
    return lambda: model.fit(
        x, y, batch_size=batch, shuffle=False, verbose=0, callbacks=list(callbacks)
    )


def main() -> None:
    arguments = options(__doc__, batch=128, steps=5, turns=7)
    hvd.init()
    terms = arguments.batch, arguments.steps
    ways = {
        "plain": stepping(keras.optimizers.Adam(), *terms, False),
        "plain and fused averaging": stepping(keras.optimizers.Adam(), *terms, True),
        "distributed": stepping(hvd.DistributedOptimizer(keras.optimizers.Adam()), *terms, False),
    }
    times = in_turns(ways, arguments.turns)  # the first one compiles
    found = medians(times, 1e-3 * arguments.steps)
    say(f"{keras.backend.backend()}, {hvd.size()} ranks, ms a step:")
    for name, value in found.items():
        say(row(name, [value], ".2f"))
    share = found["distributed"] / found["plain and fused averaging"] - 1
    say(f"the front end adds {share:.1%}")


if __name__ == "__main__":
    main()
