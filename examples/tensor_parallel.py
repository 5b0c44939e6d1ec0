"""Model parallelism within a layer: its matrix is divided, and the partial results are combined.

A layer is a matrix product, Y = W X, where each column of X is a sample. The matrix W can be
divided in two ways, and the partial results are combined by different collectives::

    by rows:     W = | W0 |   Y = | W0 X |    each rank computes some of the outputs;
                     | W1 |       | W1 X |    an allgather concatenates them

    by columns:  W = | W0 W1 |   Y = W0 X0 + W1 X1    each rank sums over some of the inputs;
                                                      an allreduce adds the sums

(If you write Y = X W, where each row is a sample, the names are exchanged.) The two ways fit
together. If the first layer of a pair is divided by rows, each rank has some of its outputs. These
are exactly the inputs that it needs for a second layer that is divided by columns. The function
between the layers works on each number separately, so the parts need not be combined there: one
allreduce serves two layers. The layers of large language models are divided in this way.

Run it on any number of ranks; the parts need not be equal. The program computes the pair in both
ways, counts the numbers that are communicated, and compares with the undivided model::

    collectives run -n 4 examples/tensor_parallel.py
"""

import numpy as np

import collectives as cc

INPUTS, HIDDEN, OUTPUTS, SAMPLES = 48, 250, 32, 20


def model():
    """Return two matrices and a batch. A large model would be made or loaded in parts."""
    rng = np.random.default_rng(7)
    w1 = rng.normal(0.0, INPUTS**-0.5, (HIDDEN, INPUTS))
    w2 = rng.normal(0.0, HIDDEN**-0.5, (OUTPUTS, HIDDEN))
    return w1, w2, rng.normal(size=(INPUTS, SAMPLES))


def relu(x):
    return np.maximum(x, 0.0)


def joined_after_each(w1, w2, x, hidden, outputs):
    """Divide both layers by rows, and concatenate the outputs of each."""
    h = cc.allgatherv(relu(w1[hidden] @ x))
    return cc.allgatherv(w2[outputs] @ h)


def joined_once(w1, w2, x, hidden):
    """Divide the first layer by rows and the second by columns; add up the sums at the end."""
    h = relu(w1[hidden] @ x)
    return cc.allreduce(w2[:, hidden] @ h)


def main():
    r, p = cc.rank(), cc.size()
    w1, w2, x = model()
    hidden = slice(HIDDEN * r // p, HIDDEN * (r + 1) // p)
    outputs = slice(OUTPUTS * r // p, OUTPUTS * (r + 1) // p)

    whole = w2 @ relu(w1 @ x)
    ways = {
        "allgather after each layer": (
            joined_after_each(w1, w2, x, hidden, outputs),
            HIDDEN + OUTPUTS,
        ),
        "one allreduce for both": (joined_once(w1, w2, x, hidden), OUTPUTS),
    }
    errors = np.array([np.abs(y - whole).max() / np.abs(whole).max() for y, _ in ways.values()])
    worst = cc.allreduce(errors, op=cc.MAX)  # over all ranks; each of them has the whole result
    if r == 0:
        share = w1[hidden].size + w2[:, hidden].size
        print(f"rank 0 of {p} has {share} of {w1.size + w2.size} weights")
        for (name, (_, rows)), error in zip(ways.items(), worst, strict=True):
            print(f"{name:<28} joins {rows * SAMPLES:>5} numbers; it is off by {error:.0e}")
    if not (worst < 1e-12).all():
        raise SystemExit("the result of the divided model is wrong")


if __name__ == "__main__":
    main()
