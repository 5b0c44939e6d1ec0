# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""The core: kernels, plans as C arrays, the executor, and the binding to MPI.

It is one extension module, and its parts are included here in reading order. A folder of `_core/`
is one subject, and the headers in it say in C what Cython cannot.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **, size_t, size_t)

# What the executor works on.
include "_core/kernels/headers.pxi"
include "_core/shared/headers.pxi"
include "_core/records/headers.pxi"
include "_core/executor/plan.pxi"
include "_core/executor/operation.pxi"

# MPI's functions, found at run time.
include "_core/mpi/headers.pxi"
include "_core/mpi/binding.pxi"

# Threads on one communicator, and forked children.
include "_core/threads/lock.pxi"

# The run of a plan: no GIL, no Python, no algorithm.
include "_core/executor/clock.pxi"
include "_core/executor/layout.pxi"
include "_core/executor/pages.pxi"
include "_core/records/timeline.pxi"
include "_core/executor/messages.pxi"
include "_core/executor/steps.pxi"
include "_core/executor/advance.pxi"
include "_core/executor/waiting.pxi"

# Arrays of NumPy and of other libraries.
include "_core/arrays/arrays.pxi"
include "_core/arrays/dlpack.pxi"

# One call: its arguments, the engine that runs it, and what the caller holds of it.
include "_core/executor/memory.pxi"
include "_core/calls/origin.pxi"
include "_core/calls/request.pxi"
include "_core/calls/call.pxi"
include "_core/shared/segment.pxi"
include "_core/shared/flags.pxi"
include "_core/calls/choice.pxi"
include "_core/calls/checking.pxi"
include "_core/calls/engine.pxi"
include "_core/calls/launch.pxi"
include "_core/calls/messages.pxi"
include "_core/calls/running.pxi"
include "_core/records/tape.pxi"
include "_core/calls/configure.pxi"
include "_core/calls/trouble.pxi"
include "_core/calls/planned.pxi"
include "_core/calls/grouped.pxi"
