"""Data parallelism on GPUs: the model stays on the GPU, and so do the gradients that are averaged.

The program trains a network with one hidden layer to tell three spirals apart. Each rank takes its
part of every batch, and computes the gradients of both layers for it. Two calls of `iallreduce` add
them up over the ranks, in place, and both are in flight together. Each call is ordered after the
earlier work on the stream of its array, and the next step is ordered after the result. So the
program itself never waits for the GPU.

If CuPy finds no GPU, the ranks use NumPy. Run it with::

    collectives run -n 2 examples/gpu_sgd.py --epochs 100
"""

import argparse
import time

import numpy as np
from gpu_pi import library

import collectives as cc

CLASSES, HIDDEN, POINTS, BATCH, RATE = 3, 256, 3000, 300, 0.5


def spirals(rng):
    """Return points on three spiral arms, and the arm of each."""
    labels = rng.integers(0, CLASSES, POINTS)
    radius = rng.random(POINTS)
    angle = 4.0 * radius + 2.0 * np.pi / CLASSES * labels + rng.normal(0.0, 0.1, POINTS)
    features = np.stack([radius * np.cos(angle), radius * np.sin(angle), np.ones(POINTS)], axis=1)
    return features, labels


def gradients(xp, weights, features, labels):
    """Return the sums of the gradients of the cross-entropy of both layers over some points."""
    first, second = weights
    hidden = xp.maximum(features @ first, 0.0)
    scores = hidden @ second
    chances = xp.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[xp.arange(len(labels)), labels] -= 1.0
    back = (chances @ second.T) * (hidden > 0.0)
    return [features.T @ back, hidden.T @ chances]


def train(xp, weights, features, labels, epochs):
    """Train in place; every rank takes the same steps."""
    rng = np.random.default_rng(1)  # the same on all ranks, so that they agree on the batches
    r, p = cc.rank(), cc.size()
    for _ in range(epochs):
        order = xp.asarray(rng.permutation(len(labels)))
        for first in range(0, len(labels), BATCH):
            batch = order[first : first + BATCH]
            mine = batch[len(batch) * r // p : len(batch) * (r + 1) // p]
            parts = gradients(xp, weights, features[mine], labels[mine])
            requests = [cc.iallreduce(part, out=part) for part in parts]
            for weight, request in zip(weights, requests, strict=True):
                weight -= RATE / len(batch) * request.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=100)
    epochs = parser.parse_args().epochs

    xp = library()
    rng = np.random.default_rng(0)  # the same on all ranks: they have equal data and weights
    features, labels = spirals(rng)
    weights = [rng.normal(0.0, 0.5, (3, HIDDEN)), rng.normal(0.0, 0.1, (HIDDEN, CLASSES))]
    features, labels = xp.asarray(features), xp.asarray(labels)
    weights = [xp.asarray(weight) for weight in weights]

    start = time.perf_counter()
    train(xp, weights, features, labels, epochs)
    found = xp.argmax(xp.maximum(features @ weights[0], 0.0) @ weights[1], axis=1)
    right = float((found == labels).mean())
    seconds = time.perf_counter() - start

    for weight in weights:
        if not bool((cc.allreduce(weight, op=cc.MIN) == cc.allreduce(weight, op=cc.MAX)).all()):
            raise SystemExit("the weights differ between ranks")
    if cc.rank() == 0:
        where = "NumPy, because there is no GPU" if xp is np else "CuPy"
        print(f"{100 * right:.1f} % of {POINTS} points are recognised")
        print(f"{epochs} epochs on {cc.size()} ranks, with {where}, took {seconds:.3f} s")


if __name__ == "__main__":
    main()
