"""Measure how fast the fold kernels run on a GPU, beside a copy on the same GPU.

Run it on one rank, on a GPU that nobody else uses::

    python benchmarks/measure_folds_on_gpu.py

For each size and number of operands it prints the bytes that the kernel reads and writes in a
second, in the median of several runs, and that number divided by the one of a copy of the same
size. The copy is `cudaMemcpyAsync` within the device, which reads and writes each byte once.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import cupy

from collectives.devices import folds
from collectives.devices.cupy_driver import CupyDriver

DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int8", "complex64")
OPERANDS = (2, 4, 8)
SIZES = tuple((1 << 20) * factor for factor in (1, 4, 16, 64, 256))  # bytes
RUNS = 20


def seconds(call: Callable[..., object], *arguments: object) -> float:
    """Return the time of a call on the device, in the median of all runs."""
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    times = []
    for _ in range(RUNS + 3):
        begin.record()
        call(*arguments)
        end.record()
        end.synchronize()
        times.append(1e-3 * cupy.cuda.get_elapsed_time(begin, end))
    return statistics.median(times[3:])


def main() -> None:
    """Print a table for each dtype."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--op", default="SUM")
    op = parser.parse_args().op
    driver = CupyDriver()
    print(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
    print(f"{'dtype':<12}{'MiB':>6}{'copy GB/s':>11}", end="")
    print("".join(f"{f'{k} operands':>14}{'of copy':>9}" for k in OPERANDS))
    for name in DTYPES:
        kernel = driver.kernel(folds.source(op, name), folds.kernel_name(op, name))
        for nbytes in SIZES:
            places = [cupy.zeros(nbytes, cupy.uint8) for _ in range(max(OPERANDS) + 1)]
            addresses = [each.data.ptr for each in places]
            copied = seconds(driver.copy, addresses[0], addresses[1], nbytes, 0)
            copy = 2 * nbytes / copied
            print(f"{name:<12}{nbytes >> 20:>6}{copy / 1e9:>11.0f}", end="")
            blocks, threads = folds.geometry(nbytes, driver.processors())
            itemsize = {"8": 1, "6": 2, "2": 4, "4": 8}[name[-1]]
            for k in OPERANDS:
                one = folds.Pass(
                    nbytes // itemsize, addresses[1 : k + 1], [False] * k, addresses[0]
                )
                took = seconds(driver.launch, kernel, blocks, threads, folds.packed(one), 0)
                rate = (k + 1) * nbytes / took
                print(f"{rate / 1e9:>14.0f}{rate / copy:>9.2f}", end="")
            print()
            del places
            cupy.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
