"""The number pi from random points on GPUs: `pi.py`, with the counting done by CuPy.

Each rank selects a GPU of its host, counts points there, and passes the count to `allreduce` as an
array in the memory of the GPU. Several ranks may share a GPU. If CuPy finds no GPU, the ranks use
NumPy, which has the same functions.

Run it with::

    collectives run -n 4 examples/gpu_pi.py --points 100000000
"""

import argparse
import time

import numpy as np

import collectives as cc

CHUNK = 2**22  # points; 64 MiB of coordinates


def library():
    """Return CuPy, with a GPU chosen for this rank, or NumPy if there is no GPU."""
    try:
        import cupy
    except ImportError:
        return np
    if not cupy.cuda.is_available():
        return np
    cupy.cuda.Device(cc.world().local_rank % cupy.cuda.runtime.getDeviceCount()).use()
    return cupy


def count_mine(xp, points, seed):
    """Return the number of points within the circle in the chunks of this rank, as an array."""
    hits = xp.zeros(1, xp.int64)
    for chunk in range(cc.rank(), -(-points // CHUNK), cc.size()):
        rng = xp.random.default_rng(1_000_003 * seed + chunk)
        x, y = rng.random((2, min(CHUNK, points - chunk * CHUNK)))
        hits += xp.count_nonzero(x * x + y * y < 1.0)
    return hits


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=100_000_000, help="how many, on all ranks")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    xp = library()
    cc.allreduce(xp.zeros(1))  # the first call is slow
    start = time.perf_counter()
    hits = cc.allreduce(count_mine(xp, options.points, options.seed))
    hits = int(hits[0])  # waits for the GPU
    seconds = time.perf_counter() - start

    if cc.rank() == 0:
        pi = 4.0 * hits / options.points
        where = "NumPy, because there is no GPU" if xp is np else "CuPy"
        print(f"pi is about {pi:.8f}; it is off by {abs(pi - np.pi):.1e}")
        print(f"{options.points} points on {cc.size()} ranks, with {where}, took {seconds:.3f} s")


if __name__ == "__main__":
    main()
