"""The number pi from random points: a small and useful parallel program.

A point chosen at random in the unit square lies within the quarter circle with probability pi / 4.
So choose many points, count those within it, and divide. The points are independent of each other.
The ranks communicate only once, to add up their counts: one `allreduce` of one number.

The points are generated in chunks. Each chunk has its own generator, which is seeded by (seed,
number of the chunk). Rank r takes the chunks r, r + p, r + 2 p, and so on. The points, and so the
result, therefore depend only on the seed and not on the number of ranks. The program never needs
more memory than one chunk.

Run it with::

    collectives run -n 4 examples/pi.py --points 20000000

With ``--plot pi.svg``, rank 0 draws the first points of each rank, which needs matplotlib
(``pip install matplotlib``).
"""

import argparse
import time

import numpy as np

import collectives as cc

CHUNK = 2**18  # points; 4 MiB of coordinates, which stay in the cache


def points_of(chunk, count, seed):
    """Generate the points of a chunk; return their coordinates x and y."""
    return np.random.default_rng([seed, chunk]).random((2, count))


def inside(chunk, count, seed):
    """Return the number of points of a chunk within the quarter circle."""
    x, y = points_of(chunk, count, seed)
    return np.count_nonzero(x * x + y * y < 1.0)


def count_mine(points, seed):
    """Return the number of points within the circle in the chunks of this rank."""
    chunks = -(-points // CHUNK)
    hits = 0
    for chunk in range(cc.rank(), chunks, cc.size()):
        hits += inside(chunk, min(CHUNK, points - chunk * CHUNK), seed)
    return hits


def draw(axes, ranks, points, seed):
    """Draw the quarter circle, and some points of each rank."""
    for rank in range(ranks):
        x, y = points_of(rank, min(CHUNK, -(-points // ranks)), seed)[:, : 1500 // ranks]
        axes.plot(x, y, ".", markersize=4, label=f"rank {rank}")
    angles = np.linspace(0, np.pi / 2, 100)
    axes.plot(np.cos(angles), np.sin(angles), color="black")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=20_000_000, help="how many, on all ranks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", metavar="FILE", help="draw some points of each rank")
    options = parser.parse_args()
    points = options.points

    cc.barrier()  # all ranks start together, so the time of rank 0 is that of all
    start = time.perf_counter()
    hits = cc.allreduce(np.array([count_mine(points, options.seed)]))
    seconds = time.perf_counter() - start

    if cc.rank() == 0:
        pi = 4.0 * int(hits[0]) / points
        print(f"pi is about {pi:.8f}; it is off by {abs(pi - np.pi):.1e}")
        print(f"{points} points on {cc.size()} ranks took {seconds:.3f} s")
        if options.plot:
            import plotting

            plotting.save(options.plot, lambda axes: draw(axes, cc.size(), points, options.seed))


if __name__ == "__main__":
    main()
