"""The sequential program of the scaling homework: a network of Keras that recognises digits.

`mnist_scaling.py` is its parallel form::

    python examples/lectures/mnist_sequential.py --epochs 4

It needs tensorflow (``pip install tensorflow``).
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # ranks share the cores of a host

import digits
import tensorflow as tf


def network():
    """Return a network of two convolutions and two layers."""
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, activation="relu"),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(2),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    arguments = parser.parse_args()

    tf.keras.utils.set_random_seed(1)
    training, tested = digits.load()
    model = network()
    optimizer = tf.keras.optimizers.SGD(arguments.lr, momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])

    began = time.perf_counter()
    history = model.fit(
        *training,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_data=tested,
        verbose=2,
    ).history
    seconds = time.perf_counter() - began
    print(f"{history['val_accuracy'][-1]:.1%} recognised, {seconds:.2f} s", flush=True)


if __name__ == "__main__":
    main()
