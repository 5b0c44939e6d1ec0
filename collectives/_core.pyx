# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""The core: kernels, plans as C arrays, the executor, and the binding to MPI.

Reading order: types (what the executor works on), binding (MPI's functions, found at run time),
lock (threads, and forked children), the timeline of an operation, executor (no GIL, no Python, no
algorithm), then what Python sees: arrays and reductions, tensors that come by DLPack, the memory of
operations, where they come from, requests, the arguments of a call, shared memory and flags in it,
the engine of a communicator, the tape of timelines, operations and what they wait for, planned
calls, and grouped ones.
"""

include "_core/types.pxi"
include "_core/binding.pxi"
include "_core/lock.pxi"
include "_core/timeline.pxi"
include "_core/executor.pxi"
include "_core/arrays.pxi"
include "_core/dlpack.pxi"
include "_core/memory.pxi"
include "_core/origin.pxi"
include "_core/request.pxi"
include "_core/call.pxi"
include "_core/segment.pxi"
include "_core/flags.pxi"
include "_core/engine.pxi"
include "_core/tape.pxi"
include "_core/operation.pxi"
include "_core/waiting.pxi"
include "_core/planned.pxi"
include "_core/grouped.pxi"
