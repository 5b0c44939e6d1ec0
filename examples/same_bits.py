"""A training whose losses are equal to the last bit on any number of ranks.

A sum of floating-point numbers depends on the order of its additions, and the order depends on the
number of ranks. After a few thousand steps, the weights of a training on four ranks differ much
from those on eight. This program removes the three causes:

- *The order of examples.* All ranks draw the same permutation. A batch has the same examples on any
  number of ranks, and rank r of p has every p-th of them.
- *The computation.* A matrix product may have other bits in a batch of another size. So each rank
  computes the gradient and the loss of one example at a time, with one thread.
- *The sum.* `sum_local` adds the gradients of a rank exactly, and an `allreduce` with
  `SUM_REPRODUCIBLE` adds the sums of the ranks and rounds once. So does the sum of the losses.

It prints the losses in hexadecimal, which shows all of their bits, and a checksum of the weights.

Run it on any number of ranks, with NumPy or PyTorch::

    collectives run -n 4 examples/same_bits.py
    collectives run -n 2 examples/same_bits.py --framework torch
"""

import argparse
import os
import zlib

# One thread per rank: a library may divide its sums among the threads.
for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402

import collectives as cc  # noqa: E402

EXAMPLES, FEATURES, HIDDEN, BATCH, RATE = 96, 8, 16, 24, 0.1
SHAPES = (FEATURES, HIDDEN), (HIDDEN,)
ENDS = [FEATURES * HIDDEN]  # the index of the second layer among the weights


def data():
    """Return the same examples on all ranks: features, and the number to predict."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
    return x, np.sin(x.sum(axis=1))


def parts(weights):
    """Return the two layers, which lie one after the other."""
    return [
        each.reshape(shape) for each, shape in zip(np.split(weights, ENDS), SHAPES, strict=True)
    ]


def with_numpy(weights, x, y):
    """Return the gradient and the loss of one example."""
    first, second = parts(weights)
    hidden = np.tanh(x @ first)
    off = hidden @ second - y
    inside = off * second * (1 - hidden * hidden)
    return np.concatenate([np.outer(x, inside).ravel(), off * hidden]), off * off / 2


def with_torch(weights, x, y):
    """Return the gradient and the loss of one example."""
    import torch

    torch.set_num_threads(1)
    layers = [torch.from_numpy(each.copy()).requires_grad_() for each in parts(weights)]
    off = torch.tanh(torch.from_numpy(x) @ layers[0]) @ layers[1] - float(y)
    loss = off * off / 2
    gradient = torch.autograd.grad(loss, layers)
    return torch.cat([each.flatten() for each in gradient]).numpy(), loss.item()


def train(compute, epochs):
    """Return the losses of all epochs, and the weights."""
    x, y = data()
    weights = np.random.default_rng(1).normal(0, 0.3, FEATURES * HIDDEN + HIDDEN)
    weights = weights.astype(np.float32)
    rng = np.random.default_rng(2)  # the same on all ranks
    losses = []
    for _ in range(epochs):
        order = rng.permutation(EXAMPLES)
        told = []
        for first in range(0, EXAMPLES, BATCH):
            mine = order[first : first + BATCH][cc.rank() :: cc.size()]
            gradients = np.empty((len(mine), weights.size), np.float32)
            for row, k in enumerate(mine):
                gradients[row], loss = compute(weights, x[k], y[k])
                told.append(loss)
            sums = cc.sum_local(gradients, axis=0)
            total = cc.allreduce(sums, op=cc.SUM_REPRODUCIBLE)
            weights -= np.float32(RATE / BATCH) * total
        sums = cc.sum_local(np.array(told, np.float64))
        losses.append(float(cc.allreduce(sums, op=cc.SUM_REPRODUCIBLE)) / EXAMPLES)
    return losses, weights


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--framework", choices=["numpy", "torch"], default="numpy")
    options = parser.parse_args()
    compute = {"numpy": with_numpy, "torch": with_torch}[options.framework]
    losses, weights = train(compute, options.epochs)
    if cc.rank() == 0:
        for epoch, loss in enumerate(losses):
            print(f"epoch {epoch}: loss {loss:.6f}, {loss.hex()}")
        print(f"the weights have checksum {zlib.crc32(weights.tobytes()):08x}")


if __name__ == "__main__":
    main()
