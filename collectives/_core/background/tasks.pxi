# Tasks: checked calls that wait for their turn, and bundles of tasks that run as one.


cdef class Task:
    """A collective whose arguments are checked, and whose result has its memory. It is started
    later: whole, in pieces, or as a part of a `Bundle`.

    ``signature`` is not 0, and equal on ranks whose tasks have the same name, arguments and
    priority, and the same `terms` and `bits`. The public attributes are for the background engine.
    """

    cdef Engine engine
    cdef Call call
    cdef tuple keep
    cdef object op
    cdef readonly str name, terms
    cdef readonly uint64_t signature
    cdef readonly int64_t nbytes  # of the whole array, equal on all ranks
    cdef readonly int itemsize
    cdef readonly int64_t priority
    cdef public object group, key
    cdef public double began  # seconds on the clock
    cdef public int64_t number, position
    cdef public object codec, arrays  # of a compressed allreduce: see Compressed
    cdef public object steps  # of a task that consists of several collectives
    cdef public object value  # the result of such a task, or of a compressed one
    cdef public bint complete
    cdef uint64_t moments[6]  # ticks of the timeline, or 0
    cdef public object error, callbacks

    def __init__(
        self, Engine engine, int kind, x, out, op, root, prescale, postscale, str name,
        int64_t priority, str terms=None, str bits=None,
    ):
        self.call = open_call(engine, kind, False, None, bits)
        self.engine = engine
        self.name = name
        self.terms = terms
        self.priority = priority
        self.began = now()
        mark(self, SUBMITTED)
        self.op = op
        self.keep = take(engine, &self.call.given, x, out, op, root, prescale, postscale)
        if self.call.given.user != NULL:
            check_users_fold(&self.call.given, mode_of(engine, self.call))
        self.nbytes = self.call.given.nbytes
        self.itemsize = self.call.given.x.itemsize
        self.signature = signature_of(self, terms)

    @property
    def bits(self):
        """The task's own mode of bits, or None."""
        return self.call.bits

    @property
    def shape(self):
        """The shape of the input, or of the output if the input is None."""
        if self.call.given.kind == BARRIER:
            return ()
        for kept in self.keep[1:]:
            if kept is not None:
                return shape_of(kept)
        return ()

    @property
    def dtype(self):
        """The name of the dtype."""
        return dtype_text(self.call.given.x.dtype)

    @property
    def kind(self):
        """The name of the collective."""
        return COLLECTIVES[self.call.given.kind]

    @property
    def operation(self):
        """The name of the reduction, or None."""
        if self.call.given.operation == NO_OPERATION:
            return None
        return self.op.upper() if isinstance(self.op, str) else self.op.said

    @property
    def folds_in_python(self):
        """True if a user's function folds."""
        return self.call.given.user != NULL

    @property
    def root(self):
        """The root, or 0."""
        return self.call.given.root

    @property
    def scales(self):
        """The factors of the contributions and of the result."""
        return self.call.given.prescale, self.call.given.postscale

    @property
    def fuses(self):
        """The properties that tasks must share to run as one, or None if this one runs alone."""
        cdef const Arguments *call = &self.call.given
        if self.codec is not None:
            return self.codec.name, call.x.dtype
        if call.kind != ALLREDUCE and call.kind != BROADCAST or call.x.dtype >= CC_NDTYPES:
            return None
        return (
            call.kind, call.x.dtype, call.operation, call.root, cc_bits(call.prescale),
            cc_bits(call.postscale), <uintptr_t>call.user, self.call.bits,
        )

    def begun(self):
        """Note on the timeline that the turn of the task has come. Local."""
        mark(self, BEGUN)
        mark(self, SENT_OFF)

    def scheduled(self):
        """Note on the timeline that all ranks are known to have the task. Local."""
        mark(self, SCHEDULED)

    @property
    def takes_steps(self):
        """True if the task takes several collectives, one after the other."""
        return self.arrays is not None or self.steps is not None

    def end(self, error):
        """Note that the task is complete, or has failed with an `error`, and record it; return
        whether functions must be called now. Local.
        """
        self.error = error
        self.complete = True
        if tape != NULL and self.key is not None:
            record_task(self)
        return self.callbacks is not None

    def call_at_end(self, function):
        """Add a `function` to call when the task is complete; return False if it is complete
        already. Local.
        """
        cdef list alone = [function]
        # From here on, as in end(), nothing is allocated: the garbage collector could run, and with
        # it another thread.
        if self.complete:
            return False
        if self.callbacks is None:
            self.callbacks = alone
        else:
            (<list>self.callbacks).append(function)
        return True

    def start(self):
        """Start the task; return the request.
        Collective.
        """
        mark(self, BEGUN)
        mark(self, SENT_OFF)
        return started(self.engine, copy_of(self.call), self.keep, self.name)

    def start_piece(self, int64_t first, int64_t count):
        """Start an allreduce or a broadcast of `count` elements, from the `first` on; return the
        request. Collective.
        """
        cdef Call made = copy_of(self.call)
        cdef Arguments *call = &made.given
        if first == 0:
            mark(self, BEGUN)
            mark(self, SENT_OFF)
        shorten(call, count)
        if call.role.inputs:
            call.x.data += first * call.x.itemsize
        if call.role.outputs:
            call.out.data += first * call.x.itemsize
        return started(self.engine, made, self.keep, self.name)

    def _result(self):
        """Return the caller's result, when the task is complete. Local."""
        return finished(self.keep[0])


cdef object started(Engine engine, Call call, tuple keep, str name):
    check_caller()
    engine.check_usable()
    choose_for(engine, call)
    call.name = name
    return launch_aside(engine, call, keep, None)


