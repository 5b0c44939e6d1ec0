"""Time the fold kernels against the NumPy ufuncs on the same arrays, on one core.

    python benchmarks/measure_kernels.py --dtype float32,bfloat16 --op sum --begin 4K --end 64M

Columns: bytes of the message (one operand), GB/s of ours and of NumPy (message bytes per second,
1 GB = 1e9 bytes), and their ratio, above 1 where ours is the faster.  Both fold in place
(``out`` is the left operand) and take turns, call by call in blocks of at least `BLOCK_SECONDS`;
the figures are medians over the blocks, the ratio the median of each pair's ratio.
Both include the cost of a call from Python.  bfloat16 has a NumPy column where ml_dtypes is
installed, and takes turns with our float16 on the same bytes too.
"""

import itertools
import shlex
import statistics
import sys
from functools import partial

import numpy as np
from turns import alone, in_turns, options, ratio, sizes

from collectives import _core, reductions
from collectives.choice import profile
from collectives.measuring.patterns import FOLDS
from collectives.text import files

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

BLOCK_SECONDS = 200e-6  # long beside the 50 ns of time.perf_counter
BFLOAT16_CODE = 10  # CC_BFLOAT16, for arrays that NumPy can only call uint16


def operands(dtype, nbytes):
    """Return left and right such that thousands of folds neither overflow nor turn subnormal."""
    if dtype == "bfloat16":
        one = np.array([0x3F80], np.uint16).view(bfloat16 or np.uint16)
        left, right = (np.empty(nbytes // 2, one.dtype) for _ in range(2))
        left[:], right[:] = one, np.zeros_like(one)
        return left, right
    count = nbytes // np.dtype(dtype).itemsize
    return np.ones(count, dtype), np.zeros(count, dtype)


def compare(ours, other, seconds):
    """Return the seconds of two calls that take turns, in blocks, for about `seconds`."""
    return in_turns({"ours": ours, "other": other}, 7, alone, fill=BLOCK_SECONDS, seconds=seconds)


def measure(op, dtype, nbytes, seconds):
    """Return one row: op, dtype, bytes, GB/s, and the ratios (None where there is no other)."""
    left, right = operands(dtype, nbytes)
    code, ufunc = getattr(reductions, op.upper()).code, FOLDS[op.upper()]
    row = {"op": op, "dtype": dtype, "bytes": nbytes, "numpy": None, "ratio": None, "vs_f16": None}

    if dtype != "bfloat16":
        kwargs, other = {}, None
    else:
        kwargs = {} if bfloat16 is not None else {"dtype": BFLOAT16_CODE}
        halves = left.view(np.float16), right.view(np.float16)
        other = partial(_core.fold, code, halves[0], *halves)

    ours = partial(_core.fold, code, left, left, right, **kwargs)
    if dtype != "bfloat16" or bfloat16 is not None:
        times = compare(ours, partial(ufunc, left, right, out=left), seconds)
        row["numpy"] = nbytes / statistics.median(times["other"]) / 1e9
        row["ratio"] = ratio(times["other"], times["ours"])
    if other is not None:
        times = compare(ours, other, seconds)
        row["vs_f16"] = ratio(times["other"], times["ours"])
    row["ours"] = nbytes / statistics.median(times["ours"]) / 1e9
    return row


def line(row):
    """Return a row of the table."""
    figures = (row[key] for key in ("ours", "numpy", "ratio", "vs_f16"))
    cells = "".join(f"{'-' if figure is None else format(figure, '.2f'):>9}" for figure in figures)
    return f"{row['op']:<5}{row['dtype']:<12}{row['bytes']:>10}{cells}"


def main():
    """Parse the arguments, print the table, write the JSON."""
    args = options(
        __doc__,
        dtype="float32,float64,float16,bfloat16",
        op="sum",
        begin=4 << 10,
        end=64 << 20,
        factor=4,
        isa="",
        seconds=0.5,
        json=None,
    )
    if args.isa:
        _core.kernels_select(args.isa)
    header = {
        "cpu": profile.machine()[0],
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
        for size in sizes(args.begin, args.end, args.factor):
            rows.append(measure(op, dtype, size, args.seconds))
            print(line(rows[-1]), flush=True)
    if args.json:
        files.write_json(args.json, {**header, "rows": rows})


if __name__ == "__main__":
    main()
