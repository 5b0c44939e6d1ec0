# The surface: what Python sees. Each call has three moves: arguments into a C struct, one run without
# the GIL, return.

from cpython.exc cimport PyErr_CheckSignals
from numpy cimport (
    NPY_ARRAY_CARRAY, NPY_ARRAY_CARRAY_RO, NPY_BOOL, NPY_BYTE, NPY_CDOUBLE, NPY_CFLOAT, NPY_CORDER, NPY_DOUBLE,
    NPY_FLOAT, NPY_INT, NPY_LONG, NPY_LONGLONG, NPY_SHORT, NPY_UBYTE, NPY_UINT, NPY_ULONG,
    NPY_ULONGLONG, NPY_USHORT, PyArray_CheckExact, PyArray_CHKFLAGS, PyArray_DATA, PyArray_ISNOTSWAPPED,
    PyArray_ITEMSIZE, PyArray_SIZE, PyArray_TYPE, import_array, ndarray,
)

from collectives import buffers
from collectives.errors import (
    ArgumentError, BufferError, CommunicatorError, MismatchError, MPIError, StallError, UnsupportedTypeError,
)

cdef extern from "numpy/arrayobject.h":
    enum:
        NPY_HALF
    ndarray PyArray_NewLikeArray(ndarray, int, void *, int)

import_array()

cdef extern from *:
    int __builtin_clzll(unsigned long long) noexcept nogil

cdef enum:
    NTYPES = 24  # NumPy's built-in type numbers

# The numbers of the collectives in Engine.call.
cdef enum:
    ALLREDUCE = 0
    REDUCE = 1
    BROADCAST = 2
    BARRIER = 3

COLLECTIVES = ("allreduce", "reduce", "broadcast", "barrier")
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)

cdef inline int bit_length(uint64_t n) noexcept nogil:
    return 64 - __builtin_clzll(n) if n else 0


cdef inline int64_t ceiling(int64_t a, int64_t b) noexcept nogil:
    """Return a / b, rounded up, for a >= 0 (division is C's here)."""
    return (a + b - 1) // b


cdef signed char dtype_codes[NTYPES]
cdef cc_fold_fn folds[<int>CC_NOPS][<int>CC_NDTYPES]
cdef cc_scale_fn scales[<int>CC_NDTYPES]


cdef int sized(int nbytes, bint signed) noexcept:
    """Return the code of the integer of that many bytes."""
    cdef int step = {1: 0, 2: 1, 4: 2, 8: 3}[nbytes]
    return (CC_INT8 if signed else CC_UINT8) + step


cdef void fill_dtypes() noexcept:
    cdef int i
    for i in range(NTYPES):
        dtype_codes[i] = -1
    dtype_codes[<int>NPY_BOOL] = CC_BOOL
    dtype_codes[<int>NPY_BYTE] = sized(sizeof(char), True)
    dtype_codes[<int>NPY_SHORT] = sized(sizeof(short), True)
    dtype_codes[<int>NPY_INT] = sized(sizeof(int), True)
    dtype_codes[<int>NPY_LONG] = sized(sizeof(long), True)
    dtype_codes[<int>NPY_LONGLONG] = sized(sizeof(long long), True)
    dtype_codes[<int>NPY_UBYTE] = sized(sizeof(char), False)
    dtype_codes[<int>NPY_USHORT] = sized(sizeof(short), False)
    dtype_codes[<int>NPY_UINT] = sized(sizeof(int), False)
    dtype_codes[<int>NPY_ULONG] = sized(sizeof(long), False)
    dtype_codes[<int>NPY_ULONGLONG] = sized(sizeof(long long), False)
    dtype_codes[<int>NPY_HALF] = CC_FLOAT16
    dtype_codes[<int>NPY_FLOAT] = CC_FLOAT32
    dtype_codes[<int>NPY_DOUBLE] = CC_FLOAT64
    dtype_codes[<int>NPY_CFLOAT] = CC_COMPLEX64
    dtype_codes[<int>NPY_CDOUBLE] = CC_COMPLEX128


cdef void fill_kernels() noexcept:
    cdef int op, dtype
    for dtype in range(CC_NDTYPES):
        scales[dtype] = cc_scale_kernel(dtype)
        for op in range(CC_NOPS):
            folds[op][dtype] = cc_fold_kernel(op, dtype)


def kernels_isa():
    return cc_kernels_isa().decode()


def kernels_select(isa=None):
    if isa is None:
        cc_kernels_init(NULL)
    elif cc_kernels_init(isa.encode()):
        raise ArgumentError(
            f"this processor has no kernels for {isa!r}; there are portable, avx2 and avx512"
        )
    fill_kernels()


