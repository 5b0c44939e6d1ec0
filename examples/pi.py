"""The number pi from random points: the smallest program that is parallel and useful.

A point drawn at random from the unit square lies inside the quarter circle with probability
pi / 4. So draw many, count those inside, and divide. The points are independent of each other,
and the ranks need to talk only once, to add up their counts: one `allreduce` of one number.

The points come in chunks, each from a generator of its own that is seeded by (seed, number of the
chunk). The chunks are dealt to the ranks like cards. So the same points are drawn however many
ranks there are, the answer depends on the seed alone, and a chunk is all the memory it takes.

Run it with::

    collectives run -n 4 examples/pi.py --points 20000000
"""

import argparse
import time

import numpy as np

import collectives as cc

CHUNK = 2**18  # points: 4 MiB of coordinates, which stay in the cache


def inside(chunk, count, seed):
    """Draw the points of a chunk; return how many lie inside the quarter circle."""
    rng = np.random.default_rng([seed, chunk])
    x, y = rng.random((2, count))
    return np.count_nonzero(x * x + y * y < 1.0)


def count_mine(points, seed):
    """Count in every size-th chunk, beginning with the rank-th."""
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

    cc.barrier()  # all start together, so that rank 0's time is everybody's
    start = time.perf_counter()
    hits = cc.allreduce(np.array([count_mine(options.points, options.seed)]))
    seconds = time.perf_counter() - start

    if cc.rank() == 0:
        pi = 4.0 * int(hits[0]) / options.points
        print(f"pi is about {pi:.8f}; it is off by {abs(pi - np.pi):.1e}")
        print(f"{options.points} points on {cc.size()} ranks took {seconds:.3f} s")


if __name__ == "__main__":
    main()
