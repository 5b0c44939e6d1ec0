"""Model parallelism inside of a layer: its matrix is cut, and the parts of the result are joined.

A layer is a matrix product, Y = W X, with a column of X for each sample. Its matrix can be cut in
two ways, and the parts are joined by different collectives::

    by rows:     W = | W0 |   Y = | W0 X |    each rank computes some of the outputs:
                     | W1 |       | W1 X |    an allgather puts them one below the other

    by columns:  W = | W0 W1 |   Y = W0 X0 + W1 X1    each rank sums over some of the inputs:
                                                      an allreduce adds the sums up

(Those who write Y = X W, with a row for each sample, call them the other way round.) The two belong
together. If the first layer of a pair is cut by rows, each rank has some of its outputs, and these
are the inputs that it needs for a second layer that is cut by columns. What is between them works
on each number alone, so nothing has to be joined there: one allreduce for two layers. This is how
the layers of large language models are divided.

Any number of ranks will do; the parts need not be equal. The program runs the pair in both ways,
counts what has to be joined, and compares with the undivided model::

    collectives run -n 4 examples/tensor_parallel.py
"""

import numpy as np

import collectives as cc

INPUTS, HIDDEN, OUTPUTS, SAMPLES = 48, 250, 32, 20


def model():
    """Return two matrices and a batch; a large model would be made, or loaded, in parts."""
    rng = np.random.default_rng(7)
    w1 = rng.normal(0.0, INPUTS**-0.5, (HIDDEN, INPUTS))
    w2 = rng.normal(0.0, HIDDEN**-0.5, (OUTPUTS, HIDDEN))
    return w1, w2, rng.normal(size=(INPUTS, SAMPLES))


def relu(x):
    return np.maximum(x, 0.0)


def joined_after_each(w1, w2, x, hidden, outputs):
    """Cut both layers by rows, and join the outputs of each."""
    h = cc.allgatherv(relu(w1[hidden] @ x))
    return cc.allgatherv(w2[outputs] @ h)


def joined_once(w1, w2, x, hidden):
    """Cut the first layer by rows and the second by columns, and join after both."""
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
    worst = cc.allreduce(errors, op=cc.MAX)  # of all ranks, each of which has the whole result
    if r == 0:
        share = w1[hidden].size + w2[:, hidden].size
        print(f"rank 0 of {p} has {share} of {w1.size + w2.size} weights")
        for (name, (_, rows)), error in zip(ways.items(), worst, strict=True):
            print(f"{name:<28} joins {rows * SAMPLES:>5} numbers; it is off by {error:.0e}")
    if not (worst < 1e-12).all():
        raise SystemExit("the divided model computes something else")


if __name__ == "__main__":
    main()