pthread_mutex_init(&in_flight_lock, NULL)
fill_dtypes()
kernels_select()


def reduction_named(name):
    """Return the reduction that a pickle names. Local."""
    from collectives import reductions

    return getattr(reductions, name)


@cython.final
cdef class Reduction:
    cdef readonly str name
    cdef readonly int code
    cdef readonly bint average

    def __init__(self, str name, int code, bint average=False):
        self.name = name
        self.code = code
        self.average = average

    def __repr__(self):
        return f"collectives.{self.name}"

    def __reduce__(self):
        return reduction_named, (self.name,)

    def dtypes(self):
        """Return the names of the dtypes that it has kernels for. Local."""
        return [
            name for code, name in enumerate(DTYPES)
            if folds[self.code][code] != NULL and (not self.average or scales[code] != NULL)
        ]


# An array as the executor sees it.
cdef struct View:
    char *data
    int64_t count
    int itemsize
    int dtype


cdef object view_of(object array, View *view, str name, bint writable):
    """Fill a view; return the object that keeps it alive (a packed copy where one was needed)."""
    cdef int flags = NPY_ARRAY_CARRAY if writable else NPY_ARRAY_CARRAY_RO
    cdef int number
    cdef ndarray a
    if not PyArray_CheckExact(array):
        array = buffers.as_array(array, name, writable)
    a = array
    number = PyArray_TYPE(a)
    view.dtype = dtype_codes[number] if 0 <= number < NTYPES else -1
    if view.dtype < 0 or not PyArray_ISNOTSWAPPED(a):
        view.dtype = DTYPES.index(buffers.dtype_name(a, name))
    if not PyArray_CHKFLAGS(a, flags):
        a = buffers.contiguous(a, name, writable)
    view.data = <char *>PyArray_DATA(a)
    view.count = PyArray_SIZE(a)
    view.itemsize = PyArray_ITEMSIZE(a)
    return a


def fold(int op, out, left, right, dtype=None):
    """Fold two arrays with a kernel: ``out[i] = left[i] op right[i]``. Local."""
    cdef View dst, a, b
    cdef int code
    keep = (view_of(out, &dst, "out", True), view_of(left, &a, "left", False), view_of(right, &b, "right", False))
    code = dst.dtype if dtype is None else dtype
    if dst.count != a.count or dst.count != b.count or dst.dtype != a.dtype or dst.dtype != b.dtype:
        raise ArgumentError("out, left and right must have the same dtype and number of elements")
    if not 0 <= op < CC_NOPS or not 0 <= code < CC_NDTYPES or folds[op][code] == NULL:
        raise UnsupportedTypeError(f"there is no kernel for operation {op} on dtype {code}")
    with nogil:
        folds[op][code](dst.data, a.data, b.data, dst.count)
    return keep[0]


def scale(out, src, double factor, dtype=None):
    """Scale an array with a kernel: ``out[i] = src[i] * factor``. Local."""
    cdef View dst, a
    cdef int code
    keep = (view_of(out, &dst, "out", True), view_of(src, &a, "src", False))
    code = dst.dtype if dtype is None else dtype
    if dst.count != a.count or dst.dtype != a.dtype:
        raise ArgumentError("out and src must have the same dtype and number of elements")
    if not 0 <= code < CC_NDTYPES or scales[code] == NULL:
        raise UnsupportedTypeError(f"there is no scaling of dtype {code}")
    with nogil:
        scales[code](dst.data, a.data, factor, dst.count)
    return keep[0]


@cython.final
cdef class Choice:
    """A plan, and the bytes of a segment to run it with (0: the whole block at once)."""

    cdef readonly Plan plan
    cdef readonly int64_t segment

    def __init__(self, Plan plan, int64_t segment):
        self.plan = plan
        self.segment = segment


# Requests that have not been settled: MPI may still touch their buffers, whoever else forgets them.
cdef set live = set()


def pending(Engine engine=None):
    """Return a line for each request that has not completed, on one communicator or on all. Local."""
    lines = []
    for request in list(live):
        if engine is None or (<Request>request).engine is engine:
            request.test()
            lines.append(request.state())
    return [line for line in lines if line is not None]


