"""Measure how fast the fold kernels run on a GPU, beside a copy on the same GPU.

Run it on one rank, on a GPU that nobody else uses::

    python benchmarks/measure_folds_on_gpu.py

For each size and number of operands it prints the bytes that the kernel reads and writes in a
second, in the median of several runs, and that number divided by the one of a copy of the same
size. The copy is `cudaMemcpyAsync` within the device, which reads and writes each byte once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import cupy
from turns import in_turns, medians, options, row

from collectives.devices import folds
from collectives.devices.cupy_driver import CupyDriver

DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int8", "complex64")
OPERANDS = (2, 4, 8)
SIZES = tuple((1 << 20) * factor for factor in (1, 4, 16, 64, 256))  # bytes


def clock(call: Callable[[], object], calls: int) -> float:
    """Return the time of a call on the device."""
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return 1e-3 * float(cupy.cuda.get_elapsed_time(begin, end))


def main() -> None:
    """Print a table for each dtype."""
    arguments = options(__doc__, turns=20, op="SUM")
    driver = CupyDriver()
    print(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
    heads = [head for k in OPERANDS for head in (f"{k} operands", "of copy")]
    print(row("dtype, MiB", ["copy GB/s", *heads]))
    for name in DTYPES:
        kernel = driver.kernel(
            folds.source(arguments.op, name), folds.kernel_name(arguments.op, name)
        )
        itemsize = {"8": 1, "6": 2, "2": 4, "4": 8}[name[-1]]
        for nbytes in SIZES:
            places = [cupy.zeros(nbytes, cupy.uint8) for _ in range(max(OPERANDS) + 1)]
            addresses = [each.data.ptr for each in places]
            # The copy reads and writes as many bytes as a fold of one operand.
            ways = {1: partial(driver.copy, addresses[0], addresses[1], nbytes, 0)}
            blocks, threads = folds.geometry(nbytes, driver.processors())
            for k in OPERANDS:
                one = folds.Pass(
                    nbytes // itemsize, addresses[1 : k + 1], [False] * k, addresses[0]
                )
                packed = folds.packed(one)
                ways[k] = partial(driver.launch, kernel, blocks, threads, packed, 0)
            found = medians(in_turns(ways, arguments.turns, clock, warm=3))
            rates = {k: (k + 1) * nbytes / took for k, took in found.items()}
            cells: list[object] = [rates[1] / 1e9]
            for k in OPERANDS:
                cells += [rates[k] / 1e9, f"{rates[k] / rates[1]:.2f}"]
            print(row(f"{name}, {nbytes >> 20}", cells, ".0f"))
            del places
            cupy.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
