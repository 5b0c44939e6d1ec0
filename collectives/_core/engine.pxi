# The engine of a communicator: arguments into a C struct, one run without the GIL, return.

from cpython.number cimport PyNumber_Index

# The numbers of the collectives in Engine.call.
cdef enum:
    ALLREDUCE = 0
    REDUCE = 1
    BROADCAST = 2
    BARRIER = 3

COLLECTIVES = ("allreduce", "reduce", "broadcast", "barrier")


@cython.final
cdef class Choice:
    """A plan, and the bytes of a segment to run it with (0: the whole block at once)."""

    cdef readonly Plan plan
    cdef readonly int64_t segment

    def __init__(self, Plan plan, int64_t segment):
        self.plan = plan
        self.segment = segment


# The arguments of one call, checked.
cdef struct Call:
    int kind
    int root
    View x
    View out
    cc_fold_fn fold
    cc_scale_fn scale
    double prescale, postscale
    double factor  # postscale, and the average's division


@cython.final
cdef class Engine:
    cdef readonly int rank, size
    cdef public double timeout  # seconds
    cdef public int patience  # polls before a wait yields
    cdef public object agree  # None, or what makes the ranks agree on a call before it starts
    cdef public str broken  # why the communicator cannot be used, or None
    cdef uint64_t comm
    cdef object choose
    cdef dict choices
    cdef Operation *idle
    cdef unsigned int sequence
    cdef Queue queue
    cdef char token[2]

    def __cinit__(self, MPI, communicator, choose, double timeout, int patience):
        bind(MPI)
        self.comm = handle_of(MPI, communicator)
        self.rank = transport.rank(self.comm)
        self.size = transport.size(self.comm)
        self.choose = choose
        self.choices = {}
        self.timeout = timeout
        self.patience = patience

    def __dealloc__(self):
        cdef Operation *op = self.idle
        cdef Operation *after
        while op != NULL:
            after = op.next
            release(op)
            op = after

    def __enter__(self):
        """Keep other threads out of the communicator; they queue up."""
        check_caller()
        enter(&self.queue)
        return self

    def __exit__(self, *error):
        leave(&self.queue)

    def call(
        self, int kind, x, out, op, root, algorithm, prescale=1.0, postscale=1.0,
        bint blocking=True,
    ):
        """Run a collective; return its result, or a Request where it is not `blocking`."""
        cdef Call call
        cdef Choice choice
        cdef Operation *operation
        call.kind = kind
        check_caller()
        if self.broken is not None:
            raise CommunicatorError(self.broken)
        if self.agree is None:
            keep = self.check(&call, x, out, op, root, prescale, postscale)
            choice = self.choice(&call, algorithm)
        else:
            try:
                keep = self.check(&call, x, out, op, root, prescale, postscale)
                choice = self.choice(&call, algorithm)
            except Exception as error:
                with self:
                    self.agree(COLLECTIVES[kind], f"{type(error).__name__}: {error}", False)
                raise
        enter(&self.queue)
        try:
            if self.broken is not None:  # by the thread that was inside
                raise CommunicatorError(self.broken)
            if self.agree is not None:
                self.agree(COLLECTIVES[kind], describe(&call, op, choice), True)
            if call.prescale != 1.0:
                keep = self.prescaled(&call, keep, call.prescale)
            operation = self.prepare(&call, choice)
            if not blocking:
                return Request(self, choice.plan, keep).start(operation)
            if choice.plan.whole.slots == 0 and call.x.count * call.x.itemsize < 65536:
                advance(operation)  # nothing to wait for: not worth giving up the GIL
            else:
                self.run(operation, choice.plan, keep)
            operation.next = self.idle
            self.idle = operation
        finally:
            leave(&self.queue)
        return keep[0]

    cdef tuple check(self, Call *call, x, out, op, root, prescale, postscale):
        """Check the arguments; return (what the caller gets, what else must stay alive)."""
        cdef Reduction reduction
        cdef bint reduces = call.kind == ALLREDUCE or call.kind == REDUCE
        cdef bint receives
        call.fold = NULL
        call.scale = NULL
        call.prescale = factor_of(prescale, "prescale")
        call.factor = call.postscale = factor_of(postscale, "postscale")
        call.root = 0
        if call.kind == REDUCE or call.kind == BROADCAST:
            call.root = self.check_root(root)
        if call.kind == BARRIER:
            call.fold = folds[<int>CC_BOR][<int>CC_UINT8]
            call.x = View(&self.token[0], 1, 1, CC_UINT8)
            call.out = View(&self.token[1], 1, 1, CC_UINT8)
            return None, None
        kept_x = view_of(x, &call.x, "x", False)
        if reduces:
            if type(op) is not Reduction:
                raise ArgumentError(
                    f"op is {op!r}, and must be one of collectives.SUM, PROD, MIN, MAX, AVG, LAND, "
                    f"LOR, LXOR, BAND, BOR, BXOR"
                )
            reduction = op
            call.fold = folds[reduction.code][call.x.dtype]
            if reduction.average:
                call.factor = call.postscale / self.size
            if call.fold == NULL or (reduction.average and scales[call.x.dtype] == NULL):
                raise UnsupportedTypeError(
                    f"{reduction.name} is not defined on {DTYPES[call.x.dtype]}; it is on "
                    f"{', '.join(reduction.dtypes())}"
                )
            if call.factor != 1.0 or call.prescale != 1.0:
                call.scale = scales[call.x.dtype]
                if call.scale == NULL:
                    raise UnsupportedTypeError(
                        f"prescale and postscale need a floating dtype, and x is "
                        f"{DTYPES[call.x.dtype]}"
                    )
        receives = call.kind != REDUCE or call.root == self.rank
        if not receives:
            call.out = View(NULL, call.x.count, call.x.itemsize, call.x.dtype)
            return None, kept_x
        if out is None:
            result = kept_out = PyArray_NewLikeArray(<ndarray>kept_x, NPY_CORDER, NULL, 0)
            view_of(kept_out, &call.out, "out", True)
        elif out is x:
            result = out
            kept_out = view_of(out, &call.out, "out", True)
        else:
            result = out
            kept_out = view_of(out, &call.out, "out", True)
            check_output(call)
        return result, (kept_x, kept_out)

    cdef int check_root(self, root) except -1:
        try:
            number = PyNumber_Index(root)
        except TypeError:
            raise ArgumentError(
                f"root is {root!r}, and must be an integer in 0..{self.size - 1}"
            ) from None
        if not 0 <= number < self.size:
            raise ArgumentError(f"root is {number}, and must be in 0..{self.size - 1}")
        return number

    cdef Choice choice(self, Call *call, algorithm):
        """Return the plan and segment size for a call, from the cache or by asking `choose`."""
        cdef int64_t nbytes = call.x.count * call.x.itemsize
        cdef int64_t key = (call.root * 4 + call.kind) * 64 + bit_length(nbytes)
        if algorithm is not None and not isinstance(algorithm, str):
            raise ArgumentError(f"algorithm is {algorithm!r}, and must be a name or None")
        full = key if algorithm is None else (key, algorithm)
        choice = self.choices.get(full)
        if choice is None:
            choice = self.choose(COLLECTIVES[call.kind], algorithm, nbytes, call.root)
            self.choices[full] = choice
        return choice

    def forget_choices(self):
        """Ask `choose` again from now on."""
        self.choices.clear()

    cdef tuple prescaled(self, Call *call, tuple keep, double factor):
        """Scale the input into the output, or where there is none into an array of our own."""
        cdef cc_scale_fn kernel = call.scale
        cdef View *target = &call.out
        if target.data == NULL:
            keep = (None, PyArray_NewLikeArray(<ndarray>keep[1], NPY_CORDER, NULL, 0))
            view_of(keep[1], target, "x", True)
        with nogil:
            kernel(target.data, call.x.data, factor, call.x.count)
        call.x.data = target.data
        if call.factor == 1.0:
            call.scale = NULL
        return keep

    cdef Operation *prepare(self, Call *call, Choice choice) except NULL:
        """Fill an operation: a recycled one, so that nothing is allocated after the first."""
        cdef Plan plan = choice.plan
        cdef int64_t nbytes = call.x.count * call.x.itemsize
        cdef int64_t block = ceiling(call.x.count, plan.nblocks)  # elements, the longest one's
        cdef int64_t largest = choice.segment if 0 < choice.segment < MAX_PIECE else MAX_PIECE
        cdef int64_t segments = 1
        cdef Operation *op
        cdef int k
        if block * call.x.itemsize > largest:
            segments = ceiling(block, max(1, largest // call.x.itemsize))
        op = self.idle
        if op == NULL:
            if len(live) >= OPERATIONS // 2:
                raise CommunicatorError(f"{len(live)} operations are in flight; wait for some")
            op = <Operation *>calloc(1, sizeof(Operation))
            if op == NULL:
                raise MemoryError
        else:
            self.idle = op.next
        op.whole = segments == 1 and nbytes <= MAX_PIECE
        op.plan = &plan.whole if op.whole else &plan.split
        op.comm = self.comm
        op.input = call.x.data
        op.output = call.out.data
        op.count = call.x.count
        op.itemsize = call.x.itemsize
        op.nblocks = plan.nblocks
        op.segments = segments
        op.window = <int>min(segments, <int64_t>WINDOW)
        op.tag = <int>(self.sequence % OPERATIONS) * WINDOW
        op.fold = call.fold
        op.scale = call.scale if call.factor != 1.0 and call.out.data != NULL else NULL
        op.factor = call.factor
        # A temporary slot holds the longest piece; slots of 64 bytes keep vectors on cache lines.
        op.stride = (ceiling(block, segments) * op.itemsize + 63) & ~63
        op.work_offset = plan.tmp * op.stride
        op.status = RUNNING
        op.live = op.window
        op.pending = 0
        op.slots = op.window * op.plan.slots
        op.failure = NO_FAILURE
        self.sequence += 1
        if reserve(op, plan):
            release(op)
            raise MemoryError(f"no memory for the temporary blocks of {title(plan)}")
        for k in range(op.window):
            op.cursors[k].segment = k
            op.cursors[k].round = 0
            op.cursors[k].step = 0
            op.cursors[k].posted = 0
            op.cursors[k].pending = 0
            op.cursors[k].pending_sends = 0
        return op

    cdef int run(self, Operation *op, Plan plan, keep) except -1:
        """Wait for an operation without the GIL; look up for signals and the deadline at times."""
        cdef double start, limit
        cdef Status status
        cdef int patience = self.patience
        with nogil:
            status = wait(op, False, patience, 0)
        if status == RUNNING:
            start = now()
            while status == RUNNING:
                try:
                    PyErr_CheckSignals()
                except BaseException:
                    self.abandon(op, plan, keep, "was interrupted in")
                    raise
                limit = now()
                if limit - start > self.timeout:
                    error = self.stall(op, plan)
                    self.abandon(op, plan, keep, "stalled in")
                    raise error
                limit += 0.05
                with nogil:
                    status = wait(op, False, patience, limit)
        if status == FAILED:
            raise self.failure(op, plan, keep)
        return 0

    cdef int abandon(self, Operation *op, Plan plan, keep, str how) except -1:
        """Give an operation up: nobody may touch its memory again, as MPI still might."""
        with nogil:
            lock_in_flight()
            if op.status == RUNNING:
                fail(op, STALLED, 0, -1, 0)
            unlock_in_flight()
        lost.append(keep)
        self.broken = f"the communicator is broken: rank {self.rank} {how} {title(plan)}"
        return 0

    cdef object stall(self, Operation *op, Plan plan):
        """Return the exception for an operation whose time is up; abandon it afterwards."""
        return StallError(
            f"{title(plan)}: rank {self.rank} waited {self.timeout:g} s: {waiting(op)}"
        )

    cdef object failure(self, Operation *op, Plan plan, keep):
        """Return the exception for an operation that failed."""
        self.abandon(op, plan, keep, "failed in")
        where = f"{title(plan)}: rank {self.rank}, round {op.round + 1}"
        if op.failure == WRONG_LENGTH:
            got = "more" if op.got < 0 else f"{op.got}"
            return MismatchError(
                f"{where}: got {got} bytes from rank {op.peer} where {op.wanted} were due; the "
                f"ranks did not call the same collective with the same count and dtype "
                f"(COLLECTIVES_VALIDATE=1 says who)"
            )
        peer = f", peer {op.peer}" if op.peer >= 0 else ""
        return MPIError(f"{where}{peer}: MPI says: {mpi_text(op.error)}")


cdef int check_output(Call *call) except -1:
    cdef char *x = call.x.data
    cdef char *out = call.out.data
    cdef int64_t nbytes = call.x.count * call.x.itemsize
    if call.out.dtype != call.x.dtype:
        raise BufferError(
            f"out is {DTYPES[call.out.dtype]} and x is {DTYPES[call.x.dtype]}; they must be equal"
        )
    if call.out.count != call.x.count:
        raise BufferError(
            f"out has {call.out.count} elements and x has {call.x.count}; they must be equal"
        )
    if x != out and x < out + nbytes and out < x + nbytes:
        raise BufferError("out overlaps x in part; pass out=x, or arrays that share no memory")
    return 0


cdef inline double factor_of(value, str name) except? -1.0:
    return <double>value if type(value) is float else converted(value, name)


cdef double converted(value, str name) except? -1.0:
    try:
        return value
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name} is {value!r}, and must be a real number") from None


cdef str describe(Call *call, op, Choice choice):
    """Return what a rank called, as the other ranks must have called it too."""
    parts = []
    if call.kind != BARRIER:
        parts += [f"count={call.x.count}", f"dtype={DTYPES[call.x.dtype]}"]
    if call.fold != NULL and call.kind != BARRIER:
        parts.append(f"op={op.name}")
    if call.kind == REDUCE or call.kind == BROADCAST:
        parts.append(f"root={call.root}")
    parts.append(f"algorithm={choice.plan.source.algorithm.name}")
    if choice.segment:
        parts.append(f"segment={choice.segment}")
    if call.prescale != 1.0:
        parts.append(f"prescale={call.prescale:g}")
    if call.postscale != 1.0:
        parts.append(f"postscale={call.postscale:g}")
    return ", ".join(parts)


cdef str title(Plan plan):
    source = plan.source
    return f"{source.algorithm.collective.name} {source.algorithm.name!r} on {source.p} ranks"


cdef str waiting(Operation *op):
    """Say what an operation waits for: the round, and whom."""
    cdef Cursor *cursor
    cdef const Message *message
    cdef int k, slot
    for k in range(op.window):
        cursor = &op.cursors[k]
        if cursor.segment < 0 or not cursor.pending:
            continue
        parts = []
        for slot in range(k * op.plan.slots, (k + 1) * op.plan.slots):
            if transport.is_pending(op.requests, slot):
                message = message_of(op, slot)
                parts.append(f"for rank {message.peer} to {'receive' if message.send else 'send'}")
        where = f"round {cursor.round + 1}, segment {cursor.segment + 1} of {op.segments}"
        return f"{where} waits {', '.join(parts)}"
    return "nothing was posted"
