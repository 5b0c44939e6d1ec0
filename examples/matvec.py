"""A matrix times a vector, again and again: every rank needs all of the vector, each step.

The matrix is cut by rows, and each rank makes its own rows and never sees others. With them it
computes its own part of y = A x, for which it needs the whole of x. If y is to be the next x, as in
every iterative method, the parts have to come together on every rank: an `allgather`.

The method here is the power iteration, which finds the largest eigenvalue of A and its vector:
multiply, scale to length 1, repeat. Of what is computed, n * n / p products a step, p ranks take
equal parts; what is sent, n numbers a step to each rank, does not shrink with p. So there is a
number of ranks from which on more of them do not help: the larger n, the later.

An `allgather` takes equally much from all, so the number of ranks has to divide the number of rows
(`allgatherv` takes unequal parts). Run it on 1 to 8 ranks, say::

    collectives run -n 4 examples/matvec.py --rows 840
"""

import argparse
import sys

import numpy as np

import collectives as cc

TOLERANCE = 1e-12


def rows_of_matrix(first, last, n):
    """Make some rows of a symmetric matrix whose elements fall off with the distance from the
    diagonal.
    """
    i, j = np.ogrid[first:last, :n]
    return 1.0 / (1.0 + np.abs(i - j))


def power_iteration(rows, n):
    """Return the largest eigenvalue, its vector, and how many steps it took."""
    x = np.full(n, 1.0 / np.sqrt(n))
    value, step = 0.0, 0
    while True:
        step += 1
        y = cc.allgather(rows @ x).reshape(-1)  # all parts, one after the other
        before, value = value, np.linalg.norm(y)  # the same on every rank: so all of them stop
        x = y / value
        if abs(value - before) <= TOLERANCE * value:
            return value, x, step


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=840)
    n = parser.parse_args().rows
    if n % cc.size():
        message = f"{cc.size()} ranks cannot share {n} rows equally: choose --rows accordingly"
        sys.exit(message if cc.rank() == 0 else 1)

    count = n // cc.size()
    rows = rows_of_matrix(cc.rank() * count, (cc.rank() + 1) * count, n)
    value, vector, steps = power_iteration(rows, n)

    if cc.rank() == 0:
        matrix = rows_of_matrix(0, n, n)
        residual = np.linalg.norm(matrix @ vector - value * vector)
        print(f"the largest eigenvalue is {value:.10f}, after {steps} steps")
        print(f"|A x - value x| is {residual:.1e}, computed in one piece")
        print(f"each rank had {count} of {n} rows, and was sent {8 * (n - count)} bytes a step")
        if not residual < 1e-4 * value:
            raise SystemExit("it is no eigenvector")


if __name__ == "__main__":
    main()
