# The engine of a communicator: arguments into a C struct, one run without the GIL, return.

from cpython.number cimport PyNumber_Index

from collectives.errors import PeerLostError

cdef enum:
    OPERATIONS = 4096  # tags before they are used again: 4 * 4096 fit in MPI's smallest TAG_UB
    LAP = 512  # starts between two looks for operations that are about to meet their tag again

cdef double SLICE = 0.05  # seconds between two looks at signals, the deadline and the other ranks


@cython.final
cdef class Engine:
    cdef readonly int rank, size
    cdef public double timeout  # seconds
    cdef public int patience  # polls of MPI before a wait yields
    cdef public int spins  # looks at shared memory before a wait yields
    cdef public int stores  # of payloads: 0 as it turns out best, 1 to the cache, 2 past it
    cdef public double warning  # seconds after which a wait says so
    cdef readonly Segment segment  # or None
    cdef public int64_t longest  # bytes of one message between two ranks; longer ones are cut
    cdef public object label  # tells the communicator from others in timelines
    cdef public str messages_by  # the family of the MPI
    cdef public object traced  # None, or what takes down each call that has ended
    cdef public object agree  # None, or what makes the ranks agree on a call before it starts
    cdef public str broken  # why the communicator cannot be used, or None
    cdef uint64_t comm
    cdef object choose
    cdef dict choices
    cdef Operation *idle
    cdef unsigned int sequence
    cdef Queue queue
    cdef bint held  # whether the thread inside has come by `with`
    cdef char token[2]
    # For each kind, the role of this rank where it is not the root, and where it is.
    cdef Role roles[<int>KINDS][2]
    cdef int array_parts[<int>KINDS]
    cdef bint rooted[<int>KINDS]
    cdef bint reduces[<int>KINDS]
    cdef bint keeps_shape[<int>KINDS]  # whether a result has the shape of `x`

    def __cinit__(self, MPI, communicator, choose, double timeout, int patience):
        cdef int kind, at_root
        bind(MPI)
        self.comm = handle_of(MPI, communicator)
        self.rank = transport.rank(self.comm)
        self.size = transport.size(self.comm)
        self.choose = choose
        self.choices = {}
        self.timeout = timeout
        self.patience = patience
        self.spins = SPINS
        self.warning = 60
        self.longest = MAX_PIECE
        self.messages_by = "mpi"
        for kind, contract in enumerate(spec.COLLECTIVES.values()):
            self.array_parts[kind] = contract.per_array(self.size)
            self.rooted[kind] = contract.rooted
            self.reduces[kind] = contract.reduces
            given, got = contract.inputs(1, 2, 1), contract.outputs(1, 2, 1)
            self.keeps_shape[kind] = len(given) == len(got)
            for at_root in range(2):
                place = self.rank, self.size, self.rank if at_root else -1
                inputs, outputs = contract.inputs(*place), contract.outputs(*place)
                self.roles[kind][at_root] = Role(
                    len(inputs), inputs.start, len(outputs), outputs.start
                )
        self.roles[<int>ALLTOALL][0].first_input = self.roles[<int>ALLTOALL][1].first_input = 0
        self.roles[<int>ALLTOALL][0].first_output = self.roles[<int>ALLTOALL][1].first_output = 0

    def __dealloc__(self):
        cdef Operation *op = self.idle
        cdef Operation *after
        while op != NULL:
            after = op.next
            release(op)
            op = after

    def share(self, Segment segment, int spins):
        """Use a segment from now on, or with None none. Local, but all ranks must do it at once."""
        self.segment = segment
        self.spins = spins

    def __enter__(self):
        """Keep other threads out of the communicator; this one may make calls inside."""
        check_caller()
        enter(&self.queue)
        self.held = True
        return self

    def __exit__(self, *error):
        self.held = False
        leave(&self.queue)

    cdef bint enter_unless_inside(self) except -1:
        """Come to be the one thread inside; say whether this one was."""
        if self.held and self.queue.owner == pthread_self():
            return True
        enter(&self.queue)
        return False

    def call(
        self, int kind, x, out, op, root, algorithm, timeout=None, prescale=1.0, postscale=1.0,
        bint blocking=True,
    ):
        """Run a collective; return its result, or a Request where it is not `blocking`."""
        cdef Call call
        cdef Choice choice
        cdef tuple keep
        cdef str text = None
        call.kind = kind
        call.planned = False
        call.timeout = COMMON
        check_caller()
        if self.broken is not None:
            raise CommunicatorError(self.broken)
        if self.agree is None:
            if timeout is not None:
                call.timeout = seconds(timeout)
            keep = self.check(&call, x, out, op, root, prescale, postscale)
            choice = self.choice(&call, algorithm)
        else:
            try:
                if timeout is not None:
                    call.timeout = seconds(timeout)
                keep = self.check(&call, x, out, op, root, prescale, postscale)
                choice = self.choice(&call, algorithm)
            except Exception as error:
                self.refuse(COLLECTIVES[kind], error, call.timeout)
                raise
            text = self.describe(&call, op, choice)
        return self.launch(&call, choice, keep, blocking, text)

    def call_vector(
        self, int kind, x, out, op, root, algorithm, timeout, prescale, postscale, bint blocking,
        const int64_t[::1] counts, const int64_t[::1] receive_counts, shape,
    ):
        """Run the vector form of a collective, in which each part has a count of its own.

        `counts` has one for each rank; those of an alltoall are sent and there are others that are
        received. A new result has `shape`.
        """
        cdef Call call
        cdef Choice choice
        cdef tuple keep
        cdef str text = None
        call.kind = kind
        call.planned = False
        call.timeout = COMMON
        check_caller()
        if self.broken is not None:
            raise CommunicatorError(self.broken)
        call.counts = &counts[0]
        call.receive_counts = &receive_counts[0]
        try:
            keep = self.check_vector(
                &call, x, out, op, root, timeout, prescale, postscale, shape
            )
            choice = self.choice(&call, algorithm)
        except Exception as error:
            if self.agree is not None:
                self.refuse(COLLECTIVES[kind] + "v", error, call.timeout)
            raise
        if self.agree is not None:
            text = self.describe(&call, op, choice)
        return self.launch(&call, choice, keep, blocking, text)

    def verify(self, int kind, x, op, algorithm, prescale=1.0, postscale=1.0):
        """Raise what a call with these arguments would raise before it sends anything."""
        cdef Call call
        call.kind = kind
        call.planned = False
        self.check(&call, x, None, op, 0, prescale, postscale)
        self.choice(&call, algorithm)

    def plan(self, int kind, x, out, op, root, algorithm, prescale=1.0, postscale=1.0):
        """Return a collective with its arguments checked and its memory reserved."""
        cdef PlannedCall planned = PlannedCall.__new__(PlannedCall)
        cdef Call *call = &planned.call
        check_caller()
        if self.broken is not None:
            raise CommunicatorError(self.broken)
        call.kind = kind
        call.planned = True
        planned.engine = self
        planned.keep = self.check(call, x, out, op, root, prescale, postscale)
        planned.choice = self.choice(call, algorithm)
        if planned.choice.settled is not None:
            planned.choice = planned.choice.settled
        planned.text = self.describe(call, op, planned.choice)
        if type(planned.keep[0]) is Pending:
            raise BufferError(
                f"x is a {frameworks.LABELS[kind_of(type(x)).framework]}, and so its result would "
                f"be, which is immutable: no second run could write it; pass a NumPy array as out"
            )
        planned.title = title(planned.choice.plan)
        planned.prepare()
        return planned

    def exchange(self, Plan plan, x, out, int tag, timeout, bint blocking, cut):
        """Send `x`, receive `out`, or do both, as the plan says.

        Other threads are not kept out: one may send what another waits for. What is too large for
        one message goes by another plan, `cut(sends, receives)`, whose messages are posted at once,
        so that none of a later call comes between them.
        """
        cdef Call call
        cdef int64_t counts[2]
        cdef int64_t[::1] pieces
        cdef int64_t most
        cdef Choice choice
        cdef Operation *op
        kept_x = kept_out = None
        check_caller()
        if self.broken is not None:
            raise CommunicatorError(self.broken)
        call.timeout = deadline_of(timeout)
        call.x = View(NULL, 0, 1, 0)
        call.out = View(NULL, 0, 1, 0)
        if x is not None:
            kept_x = view_of(x, &call.x, "x", False, True)
        if out is not None:
            kept_out = view_of(out, &call.out, "out", True, True)
        if x is None:
            call.x = View(NULL, 0, call.out.itemsize, call.out.dtype)
        elif out is not None:
            if call.x.dtype != call.out.dtype:
                raise different_dtypes(&call)
            if overlap(&call.x, &call.out):
                raise BufferError("out overlaps x; pass arrays that share no memory")
        call.kind = EXCHANGE
        call.part = 0
        call.nbytes = max(call.x.count, call.out.count) * call.x.itemsize
        call.operation = NO_OPERATION
        call.checksum = 0
        call.fold = NULL
        call.user = NULL
        call.scale = NULL
        call.factor = call.prescale = call.postscale = 1.0
        counts[0] = call.out.count if x is None else call.x.count
        counts[1] = call.out.count
        call.counts = counts
        call.receive_counts = NULL
        most = self.longest // call.x.itemsize
        if call.x.count > most or call.out.count > most:
            sent = [] if x is None else cut_into(call.x.count, most)
            received = [] if out is None else cut_into(call.out.count, most)
            plan = cut(len(sent), len(received))
            pieces = array("q", sent + received)
            call.counts = &pieces[0]
        keep = out, kept_x, kept_out
        if not blocking:
            make_room()
        op = self.idle_operation()
        choice = Choice(plan, 0, "")
        configure(self, op, &call, choice)
        self.restart(op, tag)
        if tape != NULL or self.traced is not None:
            begin_exchange(self, op, choice, call.nbytes, blocking)
        if not blocking:
            return Request(self, plan, keep).start(op)
        self.run(op, plan, keep, call.timeout)
        op.next = self.idle
        self.idle = op
        return out

    cdef object launch(self, Call *call, Choice choice, tuple keep, bint blocking, str text):
        """Start what has been checked, and wait for it if it is `blocking`.

        With a `text` of what is called, the ranks agree on it first.
        """
        cdef Operation *op
        cdef object trials = None
        cdef int slot = 0
        cdef double began = 0
        cdef uint64_t start = 0
        cdef bint inside
        if tape != NULL and (self.queue.owner or text is not None or not blocking):
            start = cc_ticks()
        inside = self.enter_unless_inside()
        try:
            if self.broken is not None:  # by the thread that was inside
                raise CommunicatorError(self.broken)
            if not blocking:
                make_room()
            if text is not None:
                self.agree(self.name(call), text, True, self.deadline(call.timeout))
            if choice.trials is not None:
                trials = choice.trials
                choice = self.turn(choice, blocking, call.timeout, &slot)
                began = now() if slot >= 0 else 0
            if call.prescale != 1.0:
                keep = self.scratch(call, keep)
                prescale(call)
            op = self.idle_operation()
            configure(self, op, call, choice)
            self.restart(op, -1)
            if tape != NULL or self.traced is not None:
                begin_call(self, op, choice, call, start, blocking)
            if not blocking:
                return Request(self, choice.plan, keep).start(op)
            self.run(op, choice.plan, keep, call.timeout)
            if began != 0:
                trials.note(slot, now() - began)
            op.next = self.idle
            self.idle = op
        finally:
            if not inside:
                leave(&self.queue)
        return finished(keep[0])

    cdef Choice turn(self, Choice choice, bint blocking, double timeout, int *slot):
        """Return what a call of a class with trials runs; `slot` is whose time it adds to, or -1.
        Collective.

        The class is counted where only one thread is, and after all that can refuse a call.
        """
        cdef bint held = self.held
        slot[0] = -1
        if choice.settled is not None:
            return choice.settled
        if not blocking:
            return choice
        choice.calls += 1
        if choice.calls < choice.due:
            return choice
        self.held = True  # the ranks meet in calls inside of this one
        try:
            slot[0], other, choice.due = choice.trials.begin(
                choice.calls, None if timeout == COMMON else timeout
            )
        finally:
            self.held = held
        other = choice if other is None else other
        if slot[0] < 0:
            choice.settled = other
        return other

    cdef int refuse(self, str name, error, double timeout) except -1:
        """Tell the other ranks that this one has refused its own call."""
        with self:
            self.agree(name, f"{type(error).__name__}: {error}", False, self.deadline(timeout))
        return 0

    cdef inline double deadline(self, double timeout) noexcept:
        """Return the seconds that a call may wait."""
        return self.timeout if timeout == COMMON else timeout

    cdef str name(self, const Call *call):
        return COLLECTIVES[call.kind] + ("v" if call.counts != NULL else "")

    cdef tuple check(self, Call *call, x, out, op, root, prescale, postscale):
        """Check the arguments; return (what the caller gets, what else must stay alive)."""
        cdef int kind = call.kind
        cdef bint moves = not self.reduces[kind]
        cdef int divisor
        call.counts = NULL
        call.checksum = 0
        call.prescale = factor_of(prescale, "prescale")
        call.factor = call.postscale = factor_of(postscale, "postscale")
        call.root = self.check_root(root) if self.rooted[kind] else 0
        call.role = self.roles[kind][call.root == self.rank]
        if kind == BARRIER:
            call.x = View(&self.token[0], 1, 1, CC_UINT8)
            call.out = View(&self.token[1], 1, 1, CC_UINT8)
            call.part = call.nbytes = 1
            call.fold = folds[<int>CC_BOR][<int>CC_UINT8]
            call.user = NULL
            call.scale = NULL
            call.ordered = False
            call.operation = NO_OPERATION
            return None, None
        if x is None and call.role.inputs == 0 and out is not None:
            kept_x = None
            kept_out = view_of(out, &call.out, "out", True, moves)
            call.x = View(NULL, 0, call.out.itemsize, call.out.dtype)
            call.part = call.out.count
        else:
            kept_x = view_of(x, &call.x, "x", False, moves)
            if call.planned and call.role.inputs and is_copy(kept_x, x):
                raise BufferError(
                    "x is not C-contiguous and aligned, and a planned call reads it where it lies; "
                    "pass a contiguous array"
                )
            divisor = call.role.inputs if call.role.inputs else self.array_parts[kind]
            call.part = call.x.count
            if divisor != 1:
                if call.x.count % divisor:
                    raise ArgumentError(
                        f"x has {call.x.count} elements, which {self.size} ranks cannot share "
                        f"equally; {COLLECTIVES[kind]}v takes a count for each rank"
                    )
                call.part = call.x.count // divisor
        call.nbytes = call.part * self.array_parts[kind] * call.x.itemsize
        keep = self.check_fold(call, op, kept_x)
        if call.role.outputs == 0:
            call.out = View(NULL, 0, call.x.itemsize, call.x.dtype)
            return None, kept_x, keep
        if kept_x is None:
            result = out
        elif out is None:
            shape = None if self.keeps_shape[kind] else self.new_shape(call, kept_x)
            result = kept_out = result_like(x, kept_x, &call.x, shape, &call.out)
            return result, kept_x, kept_out, keep
        else:
            result = out
            kept_out = view_of(out, &call.out, "out", True, moves)
            if out is x and self.array_parts[kind] == 1:
                return result, kept_x, kept_out, keep
        kept_x = self.check_output(call, kept_x, call.part * call.role.outputs)
        return result, kept_x, kept_out, keep

    cdef tuple new_shape(self, Call *call, kept_x):
        """Return the shape of a new result that has another than `x`."""
        shape = shape_of(kept_x)
        if call.kind == ALLGATHER or call.kind == GATHER:
            return self.size, *shape
        if shape and shape[0] % self.size == 0:
            return shape[0] // self.size, *shape[1:]
        return call.part,

    cdef tuple check_vector(
        self, Call *call, x, out, op, root, timeout, prescale, postscale, shape,
    ):
        """Check the arguments of a vector form, as `check` does; the counts are in the call."""
        cdef int kind = call.kind
        cdef bint moves = not self.reduces[kind]
        cdef int64_t total = 0
        cdef int64_t wanted
        cdef int r
        call.timeout = deadline_of(timeout)
        call.prescale = factor_of(prescale, "prescale")
        call.factor = call.postscale = factor_of(postscale, "postscale")
        call.root = self.check_root(root) if self.rooted[kind] else 0
        call.role = self.roles[kind][call.root == self.rank]
        call.part = 0
        call.checksum = 0
        for r in range(self.size):
            total += call.counts[r]
            if kind != ALLTOALL:
                call.checksum = cc_mixed(call.checksum, call.counts[r])
        if x is None and call.role.inputs == 0 and out is not None:
            kept_x = None
            kept_out = view_of(out, &call.out, "out", True, moves)
            call.x = View(NULL, 0, call.out.itemsize, call.out.dtype)
        else:
            kept_x = view_of(x, &call.x, "x", False, moves)
            wanted = self.elements(call.counts, call.role.inputs, call.role.first_input)
            if call.role.inputs and call.x.count != wanted:
                raise ArgumentError(
                    f"x has {call.x.count} elements and its counts say {wanted}; they must be equal"
                )
        # Of an alltoall, no rank knows the whole; all must still choose alike.
        call.nbytes = 0 if kind == ALLTOALL else total * call.x.itemsize
        keep = self.check_fold(call, op, kept_x)
        if call.role.outputs == 0:
            call.out = View(NULL, 0, call.x.itemsize, call.x.dtype)
            return None, kept_x, keep
        wanted = self.elements(
            call.receive_counts if kind == ALLTOALL else call.counts, call.role.outputs,
            call.role.first_output,
        )
        if kept_x is None:
            result = out
        elif out is None:
            result = kept_out = result_like(x, kept_x, &call.x, shape, &call.out)
            return result, kept_x, kept_out, keep
        else:
            result = out
            kept_out = view_of(out, &call.out, "out", True, moves)
        kept_x = self.check_output(call, kept_x, wanted)
        return result, kept_x, kept_out, keep

    cdef int64_t elements(self, const int64_t *counts, int parts, int first) noexcept:
        """Return the elements of some parts, which are as many as their ranks say."""
        cdef int64_t total = 0
        cdef int i
        for i in range(parts):
            total += counts[first + i]
        return total

    cdef object check_fold(self, Call *call, op, kept_x):
        """Find the kernels of a collective that reduces; return what must stay alive."""
        cdef Reduction reduction
        cdef UserFold user
        call.fold = NULL
        call.user = NULL
        call.scale = NULL
        call.ordered = False
        call.operation = NO_OPERATION
        if not self.reduces[call.kind]:
            return None
        if type(op) is not Reduction:
            raise ArgumentError(
                f"op is {op!r}, and must be one of collectives.SUM, PROD, MIN, MAX, AVG, LAND, "
                f"LOR, LXOR, BAND, BOR, BXOR, or made by collectives.reduction"
            )
        reduction = op
        call.operation = reduction.number
        if reduction.function is not None:
            user = UserFold.__new__(UserFold)
            user.function = reduction.function
            user.number = frameworks.numpy_dtype(dtype_text(call.x.dtype), "x").num
            call.user = <void *>user
            call.ordered = not reduction.commutative
        else:
            user = None
            call.fold = folds[reduction.code][call.x.dtype]
            if call.fold == NULL or (reduction.average and scales[call.x.dtype] == NULL):
                raise UnsupportedTypeError(
                    f"{reduction.name} is not defined on {dtype_text(call.x.dtype)}; it is on "
                    f"{', '.join(reduction.dtypes())}"
                )
        if reduction.average:
            if call.kind == SCAN or call.kind == EXSCAN:
                raise ArgumentError(
                    f"op is AVG, and a {COLLECTIVES[call.kind]} has a number of contributions of "
                    f"its own on each rank; divide the result of SUM"
                )
            call.factor /= self.size
        if call.factor != 1.0 or call.prescale != 1.0:
            call.scale = scales[call.x.dtype]
            if call.scale == NULL:
                raise UnsupportedTypeError(
                    f"prescale and postscale need a floating dtype, and x is "
                    f"{dtype_text(call.x.dtype)}"
                )
        return user

    cdef object check_output(self, Call *call, kept_x, int64_t wanted):
        """Hold `out` against `x`; return the input to use, which is a copy where it must be."""
        cdef int64_t before_x, before_out
        cdef char *x = call.x.data
        cdef char *out = call.out.data
        if call.out.dtype != call.x.dtype:
            raise different_dtypes(call)
        if call.out.count != wanted:
            raise BufferError(
                f"out has {call.out.count} elements, and the result has {wanted}; they must be "
                f"equal"
            )
        if call.role.inputs == 0 or not overlap(&call.x, &call.out):
            return kept_x
        if call.kind == ALLTOALL:
            # No block stays where it is, so the input is read from a copy.
            if call.planned:
                raise BufferError(
                    "out overlaps x, and a planned alltoall reads x where it lies; pass arrays "
                    "that share no memory"
                )
            source = scratch_like(&call.x)
            memcpy(call.x.data, x, call.x.count * call.x.itemsize)
            return source
        before_x = call.role.first_input * call.part
        before_out = call.role.first_output * call.part
        if call.counts != NULL:
            before_x = self.elements(call.counts, call.role.first_input, 0)
            before_out = self.elements(call.counts, call.role.first_output, 0)
        if x - before_x * call.x.itemsize != out - before_out * call.x.itemsize:
            remedy = "out=x" if self.array_parts[call.kind] == 1 else (
                "x as the part of out that it becomes" if call.role.outputs > 1
                else "out as this rank's part of x"
            )
            raise BufferError(
                f"out overlaps x in part; pass {remedy}, or arrays that share no memory"
            )
        return kept_x

    cpdef int check_root(self, root) except -1:
        """Return the rank that `root` names."""
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
        cdef int64_t key = (call.root * 16 + call.kind) * 128 + bit_length(call.nbytes)
        if algorithm is not None and not isinstance(algorithm, str):
            raise ArgumentError(f"algorithm is {algorithm!r}, and must be a name or None")
        if call.ordered:
            key += 64
        if call.kind == ALLTOALL and call.counts != NULL:
            key = ~key
        full = key if algorithm is None else (key, algorithm)
        choice = self.choices.get(full)
        if choice is None:
            choice = self.choose(
                COLLECTIVES[call.kind], algorithm, call.nbytes, call.root, call.ordered,
                call.counts != NULL,
            )
            if call.kind == ALLTOALL and call.counts != NULL and has_workspace(choice):
                raise ArgumentError(
                    f"algorithm is {algorithm!r}, in which blocks pass through ranks that do not "
                    f"know their counts; alltoallv takes 'direct' or 'pairwise'"
                )
            self.choices[full] = choice
        return choice

    def forget_choices(self):
        """Ask `choose` again from now on."""
        self.choices.clear()

    cdef tuple scratch(self, Call *call, tuple keep):
        """Find memory for the scaled input: the output, or where that is smaller one of our own."""
        call.scaled = call.out
        if call.out.count != call.x.count:
            call.scaled = call.x
            return (*keep, scratch_like(&call.scaled))
        return keep

    cdef int overtake(self) except -1:
        """Wait for operations so old that their tags would soon be used again."""
        cdef Request request
        for each in list(live):
            request = each
            if request.engine is not self or request.op == NULL:
                continue
            if request.op.tag >= OPERATIONS * WINDOW:  # a message, with a tag of the caller's
                continue
            if self.sequence - request.op.number > OPERATIONS - 2 * LAP:
                request.wait()
        return 0

    cdef Operation *idle_operation(self) except NULL:
        """Return a recycled operation, or a new one."""
        cdef Operation *op = self.idle
        if op != NULL:
            self.idle = op.next
            return op
        op = <Operation *>calloc(1, sizeof(Operation))
        if op == NULL:
            raise MemoryError
        return op

    cdef int restart(self, Operation *op, int tag) except -1:
        """Put an operation at its start, under a tag or the next number of this communicator."""
        cdef int k
        if tag < 0:
            if self.sequence % LAP == 0:
                self.overtake()
            op.number = self.sequence
            op.tag = <int>(self.sequence % OPERATIONS) * WINDOW
            self.sequence += 1
            if self.segment is not None:
                self.enter_segment(op)
        else:
            op.tag = OPERATIONS * WINDOW + tag
        op.state.status = RUNNING
        op.record.tape = NULL
        op.record.wait = NULL
        op.record.label = -1
        op.record.idle = op.record.watched = 0
        op.state.live = op.window
        op.state.pending = 0
        op.shared.lent = 0
        op.failure.cause = NO_FAILURE
        op.state.has_warned = 0
        for k in range(op.window):
            op.state.cursors[k].segment = k
            op.state.cursors[k].round = 0
            op.state.cursors[k].step = 0
            op.state.cursors[k].posted = 0
            op.state.cursors[k].started = 0
            op.state.cursors[k].pending = 0
            op.state.cursors[k].pending_sends = 0
            op.state.cursors[k].awaited = -1

    cdef int enter_segment(self, Operation *op) except -1:
        """Put a call on record, and give an operation its pages."""
        cdef cc_segment *segment = &self.segment.c
        if self.spins < BRIEF:
            segment.ranks[segment.me].core = sched_getcpu()
        op.shared.call = segment.calls
        cc_begin_call(segment, op.shared.what, op.shared.said)
        if segment.shared.given_up:
            rank = self.segment.ranks[segment.shared.given_up - 1]
            self.broken = f"the communicator is broken: rank {rank} failed or gave up before"
            self.check_host()
        if op.shared.segment == NULL:
            return 0
        if op.shared.habit >= 0:
            op.shared.stores = cc_way(segment, op.shared.habit, op.shared.usual)
        op.shared.page = segment.next
        segment.next += op.layout.segments
        # An operation of many segments shares its few buffers with no other.
        op.shared.needed = op.shared.page if op.layout.segments > 1 else segment.blocked
        if op.layout.segments > 1:
            segment.blocked = segment.next
        return 0

    cdef int run(self, Operation *op, Plan plan, keep, double timeout) except -1:
        """Wait for an operation, most of the time without the GIL; look around at times."""
        cdef Status status = RUNNING
        cdef double start = 0
        cdef double looked
        cdef double began = now() if op.shared.habit >= 0 else 0
        cdef int i
        if op.plan.slots == 0 and op.nbytes < SMALL and op.fold.user == NULL and in_flight == NULL:
            # Not worth giving up the GIL.
            for i in range(BRIEF):
                status = advance(op)
                if status != RUNNING or self.spins < BRIEF:
                    break
                cc_pause()
        if status == RUNNING:
            start = now()
            with nogil:
                status = wait(op, False, self.polls(op), start + SLICE, False)
                if status == RUNNING:
                    start += stopped(start)
            while status == RUNNING:
                try:
                    PyErr_CheckSignals()
                    error = trouble(self, op, plan, now() - start, timeout)
                except BaseException:  # also a warning that is an error
                    self.abandon(op, plan, keep, "was interrupted in")
                    raise
                if error is not None:
                    self.abandon(op, plan, keep, how(error), error)
                    raise error
                with nogil:
                    looked = now()
                    status = wait(op, False, self.polls(op), looked + SLICE, op.plan.slots == 0)
                    start += stopped(looked)
        if status == FAILED:
            raise self.failure(op, plan, keep)
        if op.shared.habit >= 0 and op.shared.segment != NULL:
            cc_learn(
                op.shared.segment, op.shared.habit, op.shared.stores, (now() - began) / op.nbytes
            )
        if op.shared.call != NO_CALL:
            cc_end_call(&self.segment.c, op.shared.call)
        if op.record.label >= 0:
            end_record(self, op)
        return 0

    cdef int polls(self, const Operation *op) noexcept nogil:
        """Return how often a wait polls before it gives way to other processes."""
        return self.spins if op.plan.slots == 0 else self.patience

    def check_host(self):
        """Raise if a rank of this host has given up or died. Local."""
        if self.segment is not None:
            for rank, pid, in_order in self.segment.lost():
                if not in_order:
                    raise PeerLostError(f"rank {rank} (process {pid}) has died")
            self.segment.check_end()

    cdef int abandon(self, Operation *op, Plan plan, keep, str how, error=None) except -1:
        """Give an operation up: nobody may touch its memory again, as MPI still might."""
        with nogil:
            lock_in_flight()
            if op.state.status == RUNNING:
                fail(op, STALLED, 0, -1, 0)
            unlock_in_flight()
        lost.append((keep, self.segment))
        self.broken = f"the communicator is broken: rank {self.rank} {how} {title(plan)}"
        if self.segment is not None:
            why = f"it {how} {title(plan)}"
            if isinstance(error, PeerLostError):
                why = str(error)
            elif error is not None:
                why = f"{type(error).__name__}: {error}"
            self.segment.give_up(why, error)
        return 0

    cdef str describe(self, Call *call, op, Choice choice):
        """Return what a rank called, as the other ranks must have called it too."""
        cdef bint vector = call.counts != NULL
        parts = []
        if vector and call.kind != ALLTOALL:
            counts = [call.counts[r] for r in range(self.size)]
            if len(counts) > 8:
                counts = f"{sum(counts)} in all, checksum {hash(tuple(counts)) & 0xFFFFFFFF:08x}"
            parts.append(f"counts={counts}")
        if call.kind != BARRIER:
            if not vector:
                parts.append(f"count={call.part * self.array_parts[call.kind]}")
            parts.append(f"dtype={dtype_text(call.x.dtype)}")
        if self.reduces[call.kind] and call.kind != BARRIER:
            parts.append(f"op={op.name}")
        if self.rooted[call.kind]:
            parts.append(f"root={call.root}")
        parts.append(f"algorithm={choice.plan.source.algorithm.name}")
        if choice.segment:
            parts.append(f"segment={choice.segment}")
        if call.prescale != 1.0:
            parts.append(f"prescale={call.prescale:g}")
        if call.postscale != 1.0:
            parts.append(f"postscale={call.postscale:g}")
        return ", ".join(parts)

    cdef object failure(self, Operation *op, Plan plan, keep):
        """Return the exception for an operation that failed."""
        error = failure_of(self, op, plan)
        self.abandon(op, plan, keep, "failed in", error)
        return error
