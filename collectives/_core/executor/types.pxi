# Types: plans and operations as C structs, and the small classes that own their memory.

from array import array

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **, size_t, size_t)

cdef extern from "_core/kernels/kernels.h" nogil:
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

cdef extern from "_core/kernels/combine.h" nogil:
    ctypedef struct cc_pass:
        const char **sources
        const signed char *is_left
        int n
        char *dst
        char *publication
        int stream_dst
        int stream_publication
        cc_scale_fn scale
        double factor
    void cc_combine(const cc_pass *, cc_fold_fn, size_t, size_t)
    void cc_stream(void *, const void *, size_t)

cdef extern from "_core/shared/segment.h" nogil:
    enum:
        CC_INLINE, CC_LANES, CC_CALLS, CC_TEXT, CC_TO, CC_WINDOWS, CC_PAYLOADS, CC_RESULTS
    ctypedef struct cc_window:
        char *base
        char *mine
        size_t nbytes
    ctypedef struct cc_publication:
        uint64_t[3] what
        uint64_t nbytes
        char *payload
    ctypedef struct cc_rank_area:
        uint64_t progress
        uint64_t started
        uint64_t ended
        int64_t core
        int64_t pid
        int64_t gone
        uint64_t ping
        uint64_t pong
    ctypedef struct cc_shared:
        unsigned char *token
        uint64_t nbytes
        uint64_t why
        uint64_t given_up
        uint64_t call
        char *text
    ctypedef struct cc_segment:
        cc_shared *shared
        cc_rank_area *ranks
        size_t nbytes
        int p
        int me
        int nlines
        int64_t lane_bytes
        uint64_t next
        uint64_t blocked
        uint64_t calls
        uint64_t history
        uint64_t floor
        cc_window *windows
        int nwindows
    uint64_t cc_read(const uint64_t *)
    void cc_write(uint64_t *, uint64_t)
    void cc_pause()
    void cc_fence_streams()
    size_t cc_segment_bytes(int, int, int64_t)
    int cc_segment_open(cc_segment *, void *, int, int, int, int64_t)
    void cc_segment_close(cc_segment *)
    int cc_window_of(const cc_segment *, const char *, size_t)
    cc_publication *cc_line_of(const cc_segment *, int, uint64_t, int)
    char *cc_buffer_of(const cc_segment *, int)
    int cc_all_finished(cc_segment *, uint64_t)
    void cc_finish(cc_segment *, uint64_t)
    const cc_publication *cc_published(const cc_segment *, int, uint64_t, int)
    const char *cc_payload(const cc_segment *, const cc_publication *)
    void cc_publish(
        const cc_segment *, cc_publication *, uint64_t, const uint64_t *, int, const char *,
        uint64_t,
    )
    int cc_same(const uint64_t *, const uint64_t *)
    uint64_t cc_mixed(uint64_t, uint64_t)
    uint64_t cc_bits(double)
    void cc_begin_call(cc_segment *, const uint64_t *, uint64_t *)
    void cc_end_call(cc_segment *, uint64_t)
    void cc_leave_call(cc_segment *, uint64_t)
    int cc_call_of(const cc_segment *, int, uint64_t, uint64_t *)
    uint64_t cc_flag(int, uint64_t)
    int cc_flag_comes(const uint64_t *, uint64_t, int, int, int)
    int cc_way(cc_segment *, int, int)
    void cc_learn(cc_segment *, int, int, double)
    void cc_give_up(cc_segment *, uint64_t, uint64_t, const char *)

cdef extern from "_core/records/timeline.h" nogil:
    enum:
        CC_T_CALL, CC_T_FAILED, CC_T_QUEUE, CC_T_WAIT, CC_T_AWAIT, CC_T_COPY, CC_T_FOLD
        CC_T_PUBLISH, CC_T_TAKE, CC_T_POST, CC_T_SENT, CC_T_RECEIVED
        CC_T_KIND
    ctypedef struct cc_record:
        uint64_t start
        uint64_t size
        uint32_t call
        uint64_t span
    ctypedef struct cc_tape_head:
        uint64_t full
    ctypedef struct cc_tape:
        cc_tape_head *head
        uint32_t calls
    uint64_t cc_ticks()
    cc_tape *cc_tape_open(int, uint64_t, int)
    void cc_tape_close(cc_tape *, int)
    void cc_tape_clock(cc_tape *)
    cc_record *cc_next_record(cc_tape *, cc_record **, int *)
    void cc_fill(
        cc_record *, int, uint64_t, uint64_t, uint32_t, uint64_t, uint64_t, uint32_t
    )

# Memory spaces of a program; the numbers are schedule.IN, OUT, WORK, TMP, and program.SLOT.
cdef enum:
    NOWHERE = -1
    IN = 0
    OUT = 1
    WORK = 2
    TMP = 3
    SLOT = 4

# The tree on 64 MiB takes 14.7 ms on 2 ranks and 38.1 on 4 with a window of 1, 9.3 and 28.7 with
# 4, 9.7 and 33.1 with 8 (MPICH 5.0.2, built with each; collectives bench allreduce -n 2,4 -b 64M
# -e 64M --segment 128K --algorithm tree; EPYC, 2026-11-20).
cdef enum:
    WINDOW = 4  # segments in flight, each with a cursor of its own
    OPERATIONS = 4096  # tags before they are used again: 4 * 4096 fit in MPI's smallest TAG_UB
    NO_CALL = -1
    LAP = 512  # starts between two looks for operations that are about to meet their tag again
    MAX_PIECE = 1 << 30  # bytes of one message: MPI counts in int

