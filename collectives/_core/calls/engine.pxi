# The engine of a communicator, which Python calls.
#
# A call checks its arguments into a C struct (checking.pxi), finds its plan (choice.pxi), and runs
# without the GIL (launch.pxi, running.pxi).

cdef enum:
    ANY_FRAME = 1  # is the number of none


@cython.final
cdef class Engine:
    cdef readonly int rank, size
    cdef public double timeout  # seconds
    cdef public int mpi_polls  # polls of MPI before a wait yields
    cdef readonly int spins  # polls of shared memory before a wait yields
    cdef readonly int stores  # of payloads: 0 by measurement, 1 to the cache, 2 past it
    cdef public double warning  # seconds after which a wait issues a warning
    cdef readonly Segment segment  # or None
    cdef public int64_t longest  # bytes of one message between two ranks; longer ones are cut
    cdef readonly object hosts  # None, or the name of each rank's host, if there are several
    cdef readonly object label  # the name of the communicator in timelines
    cdef uint32_t place  # in the flight recorder
    cdef double told  # the seconds of its wait when that was last told there
    cdef str messages_by  # the family of the MPI library
    cdef public object traced  # None, or a function that records each call that has ended
    cdef public object agree  # None, or a function with which ranks agree on a call
    cdef public object exact  # the object for calls of SUM_REPRODUCIBLE: calls/exact_sums.py
    cdef readonly object devices  # a function that returns the object for calls on devices
    cdef public object ahead  # None, or a function that begins started calls on devices
    cdef readonly str bits  # the mode of calls without their own bits
    cdef public str broken  # the reason why the communicator cannot be used, or None
    cdef public object converts  # None, or a function that returns the error to raise for another
    cdef public object started  # None, or a function that gets each request of the program
    cdef public object alone  # a function that returns advice for a program of one rank
    cdef int64_t starts  # nonblocking calls of the program
    cdef const cc_transport *transport
    cdef uint64_t comm  # its handle for the transport
    cdef object communicator  # whose handle it is
    cdef object choose
    cdef dict choices
    cdef dict courses  # of the classes of calls that may learn
    cdef list counts  # for each kind, the last ones of a vector form, sent and received
    cdef uint64_t counted  # from 1, the state of these
    cdef int boards  # of the segment, in use by these
    cdef int attention
    cdef int64_t lost_cores  # when the last trial began, or -1
    cdef Course eager  # the course of the last call since settle() began
    cdef Operation *idle
    cdef list last  # for each kind and bit length, the last complete call, or None
    cdef Call spare  # to be used for the next call, or None
    cdef uint64_t stamps  # calls that became the last of their class
    cdef int era  # the number of times after which plans or memory may be others
    cdef unsigned int sequence
    cdef Queue queue
    cdef int held  # how often the thread inside has entered by `with`
    cdef uintptr_t program  # the frame of the program that did, or ANY_FRAME
    cdef void *within  # the innermost frame then
    # The calls by call_plain() that have run, for each kind, then those by vector_plain().
    cdef readonly ndarray plain_calls
    cdef int64_t *plain
    cdef char token[2]
    # The table of roles: of collectives and messages; those between neighbours have rows elsewhere.
    cdef Contract contracts[<int>KINDS + 3]

    def __cinit__(
        self, MPI, communicator, choose, devices, Segment segment, hosts, label, str messages_by, *,
        double timeout, double warning, int mpi_polls, int spins, int stores, str bits=modes.ANY,
    ):
        cdef int kind
        if isinstance(communicator, Context):
            self.transport = &cc_mail_transport
            self.comm = <uint64_t><uintptr_t>(<Context>communicator).c
        else:
            bind(MPI)
            self.transport = transport
            self.comm = handle_of(MPI, communicator)
        self.communicator = communicator
        self.rank = self.transport.rank(self.comm)
        self.size = self.transport.size(self.comm)
        self.choose = choose
        self.choices = {}
        self.courses = {}
        self.counts = [None] * (2 * KINDS)
        self.counted = 1
        self.last = [None] * CLASSES
        self.attention = ATTENTIVE
        self.devices = devices
        self.segment = segment
        self.hosts = hosts
        self.label = label
        self.messages_by = messages_by
        self.timeout = timeout
        self.warning = warning
        self.mpi_polls = mpi_polls
        self.spins = spins
        if spins < BRIEF:
            global crowded
            crowded = True
        self.stores = stores
        self.bits = bits
        self.longest = MAX_PIECE
        self.plain_calls = numpy.zeros(2 * KINDS, numpy.int64)
        self.plain = <int64_t *>PyArray_DATA(self.plain_calls)
        self.contracts[<int>EXCHANGE].overlap = APART
        for kind, name in enumerate(COLLECTIVES):
            self.agree_on(&self.contracts[kind], kind, spec.COLLECTIVES[name])

    cdef int agree_on(self, Contract *mine, int kind, contract) except -1:
        """Fill a row of the table of roles with the contract of a collective."""
        mine.array_parts = contract.per_array(self.size)
        mine.rooted, mine.reduces = contract.rooted, contract.reduces
        if len(contract.inputs(1, 2, 1)) != len(contract.outputs(1, 2, 1)):
            mine.form = STACKED if kind == ALLGATHER or kind == GATHER else ROWS
        mine.overlap = COPIED if kind == ALLTOALL else IN_PLACE
        for at_root in range(2):
            place = self.rank, self.size, self.rank if at_root else -1
            given, got = contract.inputs(*place), contract.outputs(*place)
            mine.roles[at_root] = Role(
                len(given), 0 if kind == ALLTOALL else given.start,
                len(got), 0 if kind == ALLTOALL else got.start, len(given) > 0, len(got) > 0,
            )
        return 0

    def __dealloc__(self):
        self.describe(b"")
        cdef Operation *op = self.idle
        cdef Operation *after
        while op != NULL:
            after = op.next
            release(op)
            op = after

    def give_up(self, str text, error=None):
        """Make the other ranks raise PeerAbortedError, or the like, with a text; those of other
        hosts only with messages of a `Mail`. Local.
        """
        cdef bytes words
        if forked:  # the communicator is the parent's
            return
        if self.segment is not None:
            self.segment.give_up(text, error)
        if self.has_mail() and self.hosts is not None:
            words = words_of(text, error)
            cc_mail_give_up(<const cc_context *><uintptr_t>self.comm, words, len(words))

    cpdef describe(self, bytes text):
        """Set the description of the ranks in the flight recorder, JSON; without one, their calls
        have no place of their own there any more. Local.
        """
        cdef cc_flight_place *place
        cdef uint32_t i = 1
        if self.place and not forked:
            place = &flight.places[self.place]
            cc_flight_say(place, place.about, CC_F_ABOUT, b"")
        self.place = 0
        while i < CC_F_PLACES and flight.places[i].about[0]:
            i += 1
        if not text or len(text) >= CC_F_ABOUT or i == CC_F_PLACES:
            return
        self.place = i
        place = &flight.places[i]
        place.first = flight.made
        place.calls = place.awaited = 0
        cc_flight_say(place, place.wait, CC_F_TEXT, b"")
        cc_flight_say(place, place.about, CC_F_ABOUT, text)

    def leave_segment(self):
        """Use no shared memory from now on. Local, but all ranks must do it at the same call."""
        self.segment = None
        self.era += 1

    def __enter__(self):
        """Keep other threads and signal handlers out; this call may make others, and enter again.
        """
        check_caller()
        self.enter_unless_inside()
        self.hold()
        return self

    def __exit__(self, *error):
        self.held -= 1
        if self.held == 0:
            leave(&self.queue)

    cdef int hold(self) except -1:
        """Let the call that is inside make others, until `held` is decreased."""
        if self.held == 0:
            self.program = calling_frame()
            self.within = PyEval_GetFrame()
        self.held += 1
        return 0

    def admit_program(self):
        """Let functions of the program make calls for the one that has entered by `with`. Local.
        """
        self.program = ANY_FRAME

    cdef inline bint has_mail(self) noexcept:
        """Return whether messages go by a `Mail`, and not by MPI. Local."""
        return self.transport == &cc_mail_transport

    cdef bint is_elsewhere(self, int rank):
        """Return whether a rank is on another host. Local."""
        return self.hosts is not None and rank >= 0 and self.hosts[rank] != self.hosts[self.rank]

    cpdef int check_usable(self) except -1:
        """Raise CommunicatorError if the communicator is broken or freed. Local."""
        if self.broken is not None:
            raise told(self, CommunicatorError(self.broken))
        return 0

    cdef bint enter_unless_inside(self) except -1:
        """Become the one thread inside; return whether the call is part of one that is inside, and
        not of a function that runs in the middle of it, such as a signal handler.
        """
        if self.held and self.queue.owner == pthread_self():
            if self.within == PyEval_GetFrame() or self.program == ANY_FRAME:
                return True
            if self.program == calling_frame():
                return True
        enter(&self.queue)
        return False

    def call(
        self, int kind, x, out, op, root, algorithm, timeout=None, prescale=1.0, postscale=1.0,
        bint blocking=True, bits=None,
    ):
        """Run a collective; return its result, or a Request if it is not `blocking`."""
        cdef Call call
        cdef tuple keep
        if is_exact(op) and self.contracts[kind].reduces:
            return self.exact.call(
                self, kind, x, out, op, root, algorithm, bits, timeout, prescale, postscale,
                blocking, None,
            )
        call = open_call(self, kind, blocking, algorithm, bits)
        if self.agree is None and (kind == BARRIER or PyArray_CheckExact(x)):
            call.given.timeout = deadline_of(timeout)
            keep = take(self, &call.given, x, out, op, root, prescale, postscale)
            choose_for(self, call)
            return launch(self, call, keep, None)
        return self.try_call(call, x, out, op, root, timeout, prescale, postscale, None)

    def barrier(self, algorithm, timeout):
        """Run a barrier: a `call` without the arguments that a barrier does not have."""
        cdef Call call
        if self.agree is not None:
            return self.call(BARRIER, None, None, None, 0, algorithm, timeout)
        call = open_call(self, BARRIER, True, algorithm, None)
        call.given.timeout = deadline_of(timeout)
        token_arrays(self, &call.given)
        choose_for(self, call)
        return launch(self, call, NOTHING_KEPT, None)

    def call_plain(self, int kind, x, out, Reduction op, int root, bint blocking=True):
        """Run a collective as MPI would, if the arrays can be used in place. Return False if not;
        otherwise True, or a Request if the call is not `blocking`.
        """
        cdef Call call
        cdef const Role *role
        cdef tuple keep
        if not 0 <= root < self.size:
            return False
        if kind == BARRIER:
            if not blocking:
                return self.call(BARRIER, None, None, None, 0, None, blocking=False)
            self.barrier(None, None)
            self.plain[<int>BARRIER] += 1
            return True
        role = &self.contracts[kind].roles[root == self.rank]
        x = array_of(x, role.inputs) if role.inputs else None
        out = array_of(out, role.outputs) if role.outputs else None
        if self.agree is not None or not fits_plainly(self, kind, role, x, out, op):
            return False
        call = open_call(self, kind, blocking, None, None)
        call.given.in_bytes = not self.contracts[kind].reduces
        keep = take(self, &call.given, x, out, op, root, 1.0, 1.0)
        choose_for(self, call)
        result = launch(self, call, keep, None)
        if not blocking:
            return result
        self.plain[kind] += 1
        return True

    def vector_plain(self, int kind, x, out, int root=0, counts=None, Reduction op=None):
        """Run a vector form as MPI would, as call_plain() does. The buffer specifications have the
        counts, but those of a reduce_scatter are apart.
        """
        cdef Call made
        cdef Arguments *call
        cdef tuple keep
        cdef list kept = []
        cdef bint fits
        if self.agree is not None or not 0 <= root < self.size:
            return False
        made = open_call(self, kind, True, None, None)
        call = &made.given
        call.in_bytes = kind != REDUCE_SCATTER
        call.own_only = self.contracts[kind].rooted
        call.knows_all = call.own_only and root == self.rank
        if kind == REDUCE_SCATTER:
            x, out = array_of(x, 1), array_of(out, 1)
            fits = folds_parts(self, call, x, out, counts, op, kept)
        elif call.own_only and root != self.rank:
            x = array_of(x, 1) if kind == GATHER else None
            out = array_of(out, 1) if kind == SCATTER else None
            fits = own_part_fits(self, call, out if x is None else x, kept)
        else:
            is_cut = kind == ALLTOALL or kind == SCATTER
            x = plain_parts(self, call, x, False, kept) if is_cut else array_of(x, 1)
            out = array_of(out, 1) if kind == SCATTER else plain_parts(
                self, call, out, True, kept
            )
            fits = x is not None and out is not None and parts_fit(
                self, call, out if is_cut else x
            )
        if not fits:
            return False
        keep = take(self, call, x, out, op, root, 1.0, 1.0)
        choose_for(self, made)
        launch(self, made, keep, None)
        self.plain[KINDS + kind] += 1
        return True

    def vector_alone(self, int kind, x, out, int root, counts=None, displs=None):
        """Run a gatherv or a scatterv whose counts only the root knows: the block of another rank
        is its whole array.
        """
        cdef Call call = open_call(self, kind, True, None, None)
        cdef Parts parts = block_parts(self, &call.given, x, out, root == self.rank, counts, displs)
        parts.receive_counts = parts.counts
        take_parts(&call.given, parts)
        return self.try_call(call, x, out, None, root, None, 1.0, 1.0, parts)

    def vector(
        self, int kind, x, out, counts, receive_counts, displs, receive_displs, algorithm=None,
        timeout=None, root=0, op=None, prescale=1.0, postscale=1.0, bint blocking=True, bits=None,
    ):
        """Run the vector form of a collective with the caller's counts and displacements; return
        its result, or a Request if it is not `blocking`.
        """
        cdef bint rooted = self.contracts[kind].rooted
        cdef bint asks = (  # whether the ranks make another call before, or may have to
            rooted or counts is None or self.agree is not None
            or kind == ALLTOALL and receive_counts is None
        )
        cdef bint inside = False
        cdef bint holds = False
        made = NOT_HERE
        if asks:
            check_caller()
            inside = self.enter_unless_inside()
        try:
            if rooted and algorithm is None and have_pages(self):
                made = with_blocks(
                    self, kind, x, out, root_of(self, root), counts,
                    receive_displs if kind == GATHER else displs, timeout, blocking,
                )
            if made is not NOT_HERE and made is not UNTOLD:
                return made
            if asks:
                self.hold()
                holds = True
            parts = parts_of(
                self, kind, x, out, root, counts, receive_counts, displs, receive_displs, timeout,
                blocking, made is UNTOLD,
            )
            return self.call_vector(
                kind, x, out, op, root, algorithm, bits, timeout, prescale, postscale, blocking,
                parts,
            )
        finally:
            self.held -= holds
            if asks and not inside:
                leave(&self.queue)

    cpdef object call_vector(
        self, int kind, x, out, op, root, algorithm, bits, timeout, prescale, postscale,
        bint blocking, Parts parts,
    ):
        """Run the vector form of a collective whose counts all ranks know."""
        cdef Call call
        if is_exact(op):
            return self.exact.call(
                self, kind, x, out, op, root, algorithm, bits, timeout, prescale, postscale,
                blocking, parts,
            )
        call = open_call(self, kind, blocking, algorithm, bits)
        take_parts(&call.given, parts)
        return self.try_call(call, x, out, op, root, timeout, prescale, postscale, parts)

    cdef object try_call(
        self, Call made, x, out, op, root, timeout, prescale, postscale, Parts parts
    ):
        """Run a call on a device, or one whose refusal the other ranks must learn of."""
        cdef Arguments *call = &made.given
        cdef tuple keep = None
        cdef str text = None
        try:
            call.timeout = deadline_of(timeout)
            keep = take(self, call, x, out, op, root, prescale, postscale)
            choose_for(self, made)
            if self.agree is not None:
                text = description(self, made, op)
        except Exception as error:
            if call.kind >= NEIGHBORS and is_for_devices(error):
                error = not_on_devices(call)
            if not is_for_devices(error):
                if self.agree is not None:
                    refuse(self, name_of(call), error, call.timeout)
                raise error
        if keep is None:
            return self.devices().call(
                self, call.kind, x, out, op, root, made.algorithm, made.bits, timeout, prescale,
                postscale, call.blocking, parts,
            )
        if parts is not None and parts.after is not None:
            keep = (pending_place(keep[0], parts.after, parts.before), *keep)
        return launch(self, made, keep, text)

    def announce(self, str making, record, out, timeout=None):
        """Announce one of MAKINGS to all ranks. Collective.

        The `record` of each rank, an array of bytes, arrives in a row of `out`.
        """
        cdef Call call
        call = open_call(self, ALLGATHER, True, None, None)
        call.given.timeout = deadline_of(timeout)
        call.given.announced = KINDS + 1 + MAKINGS.index(making)
        announce(self, call, record, out, 0)

    def inspect(
        self, int kind, x, out, op, root, algorithm, bits, prescale, postscale, Parts parts=None
    ):
        """Check a call, whose arrays may be Spans of a device; return its properties. Local.

        Returns
        -------
        (int, array or None, str, bool)
            The elements of a part, the result, the text that ranks agree on, and whether no message
            is sent.
        """
        cdef Call call
        cdef Plan plan
        cdef tuple keep
        call = open_call(self, kind, True, algorithm, bits)
        call.given.exact = type(x) is not Span
        if parts is not None:
            take_parts(&call.given, Parts(parts.counts, parts.receive_counts))
        keep = take(self, &call.given, x, out, op, root, prescale, postscale)
        choose_for(self, call)
        call.given.whole = 0
        plan = call.choice.plan
        shared = plan.whole.slots == plan.split.slots == 0
        return call.given.part, keep[0], description(self, call, op), shared

    def call_piece(
        self, int kind, Span x, Span out, op, root, algorithm, bits, timeout, prescale, postscale,
        bint blocking, int64_t whole, counts=None, receive_counts=None, on=None,
    ):
        """Run a piece of a call on a device, which has `whole` elements, in host memory; return a
        Request if it is not `blocking`.

        With `on` it is the whole call, in the memory of the device: the object `on` enqueues its
        steps (`executor/device.pxi`).
        """
        cdef Call call
        cdef tuple keep
        call = open_call(self, kind, blocking, algorithm, bits)
        if counts is not None:
            take_parts(&call.given, Parts(counts, receive_counts))
        call.given.timeout = deadline_of(timeout)
        keep = take(self, &call.given, x, out, op, root, prescale, postscale)
        call.given.whole = whole
        if on is not None:
            call.given.device = <void *>on
            keep = *keep, on
        choose_for(self, call)
        return launch_aside(self, call, keep, None)

    def neighbors(self, Neighbors at, x, out, timeout=None, bint blocking=True, Parts parts=None):
        """Run a collective between neighbours; return its result, or a Request if it is not
        `blocking`.
        """
        cdef Call call = near_call(self, at, blocking)
        if parts is not None:
            take_parts(&call.given, parts)
        return self.try_call(call, x, out, None, 0, timeout, 1.0, 1.0, parts)

    def neighbors_plain(self, Neighbors at, x, out, bint blocking=True):
        """Run a collective between neighbours as MPI would, as call_plain() does."""
        cdef Call call
        cdef const Role *role = &at.contract.roles[0]
        cdef tuple keep
        if self.agree is not None or not role.inputs or not role.outputs:
            return False
        x, out = array_of(x, role.inputs), array_of(out, role.outputs)
        if not is_plain(x, False, False) or not is_plain(out, True, False):
            return False
        if not lengths_fit(role, x, out):
            return False
        call = near_call(self, at, blocking)
        call.given.in_bytes = True
        keep = take(self, &call.given, x, out, None, 0, 1.0, 1.0)
        choose_for(self, call)
        result = launch(self, call, keep, None)
        return True if blocking else result

    def plan_neighbors(self, Neighbors at, x, out):
        """Return a collective between neighbours with its arguments checked."""
        cdef Call made = near_call(self, at, True)
        cdef Arguments *call = &made.given
        cdef tuple keep
        call.planned = True
        try:
            keep = take(self, call, x, out, None, 0, 1.0, 1.0)
        except BufferError as error:
            raise not_on_devices(call) if is_for_devices(error) else error
        if type(keep[0]) is Pending:
            raise immutable_result(x)
        choose_for(self, made)
        return planned_call(self, made, keep, description(self, made, None))

    def plan(self, int kind, x, out, op, root, algorithm, bits=None, prescale=1.0, postscale=1.0):
        """Return a collective with its arguments checked and its memory reserved."""
        cdef Call made = open_call(self, kind, True, algorithm, bits)
        cdef Arguments *call = &made.given
        cdef bint exact = is_exact(op) and self.contracts[kind].reduces
        cdef tuple keep = None
        call.planned = True
        call.exact = exact
        if exact:
            self.exact.check_numbers(x)
        try:
            keep = take(self, call, x, out, op, root, prescale, postscale)
        except BufferError as error:
            if not is_for_devices(error):
                raise
        if keep is None:
            return self.devices().plan(
                self, kind, x, out, op, root, algorithm, bits, prescale, postscale
            )
        if exact:
            sum_at_once(self, call)
        choose_for(self, made)
        if type(keep[0]) is Pending:
            raise immutable_result(x)
        if call.prescale != 1.0:
            keep = place_scaled(call, keep)
        return planned_call(self, made, keep, description(self, made, op))

    def compressed(self, x, out, op, prescale, postscale):
        """Check the arguments of a compressed allreduce; return its arrays. Local."""
        cdef Compressed made = Compressed.__new__(Compressed)
        made.call = open_call(self, ALLREDUCE, True, None, None)
        made.keep = take(self, &made.call.given, x, out, op, 0, prescale, postscale)
        made.set_up(op)
        return made

    @property
    def compares_messages(self):
        """True if messages tell their dtype, and their receiver compares it."""
        return self.has_mail()

    def exchange(
        self, Choice choice, x, out, int tag, timeout, bint blocking, cut, result=None, then=None,
    ):
        """Send `x`, receive `out`, or do both, by the plan. The result is `out`, or `result`; with
        `then`, a request that must be complete, too, it is that of its method ``place``.

        Other threads are not kept out: one may send a message that another waits for. An array that
        is too large for one message goes by another plan, `cut(sends, receives)`, whose messages
        are posted at once, so that no message of a later call comes between them.
        """
        cdef Call made
        cdef Arguments *call
        cdef int64_t counts[2]
        cdef int64_t[::1] pieces
        cdef int64_t most
        cdef tuple keep
        made = open_call(self, EXCHANGE, blocking, None, None)
        call = &made.given
        call.tag = tag
        call.timeout = deadline_of(timeout)
        keep = take(self, call, x, out, None, 0, 1.0, 1.0)
        if out is None:
            keep = (result, *keep)
        if then is not None:
            keep = (pending_place(keep[0], then.place, then), *keep)
        call.nbytes = max(call.x.count, call.out.count) * call.x.itemsize
        counts[0] = call.out.count if x is None else call.x.count
        counts[1] = call.out.count
        call.counts = counts
        most = self.longest // call.x.itemsize
        if call.x.count > most or call.out.count > most:
            sent = [] if x is None else cut_into(call.x.count, most)
            received = [] if out is None else cut_into(call.out.count, most)
            choice = cut(len(sent), len(received))
            pieces = array("q", sent + received)
            call.counts = &pieces[0]
        if not blocking:
            make_room()
        prepare(self, made, choice, keep)
        return begin(self, made, keep)

    cdef inline double deadline(self, double timeout) noexcept:
        """Return the seconds that a call may wait."""
        return self.timeout if timeout == COMMON else timeout

    def check_root(self, root):
        """Return the rank that `root` names. Local."""
        return root_of(self, root)

    def forget_choices(self):
        """Ask `choose` again from now on."""
        self.choices.clear()
        self.era += 1

    def settle(self, call):
        """Repeat a collective until its class has learned its fastest setting; then make no trials
        until rest() ends. Collective.
        """
        cdef Course course
        cdef int calls = 0
        self.eager = None
        self.attention = EAGER
        for course in self.courses.values():
            if not course.trying and course.board != NULL:
                course.wait(1)
        try:
            while calls <= WARM or self.eager is not None and not self.eager.is_settled():
                call()
                calls += 1
        finally:
            self.attention = RESTING

    def rest(self, bint rests):
        """Stop trials, or make those that pay again. Local, but all ranks must do the same."""
        self.attention = RESTING if rests else ATTENTIVE

    cdef int polls(self, const Operation *op) noexcept nogil:
        """Return the number of polls of a wait before it yields to other processes."""
        return self.mpi_polls if has_messages(op) else self.spins

    def name_file(self, error):
        """Write the last calls of the ranks of this host for an error that was found outside of a
        call here, and name the file in it. Local.
        """
        name_file(self, error, error_text(error))

    def check_host(self, str doing="waits for it"):
        """Raise if a rank has given up, or one of this host has died while this one is `doing`
        something. Local.
        """
        if self.has_mail() and self.hosts is not None:
            watch_connections()
            check_words(self, False)
        if self.segment is not None:
            for rank, pid, in_order in self.segment.lost():
                if not in_order:
                    raise PeerLostError(
                        f"rank {rank} (process {pid}) has died while rank {self.rank} {doing}"
                    )
            try:
                self.segment.check_end()
            except CollectivesError as error:
                raise told(self, error)
