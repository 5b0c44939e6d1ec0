# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""The core: kernels, plans as C arrays, the executor, and the binding to MPI.

Reading order: types (what the executor works on), binding (MPI's functions, found at run time),
executor (no GIL, no Python, no algorithm), surface (what Python sees). Public classes and
functions are documented in `_core.pyi` and where `collectives` exports them.
"""

include "_core/types.pxi"
include "_core/binding.pxi"
include "_core/executor.pxi"
include "_core/surface.pxi"
