"""Data parallelism with compressed gradients: the loss of a training over the bytes sent.

The program trains a small network that recognises handwritten digits, once with each codec of
`collectives.compression`. Each rank computes the gradients of its part of a batch, and a compressed
`allreduce` averages them. All ranks start with the same weights and get the same bits from each
allreduce, so the weights stay the same on all ranks, which is checked. The loss shows the
error of a codec, and the bytes that a rank sends for a step show its savings.

The bytes are counted from a trace: of each collective that ran, the bytes that its algorithm
sends per rank. They include the small message by which the ranks agree on each call.

With scikit-learn (``pip install scikit-learn``), the images are its digits. Without it, they are
made up: ten random pictures with noise. Run it on any number of ranks::

    collectives run -n 2 examples/compressed_sgd.py --epochs 20

With ``--plot loss.svg``, it draws the loss over the bytes, which needs matplotlib
(``pip install matplotlib``).
"""

import argparse
import os

# One thread per rank. NumPy reads these variables when it is imported.
for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
import plotting  # noqa: E402

import collectives as cc  # noqa: E402
from collectives import algorithms, compression  # noqa: E402

CODECS = {
    "none": compression.NoCompression,
    "float16": compression.Float16,
    "bfloat16": compression.BFloat16,
    "int8": compression.Int8,
    "int4": compression.Int4,
    "sign": compression.Sign,
    "topk": lambda: compression.TopK(0.05),
    "randomk": lambda: compression.RandomK(0.2),
    "powersgd": lambda: compression.PowerSGD(2),
}
CLASSES, HIDDEN, BATCH, RATE, MOMENTUM, TESTED = 10, 128, 100, 0.1, 0.8, 297


def load():
    """Load or make the images on rank 0, and broadcast them. Return them, labels, and a name."""
    data = None
    if cc.rank() == 0:
        try:
            from sklearn.datasets import load_digits

            images, labels = load_digits(return_X_y=True)
            data = images / 16, labels, "digits"
        except ImportError:
            rng = np.random.default_rng(0)
            labels = rng.integers(0, CLASSES, 1797)
            pictures = rng.random((CLASSES, 64))
            data = pictures[labels] + rng.normal(0, 0.3, (1797, 64)), labels, "made-up pictures"
    images, labels, kind = cc.broadcast_object(data)
    return images.astype(np.float32), labels, kind


def start():
    """Return the weights of the two layers."""
    rng = np.random.default_rng(1)
    first = rng.normal(0, 0.2, (64, HIDDEN)).astype(np.float32)
    second = rng.normal(0, 0.1, (HIDDEN, CLASSES)).astype(np.float32)
    return {
        "first": first,
        "first bias": np.zeros(HIDDEN, np.float32),
        "second": second,
        "second bias": np.zeros(CLASSES, np.float32),
    }


def forward(weights, images):
    """Return the output of the hidden layer, and the probability of each class."""
    hidden = np.maximum(images @ weights["first"] + weights["first bias"], 0)
    scores = hidden @ weights["second"] + weights["second bias"]
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, chances / chances.sum(axis=1, keepdims=True)


def loss_and_accuracy(weights, images, labels):
    """Return the mean cross-entropy, and the fraction of images that are recognised."""
    chances = forward(weights, images)[1]
    loss = -np.log(np.maximum(chances[np.arange(len(labels)), labels], 1e-30)).mean()
    return float(loss), float((chances.argmax(axis=1) == labels).mean())


def gradients(weights, images, labels, batch):
    """Return the contribution of this rank's images to the mean gradient of a batch."""
    hidden, errors = forward(weights, images)
    errors[np.arange(len(labels)), labels] -= 1
    errors /= batch
    back = (errors @ weights["second"].T) * (hidden > 0)
    return {
        "first": images.T @ back,
        "first bias": back.sum(axis=0),
        "second": hidden.T @ errors,
        "second bias": errors.sum(axis=0),
    }


def sent_bytes(trace):
    """Return the bytes that a rank sent in the calls of a trace, by the cost of each algorithm."""
    total = 0
    for call in trace:
        costs = algorithms.get(call.collective.removesuffix("v"), call.algorithm).totals(cc.size())
        total += costs[1] * call.nbytes
    return total


def train(images, labels, codec, epochs):
    """Return the weights, the loss after each epoch, and the bytes this rank sent for a step."""
    weights, losses = start(), []
    speeds = {name: np.zeros_like(each) for name, each in weights.items()}
    rng = np.random.default_rng(2)  # the same on all ranks, so that they agree on the batches
    r, p, steps = cc.rank(), cc.size(), 0
    with cc.world().trace() as trace:
        for _ in range(epochs):
            order = rng.permutation(len(images))
            for first in range(0, len(images), BATCH):
                batch = order[first : first + BATCH]
                mine = batch[len(batch) * r // p : len(batch) * (r + 1) // p]
                parts = gradients(weights, images[mine], labels[mine], len(batch))
                for name, part in parts.items():
                    cc.allreduce(part, out=part, compression=codec, name=name)
                    speeds[name] = MOMENTUM * speeds[name] + part
                    weights[name] = weights[name] - np.float32(RATE) * speeds[name]
                steps += 1
            losses.append(loss_and_accuracy(weights, images, labels)[0])
    return weights, losses, sent_bytes(trace) / steps


def draw(axes, curves):
    """Draw the loss after each epoch over the bytes that a rank has sent."""
    for name, (losses, nbytes) in curves.items():
        axes.plot(nbytes * np.arange(1, len(losses) + 1), losses, label=name)
    axes.set(xscale="log", yscale="log", xlabel="bytes that a rank has sent", ylabel="loss")
    axes.legend()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--codec", choices=CODECS, action="append", help="default: all")
    plotting.add_option(parser, "the loss over the bytes that a rank has sent")
    arguments = parser.parse_args()

    images, labels, kind = load()
    training = images[:-TESTED], labels[:-TESTED]
    if cc.rank() == 0:
        print(f"{len(training[1])} {kind}, {arguments.epochs} epochs, {cc.size()} ranks")
        print("codec      loss   new images recognised   bytes a rank sends for a step")
    curves = {}
    for name in arguments.codec or CODECS:
        weights, losses, nbytes = train(*training, CODECS[name](), arguments.epochs)
        curves[name] = losses, nbytes * -(-len(training[1]) // BATCH)
        for each in weights.values():
            low, high = cc.allreduce(each, op=cc.MIN), cc.allreduce(each, op=cc.MAX)
            if not np.array_equal(low, high):
                raise SystemExit(f"with {name}, the weights differ between ranks")
        if cc.rank() == 0:
            _, recognised = loss_and_accuracy(weights, images[-TESTED:], labels[-TESTED:])
            print(f"{name:9s} {losses[-1]:6.4f} {100 * recognised:15.1f} % {nbytes:23.0f}")
    if cc.rank() == 0:
        plotting.save(arguments.plot, lambda axes: draw(axes, curves))


if __name__ == "__main__":
    main()