# One row each of the arrays that program.pack writes.
cdef struct Round:
    int32_t message, messages_end, step, steps_end

cdef struct Message:
    int32_t send, peer, space, first, count, home_space, home

cdef struct Step:
    int32_t dst_space, dst, publication, count, home_space, home, after_sends, is_final
    int32_t lends  # bits: 1 if the caller's arrays are apart, 2 if they are in one place
    int32_t operand, operands_end

cdef struct Operand:
    int32_t space, first, peer, need, is_left

cdef struct Packed:
    Round *rounds
    Message *messages
    Step *steps
    Operand *operands
    int nrounds
    int slots  # most messages in one round
    int scaled  # whether final steps write the whole output


@cython.final
cdef class Plan:
    """A plan in C: one program for whole buffers and one for segmented ones."""

    cdef Packed whole
    cdef Packed split
    cdef int cut, tmp
    cdef int lines  # most publications of a rank; 0: nothing goes through shared memory
    cdef int64_t room  # bytes that a publication may have on every host; 0: any number
    cdef int width  # most operands of a step
    cdef int span  # most blocks that one step folds
    # The number of the block for each place in a space: IN, OUT, WORK.
    cdef int32_t *blocks[3]
    cdef int places[3]
    cdef bint has_parcels
    cdef int label  # of messages, which have no lasting choice: see tape.pxi
    cdef readonly object source

    def __cinit__(self, source, whole, split, int64_t room=0):
        cdef int space
        self.source = source
        self.label = -1
        self.cut = source.cut
        self.tmp = source.tmp
        self.lines = split.lines
        self.room = room
        self.width = max(whole.width, split.width)
        self.span = max(whole.span, split.span)
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


cdef int pack(Packed *packed, object program) except -1:
    cdef int i
    packed.rounds = <Round *>copied(program.rounds)
    packed.messages = <Message *>copied(program.messages)
    packed.steps = <Step *>copied(program.steps)
    packed.operands = <Operand *>copied(program.operands)
    packed.nrounds = len(program.rounds) * sizeof(int) // sizeof(Round)
    packed.scaled = program.scaled
    packed.slots = 0
    for i in range(packed.nrounds):
        packed.slots = max(packed.slots, packed.rounds[i].messages_end - packed.rounds[i].message)
    return 0


cdef void unpack(Packed *packed) noexcept:
    PyMem_Free(packed.rounds)
    PyMem_Free(packed.messages)
    PyMem_Free(packed.steps)
    PyMem_Free(packed.operands)


# Where one segment stands in its plan.
cdef struct Cursor:
    int64_t segment  # the segment that it runs, -1 when it has none left
    int round
    int step
    int posted  # whether the round's messages are
    int started  # whether the segment has its page
    int pending  # of them, those that have not completed
    int pending_sends
    int awaited  # the rank of this host that it waits for, or -1
    char *memory  # its temporary slots, then its workspace

cdef enum Status:
    RUNNING, DONE, FAILED

cdef enum Failure:
    NO_FAILURE, MPI_FAILED, WRONG_LENGTH, STALLED, FOLD_RAISED, MISMATCHED

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
    unsigned int number  # how many the communicator had started before
    cc_fold_fn fold  # NULL: `user` folds
    void *user  # a UserFold, kept alive by whoever keeps the buffers
    cc_scale_fn scale  # NULL: the result is not scaled
    double factor
    int64_t stride  # bytes of a temporary slot, or of a publication
    cc_segment *segment  # NULL: nothing goes through shared memory
    uint64_t page  # of its first segment
    uint64_t needed  # pages that all ranks must have finished before it starts
    int64_t call  # its number among the calls on record, or NO_CALL
    int64_t nbytes  # of the whole array
    int span  # blocks of the memory in which a fold of Python works
    int has_warned
    uint64_t[3] what  # its fingerprint
    uint64_t[3] said  # the same, and what was called before: what a publication says
    int stores  # what is written past the cache: CC_PAYLOADS, CC_RESULTS, both or nothing
    int usual  # the same, before anything is learned
    int habit  # the kind of operation, if it is to be learned how it stores best; else -1
    int[2] windows  # in which the input and the output lie, or 0
    int way  # which bit of Step.lends counts
    int lent  # whether others read the caller's arrays
    int scaled  # whether steps scale the result
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
    # how it is recorded: see timeline.pxi
    cc_tape *tape  # or NULL
    cc_record *record  # of the whole call
    cc_record *open  # of the wait that goes on, if it is on record
    cc_record *next_record  # of the chunk in use
    int records_left
    unsigned int tape_number  # whose chunk that is
    uint64_t clock  # ticks at which the last record ended
    int idle  # whether the last advance() found nothing to do
    int watched  # how many wait for it; if none does, the program is elsewhere
    int64_t stepped  # bytes of the last step
    int label  # what it is called, or -1: neither recorded nor traced
    int blocks
    int64_t described  # bytes, as records and traces have them
    double began  # if traced
    # memory, kept from call to call
    char *arena
    size_t arena_bytes
    void *requests
    char *arrived
    int *expected
    int64_t *rest  # bytes that follow the piece which is under way
    uint64_t *since  # ticks, when each message was posted
    int *done
    char *statuses
    int slots  # in use by this operation
    int slots_reserved
    const char **sources  # of the step that is run
    signed char *sides
    int width_reserved
    int64_t *tables  # what `starts` points to
    size_t tables_reserved
    Operation *next  # in the list of those that every wait advances
