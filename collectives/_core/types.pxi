# Types: plans and operations as C structs, and the small classes that own their memory.

from array import array

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **, size_t, size_t)

cdef extern from "_core/kernels.h" nogil:
    ctypedef void (*cc_fold_fn)(void *, const void *, const void *, size_t) noexcept nogil
    ctypedef void (*cc_scale_fn)(void *, const void *, double, size_t) noexcept nogil
    enum:
        CC_BOOL, CC_INT8, CC_INT16, CC_INT32, CC_INT64, CC_UINT8, CC_UINT16, CC_UINT32, CC_UINT64
        CC_FLOAT16, CC_BFLOAT16, CC_FLOAT32, CC_FLOAT64, CC_COMPLEX64, CC_COMPLEX128, CC_NDTYPES
    enum:
        CC_BOR, CC_NOPS
    cc_fold_fn cc_fold_kernel(int op, int dtype)
    cc_scale_fn cc_scale_kernel(int dtype)
    int cc_kernels_init(const char *isa)
    const char *cc_kernels_isa()

# Memory spaces of a plan; the numbers are schedule.IN, OUT, WORK, TMP.
cdef enum:
    IN = 0
    OUT = 1
    WORK = 2
    TMP = 3

# The tree on 64 MiB takes 14.7 ms on 2 ranks and 38.1 on 4 with a window of 1, 9.3 and 28.7 with
# 4, 9.7 and 33.1 with 8 (MPICH 5.0.2, built with each; collectives bench allreduce -n 2,4 -b 64M
# -e 64M --segment 128K --algorithm tree; EPYC, 2026-11-20).
cdef enum:
    WINDOW = 4  # segments in flight, each with a cursor of its own
    OPERATIONS = 4096  # tags before they are used again: 4 * 4096 fit in MPI's smallest TAG_UB
    MAX_PIECE = 1 << 30  # bytes of one message: MPI counts in int

# One row each of the arrays that schedule.pack writes.
cdef struct Round:
    int32_t message, messages_end, step, steps_end

cdef struct Message:
    int32_t send, peer, space, first, count, home_space, home

cdef struct Step:
    int32_t dst_space, dst, left_space, left, right_space, right, count, home_space, home
    int32_t need, other_need, after_sends, is_copy

cdef struct Packed:
    Round *rounds
    Message *messages
    Step *steps
    int nrounds
    int slots  # most messages in one round


@cython.final
cdef class Plan:
    """A plan in C: one packed form for whole buffers and one for segmented ones."""

    cdef Packed whole
    cdef Packed split
    cdef int cut, tmp
    # The number of the block for each place in a space: IN, OUT, WORK.
    cdef int32_t *blocks[3]
    cdef int places[3]
    cdef bint has_parcels
    cdef readonly object source

    def __cinit__(self, source, whole, split):
        cdef int space
        self.source = source
        self.cut = source.cut
        self.tmp = source.tmp
        self.has_parcels = len(source.parcels) > 0
        for space, blocks in enumerate((source.held(), source.wanted(), source.workspace())):
            self.places[space] = len(blocks)
            self.blocks[space] = <int32_t *>copied(array("i", blocks))
        pack(&self.whole, whole)
        pack(&self.split, split)

    def __dealloc__(self):
        cdef int space
        for space in range(3):
            PyMem_Free(self.blocks[space])
        unpack(&self.whole)
        unpack(&self.split)


cdef void *copied(object rows) except NULL:
    """Return a copy of an array of C ints in memory of its own."""
    cdef const int[::1] view = rows
    cdef size_t nbytes = view.shape[0] * sizeof(int)
    cdef void *memory = PyMem_Malloc(nbytes if nbytes else 1)
    if memory == NULL:
        raise MemoryError
    if nbytes:
        memcpy(memory, &view[0], nbytes)
    return memory


cdef int pack(Packed *packed, object arrays) except -1:
    cdef int i
    rounds, messages, steps = arrays
    packed.rounds = <Round *>copied(rounds)
    packed.messages = <Message *>copied(messages)
    packed.steps = <Step *>copied(steps)
    packed.nrounds = len(rounds) * sizeof(int) // sizeof(Round)
    packed.slots = 0
    for i in range(packed.nrounds):
        packed.slots = max(packed.slots, packed.rounds[i].messages_end - packed.rounds[i].message)
    return 0


cdef void unpack(Packed *packed) noexcept:
    PyMem_Free(packed.rounds)
    PyMem_Free(packed.messages)
    PyMem_Free(packed.steps)


# Where one segment stands in its plan.
cdef struct Cursor:
    int64_t segment  # the segment that it runs, -1 when it has none left
    int round
    int step
    int posted  # whether the round's messages are
    int pending  # of them, those that have not completed
    int pending_sends
    char *memory  # its temporary slots, then its workspace

cdef enum Status:
    RUNNING, DONE, FAILED

cdef enum Failure:
    NO_FAILURE, MPI_FAILED, WRONG_LENGTH, STALLED, FOLD_RAISED

# One collective in flight.
cdef struct Operation:
    # what: set by prepare()
    const Packed *plan
    uint64_t comm
    char *input
    char *output
    int64_t part  # elements of a part, where all parts are equal
    const int64_t *starts[3]  # for IN, OUT, WORK: the element where each place starts, or NULL
    int out_places
    int64_t segments
    int itemsize
    int cut
    int whole
    int sends_nothing  # whether messages without elements travel, too
    int window
    int tag
    cc_fold_fn fold  # NULL: `user` folds
    void *user  # a UserFold, kept alive by whoever keeps the buffers
    cc_scale_fn scale  # NULL: the result is not scaled
    double factor
    int64_t stride  # bytes of a temporary slot
    int64_t work_offset  # of the workspace in a cursor's memory
    # where it stands
    Status status
    int live  # cursors that have a segment
    int pending  # messages posted and not completed
    int moved  # whether the last advance() did anything
    Cursor cursors[WINDOW]
    # why it failed
    Failure failure
    int error
    int peer
    int round
    int64_t got
    int64_t wanted
    # memory, kept from call to call
    char *arena
    size_t arena_bytes
    void *requests
    char *arrived
    int *expected
    int64_t *rest  # bytes that follow the piece which is under way
    int *done
    char *statuses
    int slots  # in use by this operation
    int slots_reserved
    int64_t *tables  # what `starts` points to
    size_t tables_reserved
    Operation *next  # in the list of those that every wait advances
