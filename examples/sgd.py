"""Data parallelism: each rank computes a part of every gradient, and all ranks take the same step.

The program trains a classifier of handwritten digits by gradient descent. The gradient of a batch
is a sum over its images, so it can be computed in parts. Each rank has the whole model and computes
the gradient of its part of the batch. One `allreduce` adds up the parts, and every rank takes the
same step. The training of a large network works in the same way, with a larger gradient.

Two properties are checked. The weights are bit-identical on all ranks, because all ranks start with
the same weights and add the same sums. They also agree, up to rounding, with the weights of a
training on one rank, because the batches are the same.

The training on one rank runs first, while the other ranks sleep. The speed-up that is printed is
therefore relative to the serial time on this machine. It is less than the number of ranks, because
the amount of communication does not decrease with more ranks. With more ranks than cores it is
below 1.

Run it on any number of ranks. Rank 0 needs scikit-learn, which contains the images
(pip install scikit-learn)::

    collectives run -n 2 examples/sgd.py --epochs 60
"""

import argparse
import os
import sys
import time

# One thread per rank. Otherwise the matrix products of one rank use the cores of the other ranks.
# NumPy reads these variables when it is imported.
for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402

import collectives as cc  # noqa: E402

CLASSES, FEATURES, BATCH, RATE, TESTED = 10, 512, 500, 0.3, 297


def load():
    """Load the digits on rank 0 and broadcast them. Exit if scikit-learn is missing."""
    data = None
    if cc.rank() == 0:
        try:
            from sklearn.datasets import load_digits

            data = load_digits(return_X_y=True)
        except ImportError as error:
            print(f"{error}; the images need it: pip install scikit-learn", file=sys.stderr)
    data = cc.broadcast_object(data)
    if data is None:
        sys.exit(1)
    images, labels = data
    # Fixed random features of the 64 pixels. They improve a linear model, and add work.
    mix = np.random.default_rng(0).normal(0.0, 0.02, (images.shape[1], FEATURES))
    return np.maximum(images @ mix, 0.0), labels


def gradient(weights, images, labels):
    """Return the sum of the gradients of the cross-entropy over some images."""
    scores = images @ weights
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1.0
    return images.T @ chances


def train(images, labels, epochs, r=0, p=1):
    """Train on rank `r` of `p`. Return the weights and the time in seconds."""
    weights = np.zeros((FEATURES, CLASSES))
    rng = np.random.default_rng(1)  # the same on all ranks, so that they agree on the batches
    start = time.perf_counter()
    for _ in range(epochs):
        order = rng.permutation(len(images))
        for first in range(0, len(images), BATCH):
            batch = order[first : first + BATCH]
            mine = batch[len(batch) * r // p : len(batch) * (r + 1) // p]
            total = gradient(weights, images[mine], labels[mine])
            if p > 1:
                cc.allreduce(total, out=total)
            weights -= RATE / len(batch) * total
    return weights, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=60)
    epochs = parser.parse_args().epochs

    images, labels = load()
    training = images[:-TESTED], labels[:-TESTED]
    train(*training, epochs=1)  # first calls are slow
    if cc.rank() == 0:
        serial, serial_seconds = train(*training, epochs)
    request = cc.ibarrier()
    while not request.test():
        time.sleep(0.01)  # a blocking wait would take a core from rank 0
    weights, seconds = train(*training, epochs, cc.rank(), cc.size())

    low, high = cc.allreduce(weights, op=cc.MIN), cc.allreduce(weights, op=cc.MAX)
    if not np.array_equal(low, high):
        raise SystemExit("the weights differ between ranks")
    if cc.rank() == 0:
        right = np.argmax(images[-TESTED:] @ weights, axis=1) == labels[-TESTED:]
        apart = np.abs(weights - serial).max() / np.abs(serial).max()
        print(f"{100 * right.mean():.1f} % of {TESTED} new images are recognised")
        print(f"all ranks have equal weights; they differ from those of one rank by {apart:.0e}")
        print(f"speed-up {serial_seconds / seconds:.2f}: alone {serial_seconds:.3f} s")
        print(f"{epochs} epochs on {cc.size()} rank{'s' * (cc.size() > 1)} took {seconds:.3f} s")
        if not apart < 1e-9:
            raise SystemExit("the weights differ from those of the training on one rank")


if __name__ == "__main__":
    main()
