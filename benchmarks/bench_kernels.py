"""The fold kernels beside the NumPy ufuncs: ``out = left op right`` in place, on one core.

`measure_kernels.py` compares the two more closely, call by call, also with other instruction sets.
"""

from functools import partial

import pytest
from measure_kernels import operands

from collectives import _core, reductions
from collectives.measuring.patterns import FOLDS

CASES = [("sum", "float32"), ("sum", "float16"), ("sum", "int32"), ("max", "float64")]
SIZES = [4 << 10, 256 << 10, 16 << 20]  # in the first-level cache, in the second, in memory


@pytest.mark.parametrize("who", ["numpy", "ours"])
@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize(("op", "dtype"), CASES)
def bench_kernels(benchmark, op, dtype, nbytes, who):
    benchmark.group = f"kernel {op} {dtype}, {nbytes >> 10} KiB"
    left, right = operands(dtype, nbytes)
    code = getattr(reductions, op.upper()).code
    ours, numpys = partial(_core.fold, code, left), partial(FOLDS[op.upper()], out=left)
    fold = partial(ours, left, right) if who == "ours" else partial(numpys, left, right)
    benchmark.extra_info["bytes"] = nbytes
    benchmark(fold)
