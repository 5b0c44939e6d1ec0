"""The heat equation on a plate that is divided among the ranks: an exchange of borders.

In each step, the temperature of each point becomes the mean of its four neighbours. The plate is
divided like a chocolate bar: `cart` arranges the ranks as a grid, and each rank has one rectangle.
For the points at its edge, a rank needs the outermost rows and columns of the rectangles around it.
It stores them in a border of one point::

        +-----------+
        | from above|
      +-+-----------+-+
    l |               | r
    e |  own points   | i
    f |               | g
    t |               | h
      +-+-----------+-+ t
        | from below|
        +-----------+

One call per step exchanges all four. Columns are not contiguous in memory; `neighbor_alltoallw`
accepts such arrays. At the edge of the plate there is no neighbour. The border is not written
there, and keeps the temperature that was set before the first step.

The result is compared with that of the undivided plate. Both add in the same order, so that they
are bit-identical. Run it on any number of ranks::

    collectives run -n 4 examples/heat.py --steps 200
"""

import argparse

import numpy as np

import collectives as cc

ROWS, COLUMNS = 48, 60


def plate():
    """Return the whole plate with its border: hot above, cold elsewhere."""
    u = np.zeros((ROWS + 2, COLUMNS + 2))
    u[0] = 100.0
    return u


def step(u):
    """Make a step of all points inside of the border."""
    u[1:-1, 1:-1] = (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4


def part(n, k, parts):
    """Return the ends of part `k` of `n` points."""
    return n * k // parts, n * (k + 1) // parts


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    grid = cc.world().cart((0, 0))
    (row, column), (down, across) = grid.coords, grid.dims
    top, bottom = part(ROWS, row, down)
    left, right = part(COLUMNS, column, across)

    u = plate()[top : bottom + 2, left : right + 2].copy()  # with the border around
    mine = [u[1, 1:-1], u[-2, 1:-1], u[1:-1, 1], u[1:-1, -2]]
    border = [u[0, 1:-1], u[-1, 1:-1], u[1:-1, 0], u[1:-1, -1]]
    for _ in range(steps):
        grid.neighbor_alltoallw(mine, border)
        step(u)

    whole = plate()
    for _ in range(steps):
        step(whole)
    wrong = (u[1:-1, 1:-1] != whole[top + 1 : bottom + 1, left + 1 : right + 1]).sum()
    wrong = int(cc.allreduce(np.array([wrong]))[0])
    if cc.rank() == 0:
        print(f"{down} x {across} ranks made {steps} steps of {ROWS} x {COLUMNS} points")
        print(f"the middle has {whole[ROWS // 2, COLUMNS // 2]:.4f} degrees; {wrong} points differ")
        if wrong:
            raise SystemExit("the divided plate has other temperatures")


if __name__ == "__main__":
    main()
