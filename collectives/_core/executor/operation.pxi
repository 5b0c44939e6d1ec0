# Operations: one collective in flight, as the executor works on it.

# The tree on 64 MiB takes 14.7 ms on 2 ranks and 38.1 on 4 with a window of 1, 9.3 and 28.7 with
# 4, 9.7 and 33.1 with 8 (MPICH 5.0.2, built with each; collectives bench allreduce -n 2,4 -b 64M
# -e 64M --segment 128K --algorithm tree; EPYC, 2026-11-20).
cdef enum:
    WINDOW = 4  # segments in flight, each with a cursor of its own
    NO_CALL = -1
    MAX_PIECE = 1 << 30  # bytes of one message: MPI counts in int

cdef enum Status:
    RUNNING, DONE, FAILED

cdef enum Cause:
    NO_FAILURE, MPI_FAILED, WRONG_LENGTH, STALLED, FOLD_RAISED, DEVICE_FAILED, MISMATCHED
    UNREADABLE


# The places of the blocks; set by configure().
cdef struct Layout:
    char *input
    char *output
    int64_t part  # elements of a part, where all parts are equal
    const int64_t *starts[3]  # for IN, OUT, WORK: the element where each place starts, or NULL
    int out_places
    int64_t segments
    int itemsize
    int cut
    int whole
    int64_t stride  # bytes of a temporary slot, or of a publication
    int64_t work_offset  # of the workspace in a cursor's memory


# Folding and scaling; set by configure().
cdef struct Folding:
    cc_fold_fn kernel  # NULL: `user` folds
    cc_rows_fn rows  # NULL, or what folds all contributions at once
    int parts  # of an element, for `rows`
    void *user  # a UserFold, kept alive by whoever keeps the buffers
    cc_scale_fn scale  # NULL: the result is not scaled
    long double factor
    int scaled  # whether steps scale the result
    int span  # blocks of the memory in which a fold of Python works


# Shared memory; set by configure() and, for each run, by enter_segment().
cdef struct Sharing:
    cc_segment *segment  # NULL: nothing goes through shared memory
    uint64_t page  # of its first segment
    int64_t room  # bytes that one of its pages has for payloads
    cc_run run  # where they are
    int64_t call  # its number among the calls on record, or NO_CALL
    uint64_t[3] what  # its fingerprint
    uint64_t[3] said  # the same, and what was called before: what a publication says
    int stores  # bits: what is written past the cache, and whether private arrays are lent
    int usual  # the same, where other ranks are near
    int by_distance  # whether payloads go past the cache if they are far
    uint64_t[2] references  # where others see the input and the output in shared memory, or 0
    uint64_t[2] heap  # the same, if they are in the heap and others may not have mapped it yet
    int way  # which bit of Step.lends counts; 0: nothing may be lent
    int is_readable  # whether it is known that the kernel can read the caller's arrays for others
    int lent  # whether others read the caller's arrays


# The position of one segment in its plan.
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


# The position of the operation.
cdef struct State:
    Status status
    int live  # cursors that have a segment
    int pending  # messages posted and not completed
    int moved  # whether the last advance() did anything
    int has_warned
    Cursor cursors[WINDOW]


# The reason of a failure.
cdef struct Failure:
    Cause cause
    int error
    int peer
    int round
    int64_t got
    int64_t wanted


# The recording of the operation: see records/timeline.pxi.
cdef struct Recording:
    cc_tape *tape  # or NULL
    cc_record *whole  # that of the whole call
    cc_record *wait  # of the wait that goes on, if it is on record
    cc_record *next  # of the chunk in use
    int left  # records in that chunk
    unsigned int tape_number  # whose chunk that is
    uint64_t clock  # ticks at which the last record ended
    int idle  # whether the last advance() found nothing to do
    int watched  # how many wait for it; if none does, the program is elsewhere
    int64_t stepped  # bytes of the last step
    int label  # what it is called, or -1: neither recorded nor traced
    int blocks  # whether the call returns only when it is complete
    int64_t nbytes  # as records and traces have them
    double began  # if traced


# Memory for blocks and tables, kept from call to call.
cdef struct Memory:
    char *arena
    size_t arena_bytes  # 0 where somebody else uses it, too: the next call gets another
    void *owner  # an Arena then, else NULL
    const char **sources  # of the step that is run
    signed char *folds
    char **targets  # where it writes its result, too
    const char **parts  # of the operands, those that one pass goes through
    int width  # operands, or targets, for which these have room
    char *scratch  # for parts of arrays in other processes
    int64_t scratch_bytes
    int64_t *tables  # what Layout.starts points to
    size_t tables_reserved


# The slots of messages in flight, kept from call to call; a cursor has one for each message of a
# round.
cdef struct Slots:
    int in_use  # by this operation
    int reserved
    void *requests
    char *arrived
    int *expected  # bytes of what is received, or -1
    int64_t *rest  # bytes that follow the piece which is under way; the others are behind it
    uint64_t *since  # ticks, when each message was posted
    int *done
    char *statuses


# One collective in flight.
cdef struct Operation:
    const Packed *plan
    void *device  # NULL, or the object that enqueues its steps on a device: see device.pxi
    uint64_t comm
    int64_t nbytes  # of the whole array
    int announced  # as of the call
    int form  # of a barrier, the number of its choice; else 0
    int window
    int tag
    unsigned int number  # how many the communicator had started before
    int sends_nothing  # whether messages without elements travel, too
    Layout layout
    Folding fold
    Sharing shared
    State state
    Failure failure
    Recording record
    Memory memory
    Slots slots
    Operation *next  # in the list of those that every wait advances


# Words that a thread without the lock reads: a reader of a new value sees what was written before.
cdef extern from * nogil:
    """
    #define cc_load(word) __atomic_load_n(word, __ATOMIC_ACQUIRE)
    #define cc_store(word, value) __atomic_store_n(word, value, __ATOMIC_RELEASE)
    #define cc_status(op) cc_load(&(op)->state.status)
    #define cc_end(op, status_) cc_store(&(op)->state.status, status_)
    """
    unsigned long cc_load(const unsigned long *)
    void cc_store(unsigned long *, unsigned long)
    Status cc_status(const Operation *)
    void cc_end(Operation *, Status)
