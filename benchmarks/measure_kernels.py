"""Time the fold kernels against the NumPy ufuncs on the same arrays, on one core.

    python benchmarks/measure_kernels.py --dtype float32,bfloat16 --op sum --begin 4K --end 64M

Columns: bytes of the message (one operand), GB/s of ours and of NumPy (message bytes per second,
1 GB = 1e9 bytes), and their ratio, above 1 where ours is the faster.  Both fold in place
(``out`` is the left operand) and take turns, call by call in blocks of at least `BLOCK_SECONDS`;
the figures are medians over the blocks, the ratio the median of each pair's ratio.
Both include the cost of a call from Python.  bfloat16 has a NumPy column where ml_dtypes is
installed, and takes turns with our float16 on the same bytes too.
"""

import argparse
import itertools
import math
import platform
import shlex
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from collectives import _core, reductions
from collectives.text import files

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

BLOCK_SECONDS = 200e-6  # long beside the 50 ns of time.perf_counter
BFLOAT16_CODE = 10  # CC_BFLOAT16, for arrays that NumPy can only call uint16

UFUNCS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def parse_size(text):
    """Return bytes for '4096', '4K', '64M' or '1G' (powers of 1024)."""
    unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:].upper(), 1)
    return int(text.rstrip("KMGkmg")) * unit


def cpu_model():
    """Return the processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def operands(dtype, nbytes):
    """Return left and right such that thousands of folds neither overflow nor turn subnormal."""
    if dtype == "bfloat16":
        one = np.array([0x3F80], np.uint16).view(bfloat16 or np.uint16)
        left, right = (np.empty(nbytes // 2, one.dtype) for _ in range(2))
        left[:], right[:] = one, np.zeros_like(one)
        return left, right
    count = nbytes // np.dtype(dtype).itemsize
    return np.ones(count, dtype), np.zeros(count, dtype)


def block_of(call, repeats):
    """Return the seconds of one call, averaged over `repeats`."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def interleaved(calls, seconds):
    """Time the calls in turn, A B A B ..., for about `seconds`; return a list of times for each."""
    for call in calls:
        call()  # touch the pages, fill the caches
    repeats = [max(1, math.ceil(BLOCK_SECONDS / block_of(call, 3))) for call in calls]
    times = [[] for _ in calls]
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(times[0]) < 7:
        for call, count, samples in zip(calls, repeats, times, strict=True):
            samples.append(block_of(call, count))
    return times


def measure(op, dtype, nbytes, seconds):
    """Return one row: op, dtype, bytes, GB/s, and the ratios (None where there is no other)."""
    left, right = operands(dtype, nbytes)
    code, ufunc = getattr(reductions, op.upper()).code, UFUNCS[op]
    row = {"op": op, "dtype": dtype, "bytes": nbytes, "numpy": None, "ratio": None, "vs_f16": None}

    if dtype != "bfloat16":
        kwargs, other = {}, None
    else:
        kwargs = {} if bfloat16 is not None else {"dtype": BFLOAT16_CODE}
        halves = left.view(np.float16), right.view(np.float16)
        other = partial(_core.fold, code, halves[0], *halves)

    ours = partial(_core.fold, code, left, left, right, **kwargs)
    if dtype != "bfloat16" or bfloat16 is not None:
        times = interleaved([ours, partial(ufunc, left, right, out=left)], seconds)
        row["numpy"] = nbytes / statistics.median(times[1]) / 1e9
        row["ratio"] = median_ratio(times)
    if other is not None:
        times = interleaved([ours, other], seconds)
        row["vs_f16"] = median_ratio(times)
    row["ours"] = nbytes / statistics.median(times[0]) / 1e9
    return row


def median_ratio(times):
    """Return how many times as long the second call took as the first, turn by turn."""
    ours, theirs = times
    return statistics.median(t / o for o, t in zip(ours, theirs, strict=True))


def sizes(begin, end, factor):
    """Yield begin, begin * factor, ... up to end."""
    while begin <= end:
        yield begin
        begin *= factor


def line(row):
    """Return a row of the table."""
    figures = (row[key] for key in ("ours", "numpy", "ratio", "vs_f16"))
    cells = "".join(f"{'-' if figure is None else format(figure, '.2f'):>9}" for figure in figures)
    return f"{row['op']:<5}{row['dtype']:<12}{row['bytes']:>10}{cells}"


def main():
    """Parse the arguments, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32,float64,float16,bfloat16", help="comma list")
    parser.add_argument("--op", default="sum", help=f"comma list of {', '.join(UFUNCS)}")
    parser.add_argument("--begin", default="4K", help="smallest message (default %(default)s)")
    parser.add_argument("--end", default="64M", help="largest message (default %(default)s)")
    parser.add_argument("--factor", type=int, default=4, help="from size to size (default 4)")
    parser.add_argument("--isa", help="portable, avx2 or avx512; default: the best available")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each row (default 0.5)")
    parser.add_argument("--json", type=Path, help="also write the rows and the header here")
    args = parser.parse_args()

    if args.isa:
        _core.kernels_select(args.isa)
    header = {
        "cpu": cpu_model(),
        "isa": _core.kernels_isa(),
        "numpy": np.__version__,
        "command": shlex.join(["python", *sys.argv]),
    }
    print("# " + "; ".join(f"{key}: {value}" for key, value in header.items()))
    print("# GB/s = 1e9 message bytes folded per second, out is left; ratio = ours / numpy")
    print(f"{'op':<5}{'dtype':<12}{'bytes':>10}{'ours':>9}{'numpy':>9}{'ratio':>9}{'vs f16':>9}")

    rows = []
    cases = itertools.product(args.op.split(","), args.dtype.split(","))
    for op, dtype in cases:
        for nbytes in sizes(parse_size(args.begin), parse_size(args.end), args.factor):
            rows.append(measure(op, dtype, nbytes, args.seconds))
            print(line(rows[-1]), flush=True)
    if args.json:
        files.write_json(args.json, {**header, "rows": rows})


if __name__ == "__main__":
    main()
