# Operations: the state of a collective in flight, which the executor advances.

# The tree on 64 MiB takes 14.7 ms on 2 ranks and 38.1 on 4 with a window of 1, 9.3 and 28.7 with
# 4, 9.7 and 33.1 with 8 (MPICH 5.0.2, built with each; collectives bench allreduce -n 2,4 -b 64M
# -e 64M --segment 128K --algorithm tree; EPYC, 2026-11-20).
cdef enum:
    WINDOW = 4  # segments in flight, each with a cursor of its own
    NO_CALL = -1
    MAX_PIECE = 1 << 30  # bytes of one message: MPI counts in int
    UNSEEN = -2  # the expected bytes of a receive that waits for its message to be posted

cdef enum Status:
    RUNNING, DONE, FAILED

cdef enum Cause:
    NO_FAILURE, MPI_FAILED, WRONG_LENGTH, STALLED, FOLD_RAISED, DEVICE_FAILED, MISMATCHED
    UNREADABLE, OTHER_MESSAGE, OTHER_COUNTS


# The places of the blocks; set by configure().
cdef struct Layout:
    char *input
    char *output
    int64_t part  # elements of a part, if all parts are equal
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
    cc_rows_fn rows  # NULL, or the kernel that folds all contributions at once
    int parts  # floats of an element, for `rows`
    void *user  # a UserFold, which the owner of the buffers keeps alive
    cc_scale_fn scale  # NULL: the result is not scaled
    long double factor
    int scaled  # whether steps scale the result
    int span  # blocks of the memory for folds in Python


# Shared memory; set by configure() and, for each run, by enter_segment().
cdef struct Sharing:
    cc_segment *segment  # NULL: nothing goes through shared memory
    uint64_t page  # of its first segment
    int64_t room  # bytes that one of its pages has for payloads
    cc_run run  # where they are
    int64_t call  # the number of its recorded call, or NO_CALL
    uint64_t[3] what  # its fingerprint
    uint64_t[3] said  # the fingerprint in its publications, mixed with earlier calls
    int stores  # bits: the blocks that are written past the cache, and lending of private arrays
    int usual  # the same, if other ranks are near
    int by_distance  # whether payloads go past the cache if other ranks are far
    uint64_t[2] references  # to the input and the output in shared memory, or 0
    uint64_t[2] heap  # the same, if they are in the heap and others may not have mapped it yet
    int way  # the bit of Step.lends that counts; 0: nothing may be lent
    int is_readable  # whether the kernel is known to read the caller's arrays for others
    int lent  # whether others read the caller's arrays
    uint64_t mark  # of publications: as of the call
    int told  # whether the root publishes the counts, and this rank reads them
    int untold  # whether the root had none


# The position of one segment in its plan.
cdef struct Cursor:
    int64_t segment  # the segment that it runs, or -1 at the end
    int round
    int step
    int posted  # whether the round's messages are posted
    int started  # whether the segment has its page
    int pending  # messages that have not completed
    int pending_sends
    int awaited  # the rank of this host that it waits for, or -1
    char *memory  # its temporary slots, then its workspace


# The position of the operation.
cdef struct State:
    Status status
    int live  # cursors that have a segment
    int pending  # messages posted and not completed
    int unseen  # receives that wait for their messages to be posted
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
    uint64_t heard  # the word of a message of another call


# The recording of the operation: see records/timeline.pxi.
cdef struct Recording:
    cc_tape *tape  # or NULL
    cc_record *whole  # that of the whole call
    cc_record *wait  # of the current wait, if it is recorded
    cc_record *next  # of the chunk in use
    int left  # records in that chunk
    unsigned int tape_number  # of the tape that has the chunk
    uint64_t clock  # ticks at which the last record ended
    int idle  # whether the last advance() found nothing to do
    int watched  # threads that wait for it; if there is none, the program does other work
    int64_t stepped  # bytes of the last step
    int label  # the number of its label, or -1: neither recorded nor traced
    int blocks  # whether the call returns only when it is complete
    int64_t nbytes  # for records and traces
    double began  # seconds, if traced


# Memory for blocks and tables, kept from call to call.
cdef struct Memory:
    char *arena
    size_t arena_bytes  # 0 if a user's arrays use it, too: the next call gets another
    void *owner  # then an Arena, otherwise NULL
    const char **sources  # operands of the current step
    signed char *folds
    char **targets  # further places of its result
    const char **parts  # the pieces of operands in one pass
    int width  # the number of operands, or targets, that these have room for
    char *scratch  # for parts of arrays in other processes
    int64_t scratch_bytes
    int64_t *tables  # the memory of Layout.starts
    size_t tables_reserved


# The slots of messages in flight, kept from call to call; a cursor has one for each message of a
# round.
cdef struct Slots:
    int in_use  # by this operation
    int reserved
    void *requests
    char *arrived
    int *expected  # bytes of a receive, or -1, or UNSEEN
    int64_t *rest  # bytes that follow the piece in flight
    uint64_t *since  # ticks, when each message was posted
    int *done
    char *statuses


# One collective in flight.
cdef struct Operation:
    const Packed *plan
    void *device  # NULL, or the object that enqueues its steps on a device: see device.pxi
    const cc_transport *transport
    uint64_t comm  # its handle for the transport
    int64_t nbytes  # of the whole array
    uint64_t what  # the word of its messages, which those of its peers have, too
    int announced  # as of the call
    int window
    int tag
    unsigned int number  # operations that the communicator had started before
    uint64_t order  # in the flight recorder
    int looks_first  # whether receives are posted only when their messages have come
    int sends_nothing  # whether messages without elements travel, too
    int looks  # whether it only waits for publications, and leaves its page to the one after
    Layout layout
    Folding fold
    Sharing shared
    State state
    Failure failure
    Recording record
    Memory memory
    Slots slots
    Operation *next  # in the list of those that every wait advances


# Words that threads without the lock read: a reader of a new value sees all earlier writes, too.
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
