# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False, auto_pickle=False
"""The core: kernels, plans as C arrays, the executor, and the binding to MPI.

It is one extension module, and its parts are included here in reading order. Each folder of
`_core/` has one subject: the `executor`, `mpi`, `mail` without it, `shared` memory, `threads`,
`kernels`, `arrays`, `calls`, those in the `background`, and `records` of operations. The headers
have the parts in C, and `headers.pxi` declares them.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EPERM, ESRCH
from libc.limits cimport INT_MAX
from libc.math cimport INFINITY
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, qsort
from libc.string cimport memcmp, memcpy, memset

from collectives.errors import (
    ArgumentError, BufferError, CollectivesError, CommunicatorError, MismatchError, MPIError,
    PeerAbortedError, PeerLostError, SharedMemoryWarning, StallError, StallWarning,
    UnsupportedTypeError,
)
from collectives.text import logs
from collectives.text.words import error_text, shown, spelled_here

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **, size_t, size_t)

# The executor and its data.
include "_core/kernels/headers.pxi"
include "_core/shared/headers.pxi"
include "_core/records/headers.pxi"
include "_core/executor/plan.pxi"
include "_core/executor/operation.pxi"

# MPI's functions, found at run time.
include "_core/mpi/headers.pxi"
include "_core/mpi/binding.pxi"
include "_core/mail/headers.pxi"

# Threads on one communicator, forked children, and other hosts.
include "_core/threads/callers.pxi"
include "_core/threads/queue.pxi"
include "_core/threads/lock.pxi"

# The run of a plan: no GIL, no Python, no algorithm.
include "_core/executor/clock.pxi"
include "_core/executor/layout.pxi"
include "_core/executor/pages.pxi"
include "_core/records/timeline.pxi"
include "_core/executor/messages.pxi"
include "_core/executor/device.pxi"
include "_core/executor/steps.pxi"
include "_core/executor/advance.pxi"
include "_core/executor/waiting.pxi"
include "_core/threads/progress.pxi"
include "_core/executor/memory.pxi"

# Arrays of NumPy and of other libraries, and what folds them.
include "_core/arrays/dtypes.pxi"
include "_core/arrays/views.pxi"
include "_core/arrays/dlpack.pxi"
include "_core/arrays/kinds.pxi"
include "_core/arrays/spans.pxi"
include "_core/arrays/tensors.pxi"
include "_core/arrays/results.pxi"
include "_core/arrays/pending.pxi"
include "_core/kernels/kernels.pxi"
include "_core/kernels/codecs.pxi"
include "_core/kernels/exact.pxi"
include "_core/arrays/reductions.pxi"

# One call: its arguments, checked; its plan; its run.
include "_core/calls/call.pxi"
include "_core/calls/plain.pxi"
include "_core/calls/checking.pxi"
include "_core/calls/choice.pxi"
include "_core/calls/course.pxi"
include "_core/calls/description.pxi"
include "_core/calls/configure.pxi"
include "_core/calls/launch.pxi"
include "_core/calls/messages.pxi"
include "_core/calls/neighbors.pxi"
include "_core/calls/running.pxi"
include "_core/calls/errors.pxi"

# The memory that the ranks of a host share, and what they call on record in it.
include "_core/shared/fingerprint.pxi"
include "_core/shared/segment.pxi"
include "_core/shared/heap.pxi"
include "_core/shared/round_trip.pxi"
include "_core/shared/words.pxi"
include "_core/mail/mail.pxi"

include "_core/records/flight.pxi"

# The objects that Python holds.
include "_core/calls/engine.pxi"
include "_core/calls/vectors.pxi"
include "_core/calls/origin.pxi"
include "_core/calls/request.pxi"
include "_core/calls/planned.pxi"
include "_core/calls/grouped.pxi"
include "_core/calls/exact.pxi"
include "_core/calls/compressed.pxi"
include "_core/records/tape.pxi"

# The background.
include "_core/background/tasks.pxi"
include "_core/background/recording.pxi"
