# Planned calls: arguments checked and memory reserved once, for calls that are made many times.

cdef object immutable_result(x):
    """Return the error of a planned call whose result could be written only once."""
    return BufferError(
        f"x is a {frameworks.LABELS[kind_of(type(x)).framework]}, and so its result would "
        f"be, which is immutable: no second run could write it; pass a NumPy array as out"
    )


cdef PlannedCall planned_call(Engine engine, Call call, tuple keep, str text):
    """Plan a checked call: reserve its memory for the setting that is best now."""
    cdef PlannedCall planned = PlannedCall.__new__(PlannedCall)
    planned.engine, planned.call, planned.keep, planned.text = engine, call, keep, text
    course = call.choice.course
    prepare(engine, call, call.choice if course is None else (<Course>course).best, keep)
    return planned


@cython.final
cdef class PlannedCall:
    """A collective with its arguments, made by `Communicator.plan`, to be run any number of times.
    Collective, as the collective that it runs.

    Call it, or ``start()`` it and ``wait()``; both take the ``timeout`` of this run, as the
    collective does. It holds its buffers: each run reads the input as it is then, and writes the
    same output, which is what it returns.
    """

    cdef Engine engine
    cdef tuple keep
    cdef Call call
    cdef Request request
    cdef str text  # the description that ranks agree on

    cdef inline object run(self, double timeout, bint blocking):
        """Run the operation, and return the result; start it if it is not `blocking`."""
        check_caller()
        enter(&self.engine.queue)
        try:
            return self.run_inside(timeout, blocking)
        finally:
            leave(&self.engine.queue)

    cdef inline object run_inside(self, double timeout, bint blocking):
        """Run the operation, as run() does, in the thread that is inside the communicator."""
        cdef Engine engine = self.engine
        cdef Arguments *call = &self.call.given
        cdef Choice setting
        cdef cc_trial *trial = NULL
        cdef uint64_t began = 0
        try:
            engine.check_usable()
            if self.request is not None and not self.request.test():
                raise CommunicatorError(
                    f"{self.title()} is in flight; wait for it before the next run"
                )
            if self.request is not None and self.request.op != NULL:  # other threads look at it
                self.call = copy_of(self.call)
                call = &self.call.given
            self.request = None
            call.timeout, call.blocking = timeout, blocking
            take_place(engine, call, None if engine.agree is None else self.text)
            setting = setting_of(engine, self.call.choice, call, &trial)
            if setting is not self.call.setting:
                prepare(engine, self.call, setting, self.keep)
            if trial != NULL:
                began = cc_nanoseconds()
            if call.prescale != 1.0:
                prescale(call)
            result = begin(engine, self.call, self.keep)
            if trial != NULL:
                end_trial(engine, setting, trial, began, result)
                trial = NULL
            if not blocking:
                self.request = result
            return result
        finally:
            if trial != NULL:  # the run has failed
                cc_note_trial(trial, began, 0, False)

    cdef str title(self):
        return title((self.call.setting or self.call.choice).plan)

    def __call__(self, timeout=None):
        return self.run(deadline_of(timeout), True)

    def start(self):
        """Start a run and return at once; see `Communicator.iallreduce`.
        Collective.

        Returns
        -------
        PlannedCall
            Itself.

        Raises
        ------
        CommunicatorError
            If the run before is still in flight, or the communicator is broken.
        """
        self.run(COMMON, False)
        return self

    def test(self):
        """Advance the run and return whether it is complete. Local.

        Raises
        ------
        CommunicatorError
            If nothing was started.
        """
        return self.started().test()

    def wait(self, timeout=None):
        """Wait for the run that was started, and return its result.
        Local: the ranks that it waits for have to start it too.

        Parameters
        ----------
        timeout : float, optional
            As for `Request.wait`.

        Raises
        ------
        CommunicatorError
            If nothing was started.
        """
        return self.started().wait(timeout)

    @classmethod
    def __class_getitem__(cls, result):
        """Return the class, for annotations that name the type of the result. Local."""
        return cls

    def __await__(self):
        """Wait for the run that was started in a coroutine, as for `Request`. Local."""
        return awaited(self.started())

    def _look(self, double waited, timeout=None):
        """End the run if it has `waited` too long, or waits for a rank that is gone. Local."""
        self.started()._look(waited, timeout)

    cdef Request started(self):
        if self.request is None:
            raise CommunicatorError(f"{self.title()} was not started")
        return self.request

    def __repr__(self):
        state = None if self.request is None else self.request.state()
        return f"<PlannedCall of {self.title()}{'' if state is None else ': in flight'}>"


@cython.final
cdef class StopFlag:
    """A request to stop that any rank makes for all: `wanted` is set, an array of one byte.

    `heard` is called, without arguments, when the ranks have agreed to stop.
    """

    cdef PlannedCall planned
    cdef ndarray wanted, sent, found
    cdef object heard
    cdef int64_t calls
    cdef bint is_set  # on all ranks

    def __init__(self, Engine engine, ndarray wanted, heard):
        self.wanted, self.heard = wanted, heard
        self.sent, self.found = numpy.zeros(1, numpy.uint8), numpy.zeros(1, numpy.uint8)
        self.planned = engine.plan(ALLREDUCE, self.sent, self.found, "max", 0, None)

    def ask(self, int64_t every, timeout):
        """Return whether all ranks stop. The first call asks the others, and then one of `every`.
        Collective.
        """
        cdef Engine engine = self.planned.engine
        cdef double deadline = deadline_of(timeout)
        cdef bint asks = False
        check_caller()
        enter(&engine.queue)
        try:
            if not self.is_set:
                asks = self.calls % every == 0
                self.calls += 1
            if asks:  # `wanted` may be set meanwhile; `sent` is that of this run
                (<char *>PyArray_DATA(self.sent))[0] = (<char *>PyArray_DATA(self.wanted))[0]
                self.planned.run_inside(deadline, True)
                self.is_set = (<char *>PyArray_DATA(self.found))[0]
        finally:
            leave(&engine.queue)
        if asks and self.is_set:
            self.heard()
        return self.is_set
