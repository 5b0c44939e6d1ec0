# Calls: the arguments of one call as a C struct.

from collectives.algorithms import spec

# The numbers of the collectives in Engine.call; the order is that of their contracts.
cpdef enum:
    ALLREDUCE, REDUCE, BROADCAST, BARRIER, ALLGATHER, REDUCE_SCATTER, ALLTOALL, GATHER, SCATTER
    SCAN, EXSCAN

cdef enum:
    LENGTHS = 18  # classes by bit length; calls of 64 KiB and longer ones are one
    CLASSES = 14 * LENGTHS  # those of collectives, messages, and collectives between neighbours
    KINDS = 11
    EXCHANGE = 11  # send, recv and both: no collective
    NEIGHBORS = 12  # the first of those between neighbours
    NO_OPERATION = 0xFF

COLLECTIVES = tuple(spec.COLLECTIVES)
BETWEEN_NEIGHBORS = "neighbor_allgather", "neighbor_alltoall"
cdef tuple KIND_NAMES = (*COLLECTIVES, "send or recv", *BETWEEN_NEIGHBORS)

# The other calls of ranks, which they announce by an allgather of records.
MAKINGS = (
    "dup", "split", "empty", "timeline", "device_transports", "compressed_allreduce", "cart",
    "graph", "same",
)

cdef double COMMON = -1  # the deadline of the communicator, for a call without its own


# The role of one rank in a kind of call: its arrays, the numbers of their parts, and of the first.
cdef struct Role:
    int inputs, first_input, outputs, first_output
    bint has_x, has_out  # an array of a rank without neighbours has no parts


# If `out` shares memory with `x`: the result lies in its place in `x`, `x` is copied, or neither.
cdef enum Overlap:
    IN_PLACE, COPIED, APART

# The shape of a new result: that of `x`, rows of it, or arrays of its shape.
cdef enum Form:
    SAME, ROWS, STACKED


# A row of the table of roles: the arguments of a kind of call on this rank.
cdef struct Contract:
    Role roles[2]  # if it is not the root, and if it is
    int array_parts  # of the array of which all ranks know the length; 0 if there is none
    bint rooted
    bint reduces
    Form form
    Overlap overlap
    uint64_t checksum  # of a neighbourhood, which ranks compare
    bint has_gaps  # whether this rank has a place for a block that no rank sends
    bint has_repeats  # whether a rank is a neighbour of this one several times
    void *near  # NULL, or the Neighbors whose row it is


# The arguments of one call, checked. Two calls of one plan whose fields up to `x`, dtypes and
# counts are equal have the same operation, but for the addresses of their arrays. These fields are
# zero before a call is checked.
cdef struct Arguments:
    # Of its kind. In the last call of a class it is only compared: a neighbourhood may be gone, and
    # the checksum tells another one at its address.
    const Contract *contract
    int kind
    int root
    int64_t part  # elements of a part; unused in vector forms
    int64_t nbytes  # of the whole array, equal on all ranks: it determines algorithm and segments
    cc_fold_fn fold
    cc_rows_fn rows  # NULL, or the kernel that folds all contributions at once, by floats (`parts`)
    int parts
    int operation  # a number of the reduction, which ranks compare
    void *user
    cc_scale_fn scale
    double prescale
    double postscale
    uint64_t checksum  # of a user's function, and of the counts of a vector form, if ranks know all
    int64_t whole  # for a piece of a call on a device, the elements of that call; otherwise -1
    void *device  # NULL, or the object that enqueues the steps of a call on a device
    int announced  # 0, 1 + the kind of a vector form with told counts, or KINDS + 1 + a making
    bint own_only  # whether a rank knows only the counts of its own parts ...
    bint knows_all  # ... and this one knows all
    uint64_t mark  # then a checksum of these, of 16 bits and not 0
    bint looks  # whether it only waits for the blocks of others, and another call goes on with them
    const int64_t *counts  # in vector forms, the elements of each part, or of each sent part
    const int64_t *receive_counts  # the elements of each received part
    const int64_t *displs  # NULL, or the first elements of the parts of `x`, which lie inside it
    const int64_t *receive_displs  # the same for `out`
    bint ordered  # whether algorithms must fold in rank order
    bint planned  # whether it runs more than once, so that a copy of `x` would become outdated
    bint exact  # whether the caller ensures that exact sums are exact
    bint in_bytes  # whether arrays of any dtype count as bytes
    View x
    View out
    View scaled  # the place of `x` times `prescale`, if that is not 1
    Role role
    long double factor  # of the result: postscale, and the mean's division
    bint blocking
    int tag  # of messages; -1 for collectives
    double timeout  # seconds, or COMMON
    uint64_t called_at  # ticks, for the timeline, if the call waited before its start; else 0


