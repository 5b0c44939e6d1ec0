"""The common part of the programs on strategies: data, a network, its training and a report.

It needs tensorflow (``pip install tensorflow``).
"""

import numpy as np
import tensorflow as tf

import collectives.tensorflow as hvd

IMAGES, BATCH = 512, 64  # of all ranks together


def two_devices():
    """Have this process see its CPU as two devices, and return them."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if not tf.config.get_logical_device_configuration(cpu):
        parts = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, parts)
    return ["CPU:0", "CPU:1"]


def load():
    """Return this rank's part of some points, and the numbers of their classes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(IMAGES, 20)).astype(np.float32)
    y = (x @ rng.normal(size=(20, 3))).argmax(1)
    return x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]


def network():
    """Return a small network, which is not the same on all ranks."""
    tf.keras.utils.set_random_seed(hvd.rank())
    return tf.keras.Sequential(
        [
            tf.keras.Input((20,)),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(3),
        ]
    )


def loss():
    """Return the loss of the network."""
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def train(strategy, epochs=2):
    """Train the network under a strategy; return it, and the accuracy on all points."""
    x, y = load()
    with strategy.scope():
        model = network()
        model.compile(tf.keras.optimizers.SGD(0.3), loss(), jit_compile=False)
        hvd.broadcast_variables(model.variables, root_rank=0)
    model.fit(x, y, batch_size=BATCH // hvd.size(), epochs=epochs, verbose=0)
    return model, accuracy(model)


def accuracy(model):
    """Return the fraction of all points that the network recognises."""
    x, y = load()
    right = tf.argmax(model(x), 1) == y
    return float(hvd.allreduce(tf.reduce_mean(tf.cast(right, tf.float32))))


def report(name, model, result):
    """Print the accuracy; raise an error if the weights are not the same on all ranks."""
    mine = [weights.tobytes() for weights in model.get_weights()]
    if any(each != mine for each in hvd.allgather_object(mine)):
        raise SystemExit("the ranks have different weights")
    if hvd.rank() == 0:
        print(f"{name}: accuracy {result:.3f}, the same weights on all ranks")
