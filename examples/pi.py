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
"""

import argparse
import time

import numpy as np

import collectives as cc

CHUNK = 2**18  # points; 4 MiB of coordinates, which stay in the cache


def inside(chunk, count, seed):
    """Generate the points of a chunk; return the number within the quarter circle."""
    rng = np.random.default_rng([seed, chunk])
    x, y = rng.random((2, count))
    return np.count_nonzero(x * x + y * y < 1.0)


def count_mine(points, seed):
    """Return the number of points within the circle in the chunks of this rank."""
    chunks = -(-points // CHUNK)
    hits = 0
    for chunk in range(cc.rank(), chunks, cc.size()):
        hits += inside(chunk, min(CHUNK, points - chunk * CHUNK), seed)
    return hits


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=20_000_000, help="how many, on all ranks")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    cc.barrier()  # all ranks start together, so the time of rank 0 is that of all
    start = time.perf_counter()
    hits = cc.allreduce(np.array([count_mine(options.points, options.seed)]))
    seconds = time.perf_counter() - start

    if cc.rank() == 0:
        pi = 4.0 * int(hits[0]) / options.points
        print(f"pi is about {pi:.8f}; it is off by {abs(pi - np.pi):.1e}")
        print(f"{options.points} points on {cc.size()} ranks took {seconds:.3f} s")


if __name__ == "__main__":
    main()
