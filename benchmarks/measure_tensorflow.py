"""The time that the front end for TensorFlow adds to an averaging.

``mpiexec -n 2 python benchmarks/measure_tensorflow.py`` times steps in which a function computes
gradients with a tape and applies them: on each rank alone, followed by one fused averaging of NumPy
arrays of the same sizes, and with `DistributedGradientTape`. The front end adds the difference
between the last one and the second, or less, if communication and computation overlap. *By hand* is
a program without the front end: two functions, and between them one fused averaging of the
gradients as arrays. The gradients are those of products, of given sizes, and those of the network
of the lecture's first program.

In all steps, the first gradient is applied when the last one is computed, as it is with any
averaging; otherwise TensorFlow applies a large one while it is still in the cache. The ranks meet
before each step, the ways take turns, and times are medians, of the slower rank. Beside each is the
median of the processor's time, which other programs disturb less.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import tensorflow as tf
from turns import in_turns, longest, options, row, say, slowest

import collectives as cc
import collectives.tensorflow as hvd

# The number of gradients, and of the elements of each: many small ones, the shapes of
# ResNet-50 as far as their number and their sum go, and few large ones.
CASES = {
    "161 of 1000": [1000] * 161,
    "161, 25.6 million in all": [64] * 106 + [460_000] * 55,
    "8 of 1 million": [1_000_000] * 8,
}

Times = dict[str, tuple[float, ...]]  # of each way: a step, and the processor's time for it


def timed(ways: dict[str, Callable[[], object]], turns: int) -> Times:
    """Return the median times of each way, in milliseconds, which take turns. Collective."""

    def clock(way: Callable[[], object], calls: int) -> tuple[float, float]:
        began = time.process_time()
        seconds = slowest(way, calls)
        return seconds, longest(time.process_time() - began)

    times = in_turns(ways, turns, clock, warm=3)
    return {
        name: tuple(1e3 * statistics.median(column) for column in zip(*each, strict=True))
        for name, each in times.items()
    }


def of_variables(sizes: list[int], turns: int) -> Times:
    """Return the times of steps that compute and apply gradients of these sizes. Collective."""
    variables = [tf.Variable(tf.ones(size)) for size in sizes]

    def compute(tape: tf.GradientTape) -> tf.Tensor:
        with tape:
            return tf.add_n([tf.reduce_sum(each * each) for each in variables])

    def apply(gradients: list[tf.Tensor]) -> None:
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(1e-6 * gradient)

    return of_tapes(compute, variables, apply, turns)


def of_tapes(
    compute: Callable[[tf.GradientTape], tf.Tensor],
    variables: list[tf.Variable],
    apply: Callable[[list[tf.Tensor]], None],
    turns: int,
) -> Times:
    """Return the times of steps with tapes of different kinds. Collective."""
    arrays = [np.ones(each.shape, np.float32) for each in variables]
    outs = [np.empty_like(each) for each in arrays]

    def step(wrap: Callable[[tf.GradientTape], tf.GradientTape]) -> Callable[[], object]:
        @tf.function
        def run() -> tf.Tensor:
            tape = tf.GradientTape()
            value = compute(tape)
            gradients = wrap(tape).gradient(value, variables)
            with tf.control_dependencies(gradients):
                apply([tf.identity(each) for each in gradients])
            return value

        return lambda: run().numpy()

    plain = step(lambda tape: tape)

    def fused() -> None:
        plain()
        cc.allreduce_many(arrays, outs, op=cc.AVG)

    @tf.function
    def computed() -> list[tf.Tensor]:
        tape = tf.GradientTape()
        return tape.gradient(compute(tape), variables)

    applied = tf.function(apply)

    def by_hand() -> None:
        cc.allreduce_many([each.numpy() for each in computed()], outs, op=cc.AVG)
        applied([tf.convert_to_tensor(each) for each in outs])

    ways = {
        "allreduce_many of NumPy arrays": lambda: cc.allreduce_many(arrays, outs, op=cc.AVG),
        "a step of this rank alone": plain,
        "such a step, and allreduce_many": fused,
        "such a step by hand": by_hand,
        "a step with DistributedGradientTape": step(hvd.DistributedGradientTape),
    }
    return timed(ways, turns)


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


def of_images(batch: int, turns: int) -> Times:
    """Return the times of training steps of the network. Collective."""
    model, optimizer = network(), tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    loss = tf.keras.losses.CategoricalCrossentropy()
    x, y = tf.random.normal((batch, 32, 32, 3)), tf.one_hot(tf.range(batch) % 100, 100)

    def compute(tape: tf.GradientTape) -> tf.Tensor:
        with tape:
            return loss(y, model(x, training=True))

    def apply(gradients: list[tf.Tensor]) -> None:
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return of_tapes(compute, model.trainable_variables, apply, turns)


def main() -> None:
    """Measure, and print the tables. Collective."""
    arguments = options(__doc__, turns=50, batch=32)
    hvd.init()
    for name, sizes in CASES.items():
        report(f"gradients: {name}", of_variables(sizes, arguments.turns))
    report(f"images: {arguments.batch}", of_images(arguments.batch, arguments.turns))


def report(title: str, times: Times) -> None:
    """Print a table on rank 0. Local."""
    say(f"{title}: milliseconds on {hvd.size()} ranks, and those of a processor")
    for name, both in times.items():
        say(row(f"  {name:38}", both, ".2f", 9))


if __name__ == "__main__":
    main()
