"""Measure short calls on a GPU that one rank has for itself: the time of the host.

    python benchmarks/measure_gpu_calls.py

For each size it prints the microseconds of an allreduce in place until its result is there, in the
median of many calls: by staging, by NCCL, and those of the two copies to pinned host memory and
back, made by hand.
"""

from __future__ import annotations

import statistics
from functools import partial

import cupy
from measure_gpu import pinned_like
from turns import alone, options, row

import collectives as cc


def copies(x: cupy.ndarray, pinned: object, stream: cupy.cuda.Stream) -> None:
    """Copy an array to the host and back."""
    x.get(out=pinned, stream=stream)
    stream.synchronize()
    x.set(pinned, stream=stream)


def main() -> None:
    """Print a line for each size."""
    arguments = options(__doc__, calls=300)
    comm = cc.world()
    stream = cupy.cuda.get_current_stream()
    print(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
    print(row("bytes", ["staging", "nccl", "copies"]))
    for nbytes in (4**k << 10 for k in range(7)):
        x = cupy.ones(nbytes // 4, cupy.float32)
        ways = [partial(comm.allreduce, x, x), partial(comm.allreduce, x, x, algorithm="nccl")]
        ways.append(partial(copies, x, pinned_like(x), stream))
        cells = []
        for call in ways:

            def whole(call=call) -> None:
                call()
                stream.synchronize()

            times = [alone(whole) for _ in range(arguments.calls)]
            cells.append(1e6 * statistics.median(times))
        print(row(nbytes, cells))


if __name__ == "__main__":
    main()