# The class of a call, whose plan and settings are kept.
cdef struct Key:
    int kind, root
    int bits  # the bit length of the bytes
    bint ordered
    bint is_ragged  # whether ranks do not know the lengths of each other's blocks
    bint by_messages
    bint at_once  # whether one step adds all contributions to a sum


@cython.final
@cython.freelist(8)
cdef class Call:
    """A call: its arguments, its plan and its operation."""

    cdef Arguments given
    cdef Key key
    cdef object algorithm, bits  # as its caller names them
    cdef str name  # of a submission in the background, until it is on record
    cdef int era  # of the engine
    cdef uint64_t stamp  # of a complete call: its number among those of the engine
    cdef uint64_t twin  # the stamp of a call that is alike, or 0
    cdef uint64_t counted  # the state of the engine's counts, if those of this call are kept there
    cdef Choice choice  # that of its class
    cdef Choice setting  # that of the configured operation
    cdef Operation *op  # NULL until the call starts
    cdef int64_t resumes  # the number of the call that it goes on with, or NO_CALL
    cdef bint untold  # whether the root of a scatterv had no counts

    def __dealloc__(self):
        # MPI may still write to the memory of a call that failed.
        if self.op != NULL and self.op.state.status == DONE:
            release(self.op)


cdef inline Call open_call(Engine engine, int kind, bint blocking, algorithm, bits):
    """Return a call of a kind; raise if this thread may not make it."""
    cdef Call call
    check_caller()
    if engine.broken is not None:
        engine.check_usable()
    call = engine.spare
    if call is None:
        call = Call.__new__(Call)
    else:
        engine.spare = None
    call.twin = 0
    call.algorithm, call.bits = algorithm, bits
    memset(&call.given, 0, <char *>&call.given.x - <char *>&call.given)
    call.given.contract = &engine.contracts[kind]
    call.given.kind = kind
    call.given.blocking = blocking
    call.given.operation = NO_OPERATION
    call.given.prescale = call.given.postscale = 1.0
    call.given.factor = 1.0
    call.given.timeout = COMMON
    call.given.tag = call.given.whole = -1
    call.given.called_at = 0
    call.resumes = NO_CALL
    call.untold = False
    return call


cdef Call copy_of(Call made):
    """Return a new call with the same arguments and plan."""
    cdef Call call = Call.__new__(Call)
    call.given = made.given
    call.resumes = NO_CALL
    call.algorithm, call.bits, call.choice = made.algorithm, made.bits, made.choice
    return call


cdef inline int class_of(const Arguments *call) noexcept:
    """Return the place of a call's class among the last calls of an engine."""
    return call.kind * LENGTHS + min(bit_length(call.nbytes), LENGTHS - 1)


cdef inline bint is_alike(const Arguments *call, const Arguments *last) noexcept:
    """Return whether calls of one plan differ in the addresses of their arrays only."""
    return (
        memcmp(call, last, <const char *>&call.x - <const char *>call) == 0
        and call.x.dtype == last.x.dtype and call.x.count == last.x.count
        and call.out.count == last.out.count
        # The arrays that a user's function has kept, and the pages of a device, are not used again.
        and call.user == NULL and call.device == NULL
    )


