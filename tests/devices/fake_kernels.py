"""The fold kernels for the fake driver: compiled for this CPU; the memory that a launch touches."""

from __future__ import annotations

import ctypes
import functools
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import on_cpu
from fake_handles import Accesses

from collectives.devices import folds

MOST = folds.MOST_PLACES
SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}
ONE_AT_A_TIME = threading.Lock()  # the grid's variables are those of the library


@functools.cache
def library() -> ctypes.CDLL:
    """Return the kernels as a library, which all processes of this machine share."""
    folder = Path(tempfile.gettempdir()) / f"collectives-test-kernels-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    return on_cpu.compiled(folder)


def compile_kernel(source: str, name: str) -> Callable[[int, int, bytes], None]:
    """Return the function that runs a kernel."""
    kernel = ctypes.cast(getattr(library(), name), ctypes.c_void_p)

    def run(blocks: int, threads: int, arguments: bytes) -> None:
        with ONE_AT_A_TIME:
            numbers = map(ctypes.c_uint, (blocks, threads, 0, blocks))
            backwards = ctypes.c_int(blocks % 2)
            assert library().run_kernel(kernel, arguments, *numbers, backwards) == 0

    return run


def itemsize(name: str) -> int:
    """Return the bytes of an element of a kernel."""
    dtype = name.rpartition("_")[2]
    if dtype.startswith("complex"):
        return int(dtype.removeprefix("complex")) // 8
    return SIZES[dtype.lstrip("abcdefghijklmnopqrstuvwxyz")]


def accesses(name: str, arguments: bytes) -> Accesses:
    """Return what a launch reads and writes, and where its pointers stand."""
    words = folds.PARAMETERS.unpack(arguments)
    dst, publication, count = words[MOST], words[MOST + 1], words[2 * MOST + 2]
    sources, targets = words[2 * MOST + 7 :][:2]
    nbytes = count * itemsize(name)
    read = words[:sources]
    written = [each for each in (dst, publication, *words[MOST + 2 :][:targets]) if each]
    pointers = [*range(sources), MOST, MOST + 1, *range(MOST + 2, MOST + 2 + targets)]
    return Accesses(
        [(each, nbytes) for each in read],
        [(each, nbytes) for each in written],
        [8 * each for each in pointers],
    )


OPTIONS: dict[str, Any] = {"compile_kernel": compile_kernel, "accesses": accesses}
