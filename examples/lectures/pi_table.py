"""The number pi with mpi4py's lines and with this library's, on several numbers of ranks.

The loop is the one of a first lecture on parallel programs: rank r of p takes the points r, r + p,
r + 2 p, and so on, and counts those within the circle. Then the counts are added up, once with
mpi4py and once with this library. So the two columns differ in one call only, and the last two
columns measure this call alone::

    python examples/lectures/pi_table.py --ranks 1 2 4 8

The program starts itself on each number of ranks. `examples/pi.py` is the same sum with NumPy
instead of a loop over points; it needs about a hundredth of the time.

It needs mpi4py (``pip install mpi4py``).
"""

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives as cc

REPETITIONS = 201  # of the call alone


def count_mine(points, rank, size):
    """Return the number of a rank's points within the circle."""
    random.seed(rank)
    inside = 0
    for _ in range(rank, points, size):
        x = random.uniform(-0.5, 0.5)
        y = random.uniform(-0.5, 0.5)
        if x * x + y * y < 0.25:
            inside += 1
    return inside


def with_mpi4py(points):
    """Return pi, with a sum by mpi4py."""
    comm = MPI.COMM_WORLD
    mine = np.array(count_mine(points, comm.rank, comm.size), dtype="d")
    total = np.array(0.0)
    comm.Allreduce(mine, total, op=MPI.SUM)
    return 4 * float(total) / points


def with_collectives(points):
    """Return pi, with a sum by this library."""
    mine = np.array(count_mine(points, cc.rank(), cc.size()), dtype="d")
    total = cc.allreduce(mine)
    return 4 * float(total) / points


def sum_by_mpi4py(mine, total):
    MPI.COMM_WORLD.Allreduce(mine, total, op=MPI.SUM)


def sum_by_collectives(mine, total):
    cc.allreduce(mine, out=total)


def timed(function, *arguments):
    """Return the result and the seconds of the slowest rank."""
    cc.barrier()
    start = time.perf_counter()
    result = function(*arguments)
    return result, float(cc.allreduce(time.perf_counter() - start, op=cc.MAX))


def microseconds(call):
    """Return the microseconds of a sum of one number: the median of many."""
    mine, total = np.array(1.0), np.array(0.0)
    taken = []
    for _ in range(REPETITIONS):
        _, seconds = timed(call, mine, total)
        taken.append(1e6 * seconds)
    return float(np.median(taken))


def measure(points):
    """Print a row of the table: the times of the ranks of this job."""
    first, seconds = timed(with_mpi4py, points)
    second, ours = timed(with_collectives, points)
    calls = [microseconds(each) for each in (sum_by_mpi4py, sum_by_collectives)]
    if cc.rank() == 0:
        if first != second:
            raise SystemExit(f"the two sums differ: {first} and {second}")
        print("row", cc.size(), first, seconds, ours, *calls)


def rows(ranks, points):
    """Run this program on each number of ranks; yield the rows."""
    for n in ranks:
        command = [sys.executable, "-m", "collectives", "run", "-n", str(n), __file__]
        command += ["--points", str(points), "--measure"]
        # In its own folder: `python -m` would find the sources of the library in theirs first.
        folder = Path(__file__).parent
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=folder)
        found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("row ")]
        if done.returncode or len(found) != 1:
            raise SystemExit(f"the program failed on {n} ranks")
        yield [float(word) for word in found[0]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=5_000_000, help="how many, on all ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--measure", action="store_true", help="be one of the ranks")
    options = parser.parse_args()
    if options.measure:
        measure(options.points)
        return
    print(f"{options.points} points")
    print(
        "ranks         pi   mpi4py  speed-up  collectives  speed-up   the sum alone: mpi4py, ours"
    )
    alone = None
    for n, pi, seconds, ours, call, our_call in rows(options.ranks, options.points):
        alone = alone or (n * seconds, n * ours)
        print(
            f"{n:5.0f}  {pi:9.6f}  {seconds:5.2f} s  {alone[0] / seconds:8.2f}  {ours:9.2f} s  "
            f"{alone[1] / ours:8.2f}  {call:19.1f} us {our_call:5.1f} us",
            flush=True,
        )


if __name__ == "__main__":
    main()