@cython.final
@cython.freelist(4)
cdef class Parts:
    """The parts of a vector form.

    Attributes
    ----------
    counts, receive_counts : numpy.ndarray
        The elements of each part. In an alltoall and between neighbours, those of the parts of `x`,
        and of the parts of `out`; otherwise they are the same.
    displs, receive_displs : numpy.ndarray or None
        The first elements of the parts of `x`, and of `out`, or None if they lie in a row.
    before : Request or None
        A request that must be complete when the call is.
    after : callable or None
        A function that returns the caller's result when the call is complete.
    """

    cdef readonly ndarray counts, receive_counts, displs, receive_displs
    cdef readonly object before, after

    def __init__(
        self, counts, receive_counts=None, displs=None, receive_displs=None, before=None, after=None
    ):
        self.counts = counts
        self.receive_counts = counts if receive_counts is None else receive_counts
        self.displs, self.receive_displs = displs, receive_displs
        self.before, self.after = before, after


cdef void take_parts(Arguments *call, Parts parts) noexcept:
    """Set the counts and displacements of a vector form; the caller keeps their arrays alive."""
    call.counts, call.receive_counts = numbers_in(parts.counts), numbers_in(parts.receive_counts)
    call.displs, call.receive_displs = numbers_in(parts.displs), numbers_in(parts.receive_displs)


cdef inline bint is_ragged(const Arguments *call) noexcept:
    """Return whether ranks do not know the lengths of each other's blocks."""
    return call.counts != NULL and (
        call.kind == ALLTOALL or call.kind >= NEIGHBORS or call.own_only
    )


cdef inline const int64_t *numbers_in(ndarray array) noexcept:
    if array is None:
        return NULL
    return <const int64_t *>PyArray_DATA(array)


cdef str announcement(int announced):
    """Return the name of the announced call."""
    if announced > KINDS:
        return MAKINGS[announced - KINDS - 1]
    return COLLECTIVES[announced - 1] + "v"


cdef str name_of(const Arguments *call):
    if call.announced:
        return announcement(call.announced)
    return KIND_NAMES[call.kind] + ("v" if call.counts != NULL else "")


cdef void prescale(const Arguments *call) noexcept:
    with nogil:
        call.scale(call.scaled.data, call.x.data, call.prescale, call.x.count)


cdef object different_dtypes(const Arguments *call):
    out, x = dtype_text(call.out.dtype), dtype_text(call.x.dtype)
    return BufferError(f"out is {out} and x is {x}; they must be equal")


cdef tuple place_scaled(Arguments *call, tuple keep):
    """Find memory for the scaled input: the output, or new memory if the output is smaller."""
    call.scaled = call.out
    if call.out.count != call.x.count:
        call.scaled = call.x
        return (*keep, scratch_like(&call.scaled))
    return keep


cdef inline double factor_of(value, str name) except? -1.0:
    return <double>value if type(value) is float else converted(value, name)


cdef double converted(value, str name) except? -1.0:
    try:
        return value
    except Exception:  # also of a user's type
        raise ArgumentError(f"{name} is {shown(value)}, and must be a real number") from None


cdef inline double deadline_of(timeout) except? -2.0:
    return COMMON if timeout is None else seconds(timeout)


cpdef double seconds(value, str name="timeout") except? -2.0:
    """Return a deadline, which is a positive number of seconds. Local.

    Raises
    ------
    ArgumentError
        If it is not a positive number.
    """
    cdef double number
    try:
        number = value
    except Exception:  # also of a user's type
        number = -1
    if not number > 0:
        raise ArgumentError(f"{name} is {shown(value)}, and must be a positive number of seconds")
    return number


cdef bint is_copy(kept, x) except -1:
    """Return whether `kept` is a copy, and not the memory of `x`, which may change."""
    if type(kept) is Held:
        return (<Held>kept).packed is not None
    return kept is not x and kept.base is None and not isinstance(x, numpy.generic)


cdef bint overlap(const View *a, const View *b) noexcept:
    return (
        a.data < b.data + b.count * b.itemsize and b.data < a.data + a.count * a.itemsize
    )
