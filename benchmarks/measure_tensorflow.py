"""What the front end for TensorFlow adds to an averaging.

``mpiexec -n 2 python benchmarks/measure_tensorflow.py``: gradients of the given shapes are averaged in three ways, in turns: by one fused call on NumPy
arrays (`allreduce_many`), by a tape's reduction in a `tf.function`, and by the same eagerly. Before
each, the ranks meet. The steps of a small network (that of examples/lectures/cifar100_tape.py) are
timed with a plain tape, with a distributed one, and with a plain one followed by the fused call:
what the distributed step takes more than the latter is what the front end adds. Times are medians,
of the slower rank.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import tensorflow as tf

import collectives as cc
import collectives.tensorflow as hvd
from collectives.graphs.tensorflow import reduced
from collectives.graphs.terms import Terms

# How many gradients there are, and how many elements each has: many small ones, the shapes of
# ResNet-50 as far as their number and their sum go, and few large ones.
CASES = {
    "161 of 1000": [1000] * 161,
    "161, 25.6 million in all": [64] * 106 + [460_000] * 55,
    "8 of 1 million": [1_000_000] * 8,
}


def timed(ways: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Return the median time of each way, in milliseconds, which take turns. Collective."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for k in range(repetitions + 3):
        for name, way in ways.items():
            cc.barrier()
            began = time.perf_counter()
            way()
            if k >= 3:
                times[name].append((time.perf_counter() - began) * 1e3)
    mine = np.array([statistics.median(each) for each in times.values()])
    return dict(zip(ways, cc.allreduce(mine, op=cc.MAX).tolist(), strict=True))


def of_gradients(sizes: list[int], repetitions: int) -> dict[str, float]:
    """Return the times of averaging gradients. Collective."""
    tensors = [tf.ones(size) for size in sizes]
    arrays = [np.ones(size, np.float32) for size in sizes]
    outs = [np.empty_like(each) for each in arrays]
    terms = Terms(hvd.Average)
    function = tf.function(lambda *tensors: reduced(tensors, terms))
    empty = tf.function(lambda *tensors: [tf.identity(each) for each in tensors])
    ways = {
        "allreduce_many": lambda: cc.allreduce_many(arrays, outs, op=cc.AVG),
        "tf.function": lambda: function(*tensors),
        "eager": lambda: reduced(tensors, terms),
        "an empty tf.function": lambda: empty(*tensors),
    }
    return timed(ways, repetitions)


def network() -> tf.keras.Model:
    """Return the network of the lecture's first program."""
    layers = [
        tf.keras.layers.Conv2D(32, (3, 3), activation="relu"),
        tf.keras.layers.MaxPooling2D((2, 2)),
        tf.keras.layers.Conv2D(64, (3, 3), activation="relu"),
        tf.keras.layers.MaxPooling2D((2, 2)),
        tf.keras.layers.Conv2D(64, (3, 3), activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(100, activation="softmax"),
    ]
    return tf.keras.Sequential([tf.keras.Input((32, 32, 3)), *layers])


def of_steps(batch: int, repetitions: int) -> dict[str, float]:
    """Return the times of a training step. Collective."""
    model, optimizer = network(), tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    loss = tf.keras.losses.CategoricalCrossentropy()
    x, y = tf.random.normal((batch, 32, 32, 3)), tf.one_hot(tf.range(batch) % 100, 100)
    arrays = [np.zeros(each.shape, np.float32) for each in model.trainable_variables]
    outs = [np.empty_like(each) for each in arrays]

    def step(wrap: Callable[[tf.GradientTape], tf.GradientTape]) -> Callable[[], object]:
        @tf.function
        def run(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                value = loss(y, model(x, training=True))
            gradients = wrap(tape).gradient(value, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return value

        return lambda: run(x, y).numpy()

    plain = step(lambda tape: tape)

    def fused() -> None:
        plain()
        cc.allreduce_many(arrays, outs, op=cc.AVG)

    ways = {
        "a step without the other ranks": plain,
        "and one allreduce_many": fused,
        "a step with DistributedGradientTape": step(hvd.DistributedGradientTape),
    }
    return timed(ways, repetitions)


def main() -> None:
    """Measure, and print the tables. Collective."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    hvd.init()
    for name, sizes in CASES.items():
        times = of_gradients(sizes, options.repetitions)
        report(f"gradients, {name}", times)
    report(f"a step of {options.batch} images", of_steps(options.batch, options.repetitions))


def report(title: str, times: dict[str, float]) -> None:
    """Print a table on rank 0. Local."""
    if hvd.rank() == 0:
        print(f"{title}: milliseconds on {hvd.size()} ranks")
        for name, value in times.items():
            print(f"  {name:38}{value:9.2f}")


if __name__ == "__main__":
    main()
