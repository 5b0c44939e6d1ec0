"""Build of the one extension module; everything declarative is in pyproject.toml.

Nothing of MPI is needed here: the core binds to the MPI that mpi4py has loaded, at run time.
COLLECTIVES_STRESS=1 builds a core for tests, whose ranks nap at random where others could come in
between (CONTRIBUTING.md). COLLECTIVES_PURE=1 builds without the core, for all other machines
(collectives/coreless.py).
"""

import os
from concurrent.futures import ThreadPoolExecutor
from glob import glob

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

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


class Build(build_ext):
    """Compile the files in C while Cython writes its own, which takes the compiler much longer."""

    def build_extension(self, ext: Extension) -> None:
        others = [each for each in ext.sources if each.endswith(".c")]
        compile_ = self.compiler.compile
        with ThreadPoolExecutor(1) as pool:
            made = pool.submit(
                compile_,
                others,
                output_dir=self.build_temp,
                macros=ext.define_macros,
                include_dirs=ext.include_dirs,
                debug=self.debug,
                extra_postargs=ext.extra_compile_args,
                depends=ext.depends,
            )

            def compile_the_rest(sources: list[str], **options: object) -> list[str]:
                rest = [each for each in sources if each not in others]
                return [*compile_(rest, **options), *made.result()]

            self.compiler.compile = compile_the_rest
            super().build_extension(ext)


# If Cython is installed, setuptools calls it as it builds the module, and only then.
pure = os.environ.get("COLLECTIVES_PURE", "0") not in ("", "0")
setup(cmdclass={"build_ext": Build}, ext_modules=[] if pure else [core])
