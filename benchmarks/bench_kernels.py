"""The fold kernels beside the NumPy ufuncs: ``out = left op right`` in place, on one core."""

from functools import partial

import numpy as np
import pytest

from collectives import _core, reductions
from collectives.measuring.patterns import FOLDS

CASES = [("sum", "float32"), ("sum", "float16"), ("sum", "int32"), ("max", "float64")]
SIZES = [4 << 10, 256 << 10, 16 << 20]  # in the first-level cache, in the second, in memory


@pytest.mark.parametrize("who", ["numpy", "ours"])
@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize(("op", "dtype"), CASES)
def bench_kernels(benchmark, op, dtype, nbytes, who):
    benchmark.group = f"kernel {op} {dtype}, {nbytes >> 10} KiB"
    # Thousands of folds of these neither overflow nor turn subnormal.
    count = nbytes // np.dtype(dtype).itemsize
    left, right = np.ones(count, dtype), np.zeros(count, dtype)
    code = getattr(reductions, op.upper()).code
    ours, numpys = partial(_core.fold, code, left), partial(FOLDS[op.upper()], out=left)
    fold = partial(ours, left, right) if who == "ours" else partial(numpys, left, right)
    benchmark.extra_info["bytes"] = nbytes
    benchmark(fold)
