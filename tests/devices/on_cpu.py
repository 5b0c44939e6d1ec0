"""The kernels of devices as C++ on this CPU: compiled once, and run as a grid of threads.

`text` is all kernels behind ``cuda_on_cpu.h``, with some functions for the tests. `compiled` makes
a library of it, which is kept by its content, so that processes side by side share one.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from collectives.devices import folds

HERE = Path(__file__).resolve().parent
COMPILER = next((found for found in map(shutil.which, ("g++", "clang++", "c++")) if found), None)
# Nothing is optimised: it compiles in seconds, and the test is one of the sources.
OPTIONS = ["-O0", "-std=c++17", "-shared", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off"]
OPTIONS += ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", f"-I{HERE}"]
# Vectors count how they are copied (cuda_on_cpu.h), which gcc takes for a reason not to use memcpy.
OPTIONS += ["-Wno-unknown-warning-option", "-Wno-class-memaccess"]

TESTED = """
/* Which operand stands to the right: no operation of the library shows it. */
namespace operations {
struct second {
    template <class Element>
    static Element fold(Element, Element b) { return b; }
};
}
FOLD_KERNEL(second, uint32)

extern "C" {
int run_kernel(void (*kernel)(fold_pass), const fold_pass *pass, unsigned int blocks,
               unsigned int threads, unsigned int first, unsigned int end, int backwards)
{
    misaligned = 0;
    launch(kernel, pass, blocks, threads, first, end, backwards);
    return misaligned;
}

void widen_float16(const elements::float16 *from, float *to, unsigned long long n)
{
    for (unsigned long long i = 0; i < n; ++i)
        to[i] = elements::widened(from[i]);
}

void widen_bfloat16(const elements::bfloat16 *from, float *to, unsigned long long n)
{
    for (unsigned long long i = 0; i < n; ++i)
        to[i] = elements::widened(from[i]);
}

void narrow_float16(const float *from, elements::float16 *to, unsigned long long n)
{
    for (unsigned long long i = 0; i < n; ++i)
        elements::narrow(from[i], to[i]);
}

void narrow_bfloat16(const float *from, elements::bfloat16 *to, unsigned long long n)
{
    for (unsigned long long i = 0; i < n; ++i)
        elements::narrow(from[i], to[i]);
}

extern const int constants[] = {
    FOLD_PLACES, FOLD_THREADS, FOLD_VECTOR * FOLD_VECTORS, (int)sizeof(fold_pass),
};
}
"""


def text() -> str:
    """Return one program with all kernels."""
    first, marker, _ = folds.source("SUM", "float32").rpartition("\nFOLD_KERNEL(")
    lines = {marker + folds.source(*pair).rpartition(marker)[2] for pair in folds.PAIRS}
    return f'#include "cuda_on_cpu.h"\n{first}{"".join(sorted(lines))}{TESTED}'


def compiled(folder: Path) -> ctypes.CDLL:
    """Return the library, which may lie in the folder already."""
    program = text()
    content = program + (HERE / "cuda_on_cpu.h").read_text(encoding="utf-8") + str(OPTIONS)
    name = f"kernels-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    library = folder / f"{name}.so"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            source, made = folder / f"{name}.cpp", folder / f"{name}.tmp"
            source.write_text(program, encoding="utf-8")
            assert COMPILER is not None
            words = [COMPILER, *OPTIONS, "-o", str(made), str(source)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            os.replace(made, library)
    return ctypes.CDLL(str(library))


def run(
    library: ctypes.CDLL,
    name: str,
    one: folds.Pass,
    geometry: folds.Geometry,
    only: range | None = None,
    backwards: bool = False,
) -> None:
    """Run a kernel, or only some blocks of its grid."""
    kernel = ctypes.cast(getattr(library, name), ctypes.c_void_p)
    blocks = range(geometry.blocks) if only is None else only
    numbers = (geometry.blocks, geometry.threads, blocks.start, blocks.stop)
    misaligned = library.run_kernel(
        kernel, folds.packed(one), *map(ctypes.c_uint, numbers), ctypes.c_int(backwards)
    )
    assert misaligned == 0
