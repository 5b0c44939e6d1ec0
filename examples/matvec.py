"""Repeated matrix-vector products: every rank needs the whole vector in each step.

The matrix is divided by rows. Each rank makes only its own rows, and computes with them its own
part of y = A x. For this it needs the whole vector x. If y is the next x, as in every iterative
method, an `allgather` has to collect the parts on every rank.

The method is the power iteration. It computes the largest eigenvalue of A and its eigenvector:
multiply, scale to length 1, and repeat. The n * n products of a step are divided equally among the
p ranks. But each rank receives about n numbers in a step, and this does not decrease with p. So
there is a number of ranks beyond which more ranks do not help. It increases with n.

An `allgather` takes the same number of elements from each rank, so the number of ranks has to
divide the number of rows (`allgatherv` takes parts of different lengths). Run it on 1 to 8 ranks,
for example::

    collectives run -n 4 examples/matvec.py --rows 840
"""

import argparse
import sys

import numpy as np

import collectives as cc

TOLERANCE = 1e-12


def rows_of_matrix(first, last, n):
    """Return some rows of a symmetric matrix.

    Its elements decrease with the distance from the diagonal.
    """
    i, j = np.ogrid[first:last, :n]
    return 1.0 / (1.0 + np.abs(i - j))


def power_iteration(rows, n):
    """Return the largest eigenvalue, its eigenvector and the number of steps."""
    x = np.full(n, 1.0 / np.sqrt(n))
    value, step = 0.0, 0
    while True:
        step += 1
        y = cc.allgather(rows @ x).reshape(-1)  # all parts, in the order of the ranks
        before, value = value, np.linalg.norm(y)  # equal on all ranks, so all of them stop
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
