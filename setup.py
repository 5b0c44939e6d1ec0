"""Build of the one extension module; everything declarative is in pyproject.toml.

Nothing of MPI is needed here: the core binds to the MPI that mpi4py has loaded, at run time.
COLLECTIVES_STRESS=1 builds a core for tests, whose ranks nap at random where others could come in
between (CONTRIBUTING.md).
"""

import os

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

macros: list[tuple[str, str | None]] = [("NPY_NO_DEPRECATED_API", "NPY_1_22_API_VERSION")]
if os.environ.get("COLLECTIVES_STRESS", "0") not in ("", "0"):
    macros.append(("CC_STRESS", None))

core = Extension(
    "collectives._core",
    sources=["collectives/_core.pyx"],
    depends=[
        "collectives/_core/types.pxi",
        "collectives/_core/binding.pxi",
        "collectives/_core/lock.pxi",
        "collectives/_core/timeline.pxi",
        "collectives/_core/executor.pxi",
        "collectives/_core/arrays.pxi",
        "collectives/_core/dlpack.pxi",
        "collectives/_core/memory.pxi",
        "collectives/_core/origin.pxi",
        "collectives/_core/request.pxi",
        "collectives/_core/call.pxi",
        "collectives/_core/segment.pxi",
        "collectives/_core/flags.pxi",
        "collectives/_core/engine.pxi",
        "collectives/_core/tape.pxi",
        "collectives/_core/operation.pxi",
        "collectives/_core/waiting.pxi",
        "collectives/_core/planned.pxi",
        "collectives/_core/grouped.pxi",
        "collectives/_core/kernels.h",
        "collectives/_core/kernels_half.h",
        "collectives/_core/kernels_lanes.h",
        "collectives/_core/kernels_loops.h",
        "collectives/_core/combine.h",
        "collectives/_core/segment.h",
        "collectives/_core/timeline.h",
        "collectives/_core/mpi_binding.h",
        "collectives/_core/mpi_calls.h",
    ],
    include_dirs=["collectives", numpy.get_include()],
    define_macros=macros,
    # Contracted multiply-adds would make a result depend on the instruction set.
    extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"],
    libraries=["dl"],
)

setup(ext_modules=cythonize([core], language_level=3))
