"""Conjugate gradients on a grid that is divided among the ranks: borders, and two sums a step.

Each rank has some rows of the grid. For a product with the matrix of Laplace's equation, it needs
the last row of the rank above and the first one of the rank below, and for the scalar products a
sum over all ranks. Record a run on a few ranks, and predict it on many::

    COLLECTIVES_TIMELINE=cg.json collectives run -n 2 examples/conjugate_gradient.py
    collectives forecast cg.json -p 8..512 --topology hosts=8,alpha=5us,beta=25Gbit/s
"""

import argparse

import numpy as np

import collectives as cc

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--rows", type=int, default=200, help="rows of the grid on each rank")
parser.add_argument("--columns", type=int, default=400)
parser.add_argument("--steps", type=int, default=100)
arguments = parser.parse_args()

comm = cc.world()
line = comm.cart((0,))  # the ranks from above to below
shape = arguments.rows, arguments.columns
padded = np.zeros(
    (shape[0] + 2, shape[1] + 2)
)  # with a border of zeros, or of the neighbours' rows


def product(u):
    """Return Laplace's operator of this rank's rows."""
    padded[1:-1, 1:-1] = u
    line.neighbor_alltoallw([u[0], u[-1]], [padded[0, 1:-1], padded[-1, 1:-1]])
    return 4 * u - padded[:-2, 1:-1] - padded[2:, 1:-1] - padded[1:-1, :-2] - padded[1:-1, 2:]


def dot(u, v):
    """Return the scalar product of two grids."""
    return float(comm.allreduce(np.array([(u * v).sum()]))[0])


rng = np.random.default_rng(comm.rank)
x, residual = np.zeros(shape), rng.normal(size=shape)
direction = residual.copy()
first = now = dot(residual, residual)
for _ in range(arguments.steps):
    image = product(direction)
    step = now / dot(direction, image)
    x += step * direction
    residual -= step * image
    before, now = now, dot(residual, residual)
    direction = residual + now / before * direction
if comm.rank == 0:
    print(f"{comm.size * shape[0]} x {shape[1]} points, {arguments.steps} steps")
    print(f"the residual is {(now / first) ** 0.5:.1e} of the first one")
