"""Build of the one extension module; everything declarative is in pyproject.toml.

Nothing of MPI is needed here: the core binds to the MPI that mpi4py has loaded, at run time.
COLLECTIVES_STRESS=1 builds a core for tests, whose ranks nap at random where others could come in
between (CONTRIBUTING.md). COLLECTIVES_PURE=1 builds without the core, for all other machines
(collectives/coreless.py).
"""

import os
from glob import glob

import numpy
from setuptools import Extension, setup

macros: list[tuple[str, str | None]] = [
    ("NPY_NO_DEPRECATED_API", "NPY_1_22_API_VERSION"),
    ("NPY_TARGET_VERSION", "NPY_1_22_API_VERSION"),  # which has handlers of memory
]
if os.environ.get("COLLECTIVES_STRESS", "0") not in ("", "0"):
    macros.append(("CC_STRESS", None))

core = Extension(
    "collectives._core",
    sources=["collectives/_core.pyx", *sorted(glob("collectives/_core/*/*.c"))],
    depends=sorted(glob("collectives/_core/*/*.pxi") + glob("collectives/_core/*/*.h")),
    include_dirs=["collectives", numpy.get_include()],
    define_macros=macros,
    # Contracted multiply-adds would make a result depend on the instruction set. Python's own flags
    # ask for names and lines for debuggers, which take a third of the time of the compiler. Names
    # that the files of the core share are hidden from other libraries.
    extra_compile_args=[
        *("-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
        "-fvisibility=hidden",
    ],
    libraries=["dl"],
)

# If Cython is installed, setuptools calls it as it builds the module, and only then.
setup(ext_modules=[core] if os.environ.get("COLLECTIVES_PURE", "0") in ("", "0") else [])