cdef void shorten(Arguments *call, int64_t count) noexcept:
    """Set the number of elements of a call to `count`."""
    call.x.count = call.out.count = call.part = count
    call.nbytes = count * call.x.itemsize


cdef uint64_t signature_of(Task task, str terms) except 0:
    cdef const Arguments *call = &task.call.given
    cdef uint64_t sum = cc_mixed(call.kind + 1, dtype_sum(call.x.dtype))
    sum = cc_mixed(cc_mixed(cc_mixed(sum, call.operation), call.checksum), call.root)
    sum = cc_mixed(cc_mixed(sum, cc_bits(call.prescale)), cc_bits(call.postscale))
    sum = cc_mixed(cc_mixed(sum, task.priority), call.nbytes)
    if call.kind != SCATTER:  # the root of a scatter has an array of another shape
        for n in task.shape:
            sum = cc_mixed(sum, n)
    return text_mixed(text_mixed(text_mixed(sum, task.name), terms), task.call.bits) >> 1 | 1


@cython.final
cdef class Bundle:
    """Tasks that run as one: of one kind, dtype, operation and root (`Task.fuses`).

    Their elements are copied one after the other into `memory`, a long enough array, unless they
    lie in a row already.
    """

    cdef list tasks
    cdef object memory
    cdef char *data
    cdef Call call
    cdef bint copies  # whether they do not lie in a row

    def __init__(self, list tasks, memory):
        cdef Task task
        cdef View view
        cdef int64_t count = 0
        self.tasks = tasks
        task = tasks[0]
        self.call = copy_of(task.call)
        self.copies = not lie_in_a_row(tasks)
        for each in tasks:
            task = each
            count += task.call.given.x.count
        shorten(&self.call.given, count)
        if not self.copies:
            return
        self.memory = view_of(memory, &view, "memory", True)
        if view.count * view.itemsize < self.call.given.nbytes:
            raise ArgumentError("memory is too short")
        self.data = view.data
        self.call.given.x.data = self.call.given.out.data = self.data

    def pack(self):
        """Copy the elements together, without the GIL. Local."""
        cdef Task task
        cdef char *end = self.data
        mark_all(self.tasks, BEGUN)
        if not self.copies:
            return
        for each in self.tasks:
            task = each
            if task.call.given.role.inputs:
                copy(end, task.call.given.x.data, task.nbytes)
            end += task.nbytes

    def unpack(self):
        """Copy the results to their arrays. Local."""
        cdef Task task
        cdef const char *end = self.data
        mark_all(self.tasks, BACK)
        if not self.copies:
            return
        for each in self.tasks:
            task = each
            if task.call.given.role.outputs:
                copy(task.call.given.out.data, end, task.nbytes)
            end += task.nbytes

    def start(self):
        """Start the one collective; return the request.
        Collective.
        """
        cdef Task first = self.tasks[0]
        cdef Call call = self.call
        mark_all(self.tasks, SENT_OFF)
        self.call = None
        more = len(self.tasks) - 1
        name = f"{first.name} and {more} more" if first.name and more else first.name
        return started(first.engine, call, (None, self.tasks, self.memory), name)


cdef void copy(char *target, const char *source, size_t nbytes) noexcept:
    """Copy bytes; many of them without the GIL."""
    if nbytes <= SMALL:
        memcpy(target, source, nbytes)
        return
    with nogil:
        memcpy(target, source, nbytes)


cdef bint lie_in_a_row(list tasks) except -1:
    """Return whether the inputs of tasks follow one another in memory, and the outputs, too."""
    cdef Task task = tasks[0]
    cdef const char *x = task.call.given.x.data
    cdef const char *out = task.call.given.out.data
    for each in tasks:
        task = each
        if task.call.given.role.inputs and task.call.given.x.data != x:
            return False
        if task.call.given.role.outputs and task.call.given.out.data != out:
            return False
        x += task.nbytes
        out += task.nbytes
    return True


@cython.final
cdef class Window:
    """The signatures that the ranks compare: those of the first tasks that each has not run yet, in
    a number of slots.

    Each rank fills ``mine``; ``common`` has the minima over all ranks. A slot has a signature and
    its complement, so that its minimum and maximum are known: equal if all ranks have the same
    task there, 0 if one has none. A rank that has joined has any task.
    """

    cdef readonly object mine, common  # 2 * slots + 1 of uint64
    cdef readonly int slots
    cdef uint64_t[::1] own, least

    def __init__(self, int slots):
        self.slots = slots
        self.mine = numpy.zeros(2 * slots + 1, numpy.uint64)
        self.common = numpy.zeros(2 * slots + 1, numpy.uint64)
        self.own, self.least = self.mine, self.common

    def fill(self, tasks, bint joined):
        """Write the signatures of the first tasks to the slots. Local."""
        cdef int i = 0
        cdef uint64_t empty = 0
        if joined:
            empty = ~empty
        for task in tasks:
            if i == self.slots:
                break
            if (<Task>task).moments[<int>COMPARED] == 0:
                mark(<Task>task, COMPARED)
            self.own[i] = (<Task>task).signature
            self.own[self.slots + i] = ~(<Task>task).signature
            i += 1
        for i in range(i, self.slots):
            self.own[i] = self.own[self.slots + i] = empty
        self.own[2 * self.slots] = not joined

    def read(self):
        """Return the number of first tasks that all ranks have in common, whether ranks differ in
        the next one, and whether a rank has joined. Local.
        """
        cdef int i
        cdef bint differs = False
        for i in range(self.slots):
            if self.least[i] == 0 or self.least[self.slots + i] == 0:
                break
            if self.least[i] != ~self.least[self.slots + i]:
                differs = True
                break
        else:
            i = self.slots
        return i, differs, self.least[2 * self.slots] == 0