# The arguments of one call, checked.
cdef struct Call:
    int kind
    int root
    View x
    View out
    cc_fold_fn fold
    cc_scale_fn scale
    double factor


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
    cdef list lost  # buffers that a failed operation may still touch
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
        self.lost = []

    def __dealloc__(self):
        cdef Operation *op = self.idle
        cdef Operation *after
        while op != NULL:
            after = op.next
            release(op)
            op = after

    def call(
        self, int kind, x, out, op, root, algorithm, double prescale=1.0, double postscale=1.0,
        bint blocking=True,
    ):
        """Run a collective; return its result, or a Request where it is not `blocking`."""
        cdef Call call
        cdef Choice choice
        cdef Operation *operation
        call.kind = kind
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
                self.agree(COLLECTIVES[kind], f"{type(error).__name__}: {error}", False)
                raise
            self.agree(
                COLLECTIVES[kind],
                describe(&call, op, choice, prescale, postscale),
                True,
            )
        if prescale != 1.0:
            keep = self.prescaled(&call, keep, prescale)
        operation = self.prepare(&call, choice)
        if not blocking:
            return Request(self, choice.plan, keep).start(operation)
        if choice.plan.whole.slots == 0 and call.x.count * call.x.itemsize < 65536:
            advance(operation)  # nothing to wait for: not worth giving up the GIL
        else:
            self.run(operation, choice.plan, keep)
        operation.next = self.idle
        self.idle = operation
        return keep[0]

    cdef tuple check(self, Call *call, x, out, op, root, double prescale, double postscale):
        """Check the arguments; return (what the caller gets, what else must stay alive)."""
        cdef Reduction reduction
        cdef bint reduces = call.kind == ALLREDUCE or call.kind == REDUCE
        cdef bint receives
        call.fold = NULL
        call.scale = NULL
        call.factor = postscale
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
                    f"op is {op!r}, and must be one of collectives.SUM, PROD, MIN, MAX, AVG, LAND, LOR, "
                    f"LXOR, BAND, BOR, BXOR"
                )
            reduction = op
            call.fold = folds[reduction.code][call.x.dtype]
            if reduction.average:
                call.factor = postscale / self.size
            if call.fold == NULL or (reduction.average and scales[call.x.dtype] == NULL):
                raise UnsupportedTypeError(
                    f"{reduction.name} is not defined on {DTYPES[call.x.dtype]}; it is on "
                    f"{', '.join(reduction.dtypes())}"
                )
            if call.factor != 1.0 or prescale != 1.0:
                call.scale = scales[call.x.dtype]
                if call.scale == NULL:
                    raise UnsupportedTypeError(
                        f"prescale and postscale need a floating dtype, and x is {DTYPES[call.x.dtype]}"
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
        cdef int number
        try:
            number = root
        except TypeError:
            raise ArgumentError(f"root is {root!r}, and must be an integer in 0..{self.size - 1}") from None
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
        op.rank = self.rank
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
                    raise self.stalled(op, plan, keep)
                limit += 0.05
                with nogil:
                    status = wait(op, False, patience, limit)
        if status == FAILED:
            raise self.failure(op, plan, keep)
        return 0

    cdef int abandon(self, Operation *op, Plan plan, keep, str how) except -1:
        """Give an operation up: nobody may touch its memory again, as MPI still might."""
        if op.status == RUNNING:
            fail(op, STALLED, 0, -1, 0)
        self.lost.append((plan, keep))
        self.broken = f"the communicator is broken: rank {self.rank} {how} {title(plan)}"
        return 0

    cdef object stalled(self, Operation *op, Plan plan, keep):
        waits = waiting(op)
        self.abandon(op, plan, keep, "stalled in")
        return StallError(f"{title(plan)}: rank {self.rank} waited {self.timeout:g} s: {waits}")

    cdef object failure(self, Operation *op, Plan plan, keep):
        """Return the exception for an operation that failed."""
        self.abandon(op, plan, keep, "failed in")
        where = f"{title(plan)}: rank {self.rank}, round {op.round + 1}"
        if op.failure == WRONG_LENGTH:
            got = "more" if op.got < 0 else f"{op.got}"
            return MismatchError(
                f"{where}: got {got} bytes from rank {op.peer} where {op.wanted} were due; the ranks did not "
                f"call the same collective with the same count and dtype (COLLECTIVES_VALIDATE=1 says who)"
            )
        peer = f", peer {op.peer}" if op.peer >= 0 else ""
        return MPIError(f"{where}{peer}: MPI says: {mpi_text(op.error)}")


cdef int check_output(Call *call) except -1:
    cdef char *x = call.x.data
    cdef char *out = call.out.data
    cdef int64_t nbytes = call.x.count * call.x.itemsize
    if call.out.dtype != call.x.dtype:
        raise BufferError(f"out is {DTYPES[call.out.dtype]} and x is {DTYPES[call.x.dtype]}; they must be equal")
    if call.out.count != call.x.count:
        raise BufferError(f"out has {call.out.count} elements and x has {call.x.count}; they must be equal")
    if x != out and x < out + nbytes and out < x + nbytes:
        raise BufferError("out overlaps x in part; pass out=x, or arrays that share no memory")
    return 0


cdef str describe(Call *call, op, Choice choice, double prescale, double postscale):
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
    if prescale != 1.0:
        parts.append(f"prescale={prescale:g}")
    if postscale != 1.0:
        parts.append(f"postscale={postscale:g}")
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
        return f"round {cursor.round + 1}, segment {cursor.segment + 1} of {op.segments} waits {', '.join(parts)}"
    return "nothing was posted"


cdef int reserve(Operation *op, Plan plan) noexcept:
    """See that an operation has its arena and request slots. Returns 0, or -1 without memory."""
    cdef int64_t work = 0
    cdef int64_t each
    cdef size_t wanted
    cdef int k
    if plan.work:
        work = op.count * op.itemsize if op.whole else plan.work * op.stride
    each = (op.work_offset + work + 63) & ~63
    wanted = each * op.window
    if wanted > op.arena_bytes:
        free(op.arena)
        op.arena = NULL
        op.arena_bytes = 0
        wanted = <size_t>1 << bit_length(wanted - 1)
        if posix_memalign(<void **>&op.arena, 64, wanted):
            return -1
        op.arena_bytes = wanted
    for k in range(op.window):
        op.cursors[k].memory = op.arena + k * each
    return reserve_slots(op, op.window * max(plan.whole.slots, plan.split.slots))


cdef int reserve_slots(Operation *op, int wanted) noexcept:
    if op.arrived == NULL or wanted > op.slots_reserved:
        free_slots(op)
        op.requests = calloc(wanted + 1, transport.handle_size)
        op.arrived = <char *>calloc(wanted + 1, 1)
        op.expected = <int *>calloc(wanted + 1, sizeof(int))
        op.done = <int *>calloc(wanted + 1, sizeof(int))
        op.statuses = <char *>calloc(wanted + 1, cc_mpi.status_size)
        if op.requests == NULL or op.arrived == NULL or op.expected == NULL:
            return -1
        if op.done == NULL or op.statuses == NULL:
            return -1
        op.slots_reserved = wanted
        transport.clear(op.requests, wanted)
    return 0


cdef void free_slots(Operation *op) noexcept:
    free(op.requests)
    free(op.arrived)
    free(op.expected)
    free(op.done)
    free(op.statuses)
    op.requests = NULL
    op.arrived = NULL
    op.slots_reserved = 0


cdef void release(Operation *op) noexcept:
    free(op.arena)
    free_slots(op)
    free(op)


@cython.final
cdef class Request:
    cdef Engine engine
    cdef Plan plan
    cdef tuple keep
    cdef Operation *op
    cdef object error
    cdef int waiters  # threads inside wait(), which look at the operation without the GIL

    def __cinit__(self, Engine engine, Plan plan, tuple keep):
        self.engine = engine
        self.plan = plan
        self.keep = keep

    cdef Request start(self, Operation *op):
        self.op = op
        for request in list(live):
            (<Request>request).settle()
        live.add(self)
        with nogil:
            enlist(op)
        return self

    cdef int settle(self) except -1:
        """Let go of the operation if it has ended. Keeps its error for whoever waits."""
        if self.op == NULL or self.op.status == RUNNING:
            return 0
        if self.op.status == FAILED and self.error is None:
            delist(self.op)
            self.error = self.engine.failure(self.op, self.plan, self.keep)
        if self.waiters:
            return 0
        if self.op.status == DONE:
            delist(self.op)
            self.op.next = self.engine.idle
            self.engine.idle = self.op
        self.op = NULL
        live.discard(self)
        return 0

    def test(self):
        if self.op != NULL:
            with nogil:
                pthread_mutex_lock(&in_flight_lock)
                advance_in_flight()
                pthread_mutex_unlock(&in_flight_lock)
            self.settle()
        if self.error is not None:
            raise self.error
        return self.op == NULL or self.op.status == DONE

    def wait(self):
        cdef double start, limit
        cdef int patience = self.engine.patience
        start = now() if self.op != NULL else 0
        while self.op != NULL and self.op.status == RUNNING:
            limit = now() + 0.05
            self.waiters += 1
            with nogil:
                wait(self.op, True, patience, limit)
            self.waiters -= 1
            if self.op.status == RUNNING:
                PyErr_CheckSignals()
                if limit - start > self.engine.timeout:
                    delist(self.op)
                    self.error = self.engine.stalled(self.op, self.plan, self.keep)
        self.settle()
        if self.error is not None:
            raise self.error
        return self.keep[0]

    def state(self):
        """Return what the request waits for, or None if it has completed. Local."""
        if self.op == NULL or self.op.status != RUNNING:
            return None
        return f"{title(self.plan)}: {waiting(self.op)}"

    def __repr__(self):
        return f"<Request of {title(self.plan)}: {self.state() or 'complete'}>"
