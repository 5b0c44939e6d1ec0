"""The parallel program of the scaling homework: `mnist_sequential.py` on several ranks.

Each rank has its part of the pictures, so an epoch has fewer steps, and the learning rate is that
of one rank times their number. With ``--warmup-epochs``, the rate rises to this value in steps. At
the full rate, the first steps of many ranks are too large, and the accuracy of the first epochs is
low.
Rank 0 draws the accuracy over the epochs into ``accuracy_N.pdf``, for N ranks, and prints the total
time; `run_scaling.sh` does so for 1, 2, 4 and 8 ranks::

    collectives run -n 2 examples/lectures/mnist_scaling.py --epochs 4 --warmup-epochs 2

It needs tensorflow (``pip install tensorflow``).
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # ranks share the cores of a host

import digits
import tensorflow as tf
from mnist_sequential import network

import collectives.tensorflow.keras as hvd


def draw(history, title, path):
    """Draw the accuracy of training and validation over the epochs."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "collectives"  # names in an SVG file do not change
    import matplotlib.pyplot as plt

    epochs = range(1, len(history["accuracy"]) + 1)
    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    axes.plot(epochs, history["accuracy"], "o-", label="training")
    axes.plot(epochs, history["val_accuracy"], "o-", label="validation")
    axes.set_xlabel("epoch")
    axes.set_ylabel("recognised")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_ylim(0, 1)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path)


def main():
    """Train; return the model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32, help="on each rank")
    parser.add_argument("--lr", type=float, default=0.05, help="for one rank")
    parser.add_argument("--warmup-epochs", type=int, default=0)
    parser.add_argument("--folder", default=".", help="where the picture is drawn")
    parser.add_argument("--format", default="pdf", help="of the picture: pdf, svg, png")
    arguments = parser.parse_args()

    hvd.init()
    tf.keras.utils.set_random_seed(1 + hvd.rank())
    training, tested = digits.load()
    count = len(training[0]) // hvd.size()  # equal on all ranks, and so is the number of steps
    mine = [each[hvd.rank() :: hvd.size()][:count] for each in training]

    model = network()
    rate = arguments.lr * hvd.size()
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(rate, momentum=0.9))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    if arguments.warmup_epochs:
        warmup = hvd.callbacks.LearningRateWarmupCallback(rate, arguments.warmup_epochs)
        callbacks.append(warmup)

    began = time.perf_counter()
    history = model.fit(
        *mine,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_data=[each[hvd.rank() :: hvd.size()] for each in tested],
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    ).history
    seconds = time.perf_counter() - began
    if hvd.rank() == 0:
        title = f"{hvd.size()} ranks, {arguments.warmup_epochs or 'no'} epochs of warm-up"
        draw(history, title, f"{arguments.folder}/accuracy_{hvd.size()}.{arguments.format}")
        accuracy = history["val_accuracy"][-1]
        print(f"{hvd.size()} ranks: {accuracy:.1%} recognised, {seconds:.2f} s", flush=True)
    return model


if __name__ == "__main__":
    main()
