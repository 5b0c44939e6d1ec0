"""A network of Keras that recognises handwritten digits, trained by all ranks with ``fit``.

It is written like programs for ``horovod.tensorflow.keras``: each rank pins a GPU if there is one,
and reads the pictures in an order of its own; the learning rate grows with the number of ranks, and
the number of steps shrinks; the optimizer reduces the gradients of all ranks; a callback sets the
variables of all ranks to those of rank 0. At the end, the accuracy is averaged::

    collectives run -n 2 examples/lectures/mnist_keras.py --epochs 3

It needs tensorflow (``pip install tensorflow``).
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # ranks share the cores of a host

import digits
import tensorflow as tf

import collectives.tensorflow.keras as hvd


def network():
    """Return a network of two convolutions and two layers."""
    layers = tf.keras.layers
    convolutions = [layers.Conv2D(n, 3, activation="relu") for n in (16, 32)]
    pooling = [layers.MaxPooling2D(), layers.Dropout(0.25), layers.Flatten()]
    dense = [layers.Dense(64, "relu"), layers.Dropout(0.5), layers.Dense(10, "softmax")]
    return tf.keras.Sequential([*convolutions, *pooling, *dense])


def main():
    """Train; return the model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="of an epoch, on all ranks together")
    parser.add_argument("--batch-size", type=int, default=64, help="on each rank")
    parser.add_argument("--save", metavar="FILE", help="where rank 0 saves the model: .keras")
    arguments = parser.parse_args()

    hvd.init()
    if gpus := tf.config.list_physical_devices("GPU"):
        mine = gpus[hvd.local_rank()]
        tf.config.set_visible_devices(mine, "GPU")
        tf.config.experimental.set_memory_growth(mine, True)

    training, tested = digits.load()
    dataset = tf.data.Dataset.from_tensor_slices(training)
    dataset = dataset.repeat().shuffle(2000).batch(arguments.batch_size)

    model = network()
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.001 * hvd.size()))
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(),
        optimizer=optimizer,
        metrics=["accuracy"],
        experimental_run_tf_function=False,
    )
    model.fit(
        dataset,
        steps_per_epoch=max(1, arguments.steps // hvd.size()),
        epochs=arguments.epochs,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        verbose=2 if hvd.rank() == 0 else 0,
    )

    mine = [each[hvd.rank() :: hvd.size()] for each in tested]
    _, accuracy = model.evaluate(*mine, verbose=0)
    accuracy = hvd.allreduce(accuracy, name="accuracy")
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks: {float(accuracy):.1%} recognised", flush=True)
        if arguments.save:
            model.save(arguments.save)
    return model


if __name__ == "__main__":
    main()
