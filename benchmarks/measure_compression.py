"""Time the kernels of compression beside a copy, and count the bytes that a compressed call sends.

    python benchmarks/measure_compression.py kernels
    mpiexec -n 2 python benchmarks/measure_compression.py bytes
    mpiexec -n 2 python benchmarks/measure_compression.py calls --begin 256K --end 64M

`kernels` prints, for each kernel and two sizes (an array that fits in the second-level cache, and
one that does not fit in any), GB/s of float32 (1 GB = 1e9 bytes) and the ratio to
`numpy.copyto` of the same array, above 1 where the kernel is the faster. Both take turns, call by
call in blocks of 200 microseconds; the numbers are those of the fastest blocks, for a machine that
others use, too.

`bytes` prints the bytes that a rank sends in an allreduce of 1 Mi elements of float32: of each
collective that ran, those that its algorithm sends per rank (by its proven cost). `calls` prints
the milliseconds of a call, the slowest rank's, as the least of many.
"""

import os
import sys
from functools import partial

# One thread per rank. NumPy reads these variables when it is imported.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402
from turns import alone, in_turns, options, row, say, sizes, slowest  # noqa: E402

from collectives import _core  # noqa: E402
from collectives.choice import profile  # noqa: E402

BLOCKS = {8: 512, 4: 256, 1: 512}
CODECS = ("none", "float16", "bfloat16", "int8", "int4", "sign", "topk:0.01", "randomk:0.01")
CODECS = (*CODECS, "powersgd:2")
PAGE = 4096
BLOCK_SECONDS = 200e-6  # long beside the 50 ns of time.perf_counter
ROWS = 1024  # of the matrix that is reduced


def kernels(x):
    """Return (name, a call on as many elements as `x`) of each kernel."""
    out = floats_at(x.size, PAGE // 2)
    residual = np.zeros_like(x)
    half = np.empty(x.size, np.float16)
    memory = np.empty(x.size, np.uint16)
    bfloat = _core.Span(memory.ctypes.data, (x.size,), "bfloat16", 2, memory)
    rows = []
    for bits, block in BLOCKS.items():
        codes = np.empty(_core.encoded_bytes(bits, x.size, block), np.uint8)
        _core.encode(bits, codes, x, None, block)
        rows.append((f"encode {bits}", partial(_core.encode, bits, codes, x, None, block, 7)))
        rows.append((f"decode {bits}", partial(_core.decode, bits, out, codes, block)))
        rows.append(
            (f"decode and add {bits}", partial(_core.decode, bits, out, codes, block, True))
        )
    rows.append(("encode 1, residual", partial(_core.encode, 1, codes, x, residual, BLOCKS[1])))
    rows.append(("to float16", partial(_core.convert, half, x)))
    rows.append(("of float16", partial(_core.convert, out, half)))
    rows.append(("to bfloat16", partial(_core.convert, bfloat, x)))
    rows.append(("of bfloat16", partial(_core.convert, out, bfloat)))
    k = x.size // 100
    rows.append(("largest 1 % (NumPy)", lambda: np.argpartition(np.abs(x), x.size - k)))
    return rows


def floats_at(count, offset):
    """Return an array that begins so many bytes after a page.

    glibc's memcpy is several times slower where the target begins just after the source, modulo a
    page, which NumPy's long arrays do: no copy to be compared with.
    """
    memory = np.empty(4 * count + 2 * PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE + offset
    return memory[start : start + 4 * count].view(np.float32)


def measure_kernels(listed, seconds):
    print(f"{profile.machine()[0]}, {_core.kernels_isa()}, {' '.join(sys.argv)}")
    print(row("kernel", [head for size in listed for head in (f"{size} B", "ratio")]))
    columns = []
    for size in listed:
        x, target = floats_at(size // 4, 0), floats_at(size // 4, PAGE // 2)
        x[:] = np.random.default_rng(0).normal(size=x.size)
        column = []
        for name, call in kernels(x):
            ways = {name: call, "copy": partial(np.copyto, target, x)}
            times = in_turns(ways, 7, alone, fill=BLOCK_SECONDS, seconds=seconds)
            best, copy = map(min, times.values())
            column.append((name, (size / best / 1e9, f"{copy / best:.2f}")))
        columns.append(column)
    for each in zip(*columns, strict=True):
        print(row(each[0][0], [cell for _, cells in each for cell in cells]))


def traced(comm, codec, x):
    """Return the bytes that a rank sends in a compressed allreduce."""
    from collectives import algorithms

    with comm.trace() as trace:
        comm.allreduce(x, compression=codec, name="x")
    return sum(
        algorithms.get(call.collective.removesuffix("v"), call.algorithm).totals(comm.size)[1]
        * call.nbytes
        for call in trace
    )


def measure_bytes(comm):
    x = np.random.default_rng(comm.rank).normal(size=(ROWS, ROWS)).astype(np.float32)
    say(f"{comm.size} ranks, {x.size} elements of float32")
    say(row("codec", ("bytes", "fewer")))
    plain = None
    for codec in CODECS:
        sent = int(comm.allreduce(np.array([traced(comm, codec, x)]), op="max")[0])
        plain = plain or sent
        say(row(codec, [str(sent), plain / sent]))


def measure_calls(comm, listed, seconds):
    say(f"{profile.machine()[0]}, {comm.size} ranks, {comm.transport}, {' '.join(sys.argv)}")
    say(row("ms", [f"{size} B" for size in listed]))
    columns = []
    for size in listed:
        source = np.random.default_rng(comm.rank).normal(size=(64, size // 256))
        source = source.astype(np.float32)
        x = np.empty_like(source)

        def clock(options, calls, source=source, x=x):
            x[:] = source
            return slowest(partial(comm.allreduce, x, out=x, **options))

        ways = {"no codec": {}} | {
            codec: {"compression": codec, "name": f"x{size}"} for codec in CODECS
        }
        columns.append(in_turns(ways, 1, clock, seconds=seconds * len(ways)))
    for codec in columns[0]:
        say(row(codec, [1e3 * min(times[codec]) for times in columns], ".3f"))


def main():
    what = ["kernels", "bytes", "calls"]
    arguments = options(__doc__, what=what, begin=256 << 10, end=64 << 20, seconds=0.3)
    if arguments.what == "kernels":
        measure_kernels((arguments.begin, arguments.end), arguments.seconds)
        return
    import collectives as cc

    if arguments.what == "bytes":
        measure_bytes(cc.world())
        return
    listed = list(sizes(arguments.begin, arguments.end, 16))
    measure_calls(cc.world(), listed, arguments.seconds)


if __name__ == "__main__":
    main()
