"""Time ``SUM_REPRODUCIBLE`` against ``SUM``, and `sum_local` against `numpy.sum`.

    mpiexec -n 2 python benchmarks/measure_exact_sums.py
    python benchmarks/measure_exact_sums.py

On several ranks: for each dtype and size, the microseconds of an allreduce of SUM by the slowest
rank, and the ratio of SUM_REPRODUCIBLE to it. On one rank: the nanoseconds for each element of
numpy.sum, and the ratio of sum_local to it. All take turns; the numbers are medians.
"""

import numpy as np
from turns import alone, in_turns, medians, slowest

import collectives as cc

SIZES = 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20  # bytes
DTYPES = "float32", "float64"
TURNS, FILL = 21, 1e-3  # of calls, and seconds of them in a row


def of_ranks(x):
    """Return microseconds, and the ratio, of an allreduce."""
    out = np.empty_like(x)
    ways = {op: lambda op=op: cc.allreduce(x, out, op=op) for op in (cc.SUM, cc.SUM_REPRODUCIBLE)}
    calls = dict.fromkeys(ways, max(1, (1 << 20) // x.nbytes))
    found = medians(in_turns(ways, TURNS, slowest, calls=calls, warm=3), 1e-6)
    return found[cc.SUM], found[cc.SUM_REPRODUCIBLE] / found[cc.SUM]


def of_one(x):
    """Return nanoseconds for each element, and the ratio, of a sum of all."""
    ways = {"numpy": x.sum, "ours": lambda: cc.sum_local(x)}
    found = medians(in_turns(ways, TURNS, alone, fill=FILL), 1e-9 * x.size)
    return found["numpy"], found["ours"] / found["numpy"]


def main():
    rng = np.random.default_rng(cc.rank())
    measure, unit = (of_one, "ns") if cc.size() == 1 else (of_ranks, "us")
    if cc.rank() == 0:
        print(f"{cc.size()} ranks\ndtype      bytes        {unit}     ratio")
    for dtype in DTYPES:
        for nbytes in SIZES:
            x = rng.normal(size=nbytes // np.dtype(dtype).itemsize).astype(dtype)
            time, ratio = measure(x)
            if cc.rank() == 0:
                print(f"{dtype:8s}{nbytes:8d}  {time:8.2f}  {ratio:8.2f}", flush=True)


if __name__ == "__main__":
    main()
