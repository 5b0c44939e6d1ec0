# The engine of a communicator: what Python calls.
#
# A call checks its arguments into a C struct (checking.pxi), finds its plan (choice.pxi), and runs
# without the GIL (launch.pxi, running.pxi).

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
    cdef public object hosts  # None, or the name of each rank's host, if there are several
    cdef public object label  # tells the communicator from others in timelines
    cdef public str messages_by  # the family of the MPI
    cdef public object traced  # None, or what takes down each call that has ended
    cdef public object agree  # None, or what makes the ranks agree on a call before it starts
    cdef public object devices  # None, or what returns what runs calls whose arrays are on devices
    cdef public object ahead  # None, or what begins those of them that were started before
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

    def __cinit__(self, MPI, communicator, choose, double timeout, int patience, int spins):
        cdef int kind, at_root
        if isinstance(communicator, Context):
            self.comm = <uint64_t><uintptr_t>(<Context>communicator).c
        else:
            bind(MPI)
            self.comm = handle_of(MPI, communicator)
        self.rank = transport.rank(self.comm)
        self.size = transport.size(self.comm)
        self.choose = choose
        self.choices = {}
        self.timeout = timeout
        self.patience = patience
        self.spins = spins
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

    def share(self, Segment segment):
        """Use a segment from now on, or with None none. Local, but all ranks must do it at once."""
        self.segment = segment

    def __enter__(self):
        """Keep other threads out of the communicator; this one may make calls inside."""
        check_caller()
        enter(&self.queue)
        self.held = True
        return self

    def __exit__(self, *error):
        self.held = False
        leave(&self.queue)

    cdef bint is_elsewhere(self, int rank):
        """Return whether a rank is on another host. Local."""
        return self.hosts is not None and rank >= 0 and self.hosts[rank] != self.hosts[self.rank]

    cpdef int check_whole(self) except -1:
        """Raise CommunicatorError if the communicator is broken or freed. Local."""
        if self.broken is not None:
            raise told(self, CommunicatorError(self.broken))
        return 0

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
        cdef Choice choice = None
        cdef tuple keep
        cdef str text = None
        call.kind = kind
        call.planned = False
        call.timeout = COMMON
        check_caller()
        self.check_whole()
        if self.agree is None:
            if timeout is not None:
                call.timeout = seconds(timeout)
            if PyArray_CheckExact(x):
                keep = check(self, &call, x, out, op, root, prescale, postscale)
            else:
                keep = check_here(self, &call, x, out, op, root, prescale, postscale)
            if keep is not None:
                choice = choice_for(self, &call, algorithm)
        else:
            try:
                if timeout is not None:
                    call.timeout = seconds(timeout)
                keep = check_here(self, &call, x, out, op, root, prescale, postscale)
                if keep is not None:
                    choice = choice_for(self, &call, algorithm)
                    text = description(self, &call, op, choice)
            except Exception as error:
                refuse(self, COLLECTIVES[kind], error, call.timeout)
                raise
        if keep is None:
            return self.devices().call(
                self, kind, x, out, op, root, algorithm, timeout, prescale, postscale, blocking
            )
        return launch(self, &call, choice, keep, blocking, text)

    def call_vector(
        self, int kind, x, out, op, root, algorithm, timeout, prescale, postscale, bint blocking,
        const int64_t[::1] counts, const int64_t[::1] receive_counts, shape,
        const int64_t[::1] displs=None, const int64_t[::1] receive_displs=None, before=None,
    ):
        """Run the vector form of a collective, in which each part has a count of its own.

        `counts` has one for each rank; those of an alltoall are sent and there are others that are
        received. A new result has `shape`. `displs` and `receive_displs` say where the parts of `x`
        and `out` begin. `before` is None, or a request that has to be complete, too, and what
        returns the result then.
        """
        cdef Call call
        cdef Choice choice = None
        cdef tuple keep = None
        cdef str text = None
        call.kind = kind
        call.planned = False
        call.timeout = COMMON
        check_caller()
        self.check_whole()
        call.counts = &counts[0]
        call.receive_counts = &receive_counts[0]
        try:
            keep = check_vector(
                self, &call, x, out, op, root, timeout, prescale, postscale, shape, displs,
                receive_displs,
            )
            if before is not None:
                keep = (pending_place(keep[0], before[1], before[0]), *keep)
            choice = choice_for(self, &call, algorithm)
        except Exception as error:
            if not is_for_devices(self, error):
                if self.agree is not None:
                    refuse(self, COLLECTIVES[kind] + "v", error, call.timeout)
                raise
        if keep is None:
            return self.devices().call(
                self, kind, x, out, op, root, algorithm, timeout, prescale, postscale, blocking,
                (counts, receive_counts, shape, displs, receive_displs, before),
            )
        if self.agree is not None:
            text = description(self, &call, op, choice)
        return launch(self, &call, choice, keep, blocking, text)

    def tell_counts(self, int kind, counts, root):
        """Start to give the root's counts of a vector form to all ranks; return a Request."""
        cdef Call call
        cdef Choice choice
        cdef Request request
        cdef tuple keep
        cdef str text = None
        call.kind = BROADCAST
        call.planned = False
        call.timeout = COMMON
        check_caller()
        self.check_whole()
        keep = check(self, &call, counts, counts, None, root, 1.0, 1.0)
        call.announced = kind + 1
        choice = choice_for(self, &call, None)
        if self.agree is not None:
            text = description(self, &call, None, choice)
        request = launch(self, &call, choice, keep, False, text)
        request.aside = True
        return request

    def verify(self, int kind, x, op, algorithm, prescale=1.0, postscale=1.0):
        """Raise what a call with these arguments would raise before it sends anything."""
        cdef Call call
        call.kind = kind
        call.planned = False
        check(self, &call, x, None, op, 0, prescale, postscale)
        choice_for(self, &call, algorithm)

    def inspect(
        self, int kind, Span x, Span out, op, root, algorithm, prescale, postscale,
        const int64_t[::1] counts=None, const int64_t[::1] receive_counts=None, shape=None,
    ):
        """Check a call whose arrays are on a device; return what it is. Local.

        With `counts` it is a vector form, whose new result has `shape`.

        Returns
        -------
        (int, Span or None, str, bool)
            The elements of a part, the result, what the ranks agree on, and whether no message is
            sent.
        """
        cdef Call call
        cdef Choice choice
        cdef tuple keep
        call.kind = kind
        call.planned = False
        if counts is None:
            keep = check(self, &call, x, out, op, root, prescale, postscale)
        else:
            call.counts = &counts[0]
            call.receive_counts = &receive_counts[0]
            keep = check_vector(
                self, &call, x, out, op, root, None, prescale, postscale, shape, None, None
            )
        choice = choice_for(self, &call, algorithm)
        call.whole = 0
        shared = choice.plan.whole.slots == choice.plan.split.slots == 0
        return call.part, keep[0], description(self, &call, op, choice), shared

    def call_piece(
        self, int kind, Span x, Span out, op, root, algorithm, timeout, prescale, postscale,
        bint blocking, int64_t whole, const int64_t[::1] counts=None,
        const int64_t[::1] receive_counts=None, on=None,
    ):
        """Run a piece of a call on a device, which has `whole` elements, in host memory; return a
        Request where it is not `blocking`.

        With `on` it is the whole call, in the memory of the device: that object enqueues what it
        does (`executor/device.pxi`).
        """
        cdef Call call
        cdef Choice choice
        cdef Request request
        cdef tuple keep
        call.kind = kind
        call.planned = False
        check_caller()
        self.check_whole()
        if counts is None:
            call.timeout = deadline_of(timeout)
            keep = check(self, &call, x, out, op, root, prescale, postscale)
        else:
            call.counts = &counts[0]
            call.receive_counts = &receive_counts[0]
            keep = check_vector(
                self, &call, x, out, op, root, timeout, prescale, postscale, (), None, None
            )
        call.whole = whole
        if on is not None:
            call.device = <void *>on
            keep = *keep, on
        choice = choice_for(self, &call, algorithm)
        made = launch(self, &call, choice, keep, blocking, None)
        if not blocking:
            request = made
            request.aside = True
            return request
        return None

    def plan(self, int kind, x, out, op, root, algorithm, prescale=1.0, postscale=1.0):
        """Return a collective with its arguments checked and its memory reserved."""
        cdef PlannedCall planned = PlannedCall.__new__(PlannedCall)
        cdef Call *call = &planned.call
        check_caller()
        self.check_whole()
        call.kind = kind
        call.planned = True
        planned.engine = self
        planned.keep = check_here(self, call, x, out, op, root, prescale, postscale)
        if planned.keep is None:
            return self.devices().plan(
                self, kind, x, out, op, root, algorithm, prescale, postscale
            )
        planned.choice = choice_for(self, call, algorithm)
        if planned.choice.settled is not None:
            planned.choice = planned.choice.settled
        planned.text = description(self, call, op, planned.choice)
        if type(planned.keep[0]) is Pending:
            raise BufferError(
                f"x is a {frameworks.LABELS[kind_of(type(x)).framework]}, and so its result would "
                f"be, which is immutable: no second run could write it; pass a NumPy array as out"
            )
        planned.title = title(planned.choice.plan)
        planned.prepare()
        return planned

    def announce(self, str making, record, out, timeout=None):
        """Say to all ranks that this one makes something next: one of MAKINGS. Collective.

        The `record` of each rank, an array of bytes, arrives in a row of `out`.
        """
        cdef Call call
        cdef Choice choice
        cdef tuple keep
        call.kind = ALLGATHER
        call.planned = False
        call.timeout = deadline_of(timeout)
        check_caller()
        self.check_whole()
        keep = check(self, &call, record, out, None, 0, 1.0, 1.0)
        call.announced = KINDS + 1 + MAKINGS.index(making)
        choice = choice_for(self, &call, None)
        launch(self, &call, choice, keep, True, None if self.agree is None else "")

    def compressed(self, x, out, op, prescale, postscale):
        """Check the arguments of an allreduce that is compressed; return its arrays. Local."""
        cdef Compressed made = Compressed.__new__(Compressed)
        cdef Call *call = &made.call
        call.kind = ALLREDUCE
        call.planned = False
        call.timeout = COMMON
        made.keep = check(self, call, x, out, op, 0, prescale, postscale)
        made.set_up(op)
        return made

    def exchange(self, Plan plan, x, out, int tag, timeout, bint blocking, cut, result=None):
        """Send `x`, receive `out`, or do both, as the plan says. The result is `out`, or `result`.

        Other threads are not kept out: one may send what another waits for. What is too large for
        one message goes by another plan, `cut(sends, receives)`, whose messages are posted at once,
        so that none of a later call comes between them.
        """
        cdef Call call
        cdef int64_t counts[2]
        cdef int64_t[::1] pieces
        cdef int64_t most
        cdef tuple keep
        check_caller()
        self.check_whole()
        call.timeout = deadline_of(timeout)
        keep = check_messages(&call, x, out)
        if out is None:
            keep = (result, *keep)
        set_messages(&call, x is not None, counts)
        most = self.longest // call.x.itemsize
        if call.x.count > most or call.out.count > most:
            sent = [] if x is None else cut_into(call.x.count, most)
            received = [] if out is None else cut_into(call.out.count, most)
            plan = cut(len(sent), len(received))
            pieces = array("q", sent + received)
            call.counts = &pieces[0]
        return launch_messages(self, &call, plan, keep, tag, blocking)

    cdef inline double deadline(self, double timeout) noexcept:
        """Return the seconds that a call may wait."""
        return self.timeout if timeout == COMMON else timeout

    def check_root(self, root):
        """Return the rank that `root` names. Local."""
        return root_of(self, root)

    def forget_choices(self):
        """Ask `choose` again from now on."""
        self.choices.clear()

    cdef int polls(self, const Operation *op) noexcept nogil:
        """Return how often a wait polls before it gives way to other processes."""
        return self.spins if op.plan.slots == 0 else self.patience

    def check_host(self, str doing="waits for it"):
        """Raise if a rank of this host has given up, or died while this one is `doing` something.
        Local.
        """
        if self.segment is not None:
            for rank, pid, in_order in self.segment.lost():
                if not in_order:
                    raise PeerLostError(
                        f"rank {rank} (process {pid}) has died while rank {self.rank} {doing}"
                    )
            self.segment.check_end()
