# Planned calls: arguments checked and memory reserved once, for calls that are made many times.

@cython.final
cdef class PlannedCall:
    """A collective with its arguments, made by `Communicator.plan`, to be run any number of times.
    Collective, as the collective that it runs.

    Call it, or ``start()`` it and ``wait()``; both take the ``timeout`` of this run, as the
    collective does. It holds its buffers: each run reads the input as it is then, and writes the
    same output, which is what it returns.
    """

    cdef Engine engine
    cdef Choice choice
    cdef tuple keep
    cdef Call call
    cdef Operation *op
    cdef Request request
    cdef str title
    cdef str text  # what the ranks agree on

    def __cinit__(self):
        self.op = NULL

    def __dealloc__(self):
        # What failed may still be written to by MPI.
        if self.op != NULL and self.op.state.status == DONE:
            release(self.op)

    cdef int prepare(self) except -1:
        """Reserve the memory of the operation."""
        cdef Operation *op = idle_operation(self.engine)
        if self.call.prescale != 1.0:
            self.keep = place_scaled(&self.call, self.keep)
        configure(self.engine, op, &self.call, self.choice)
        if self.call.user != NULL:
            (<UserFold>self.call.user).lend(self.engine.segment, self.keep)
        op.state.status = DONE
        self.op = op
        return 0

    cdef int begin(self, double timeout, bint blocking) except -1:
        """Put the operation at its start."""
        cdef Engine engine = self.engine
        engine.check_whole()
        if self.request is not None and not self.request.test():
            raise CommunicatorError(f"{self.title} is in flight; wait for it before the next run")
        self.request = None
        if engine.ahead is not None:
            begin_ahead(engine)
            engine.check_whole()
        if engine.agree is not None:
            engine.agree(
                COLLECTIVES[self.call.kind], self.text, True, engine.deadline(timeout)
            )
        if self.call.prescale != 1.0:
            prescale(&self.call)
        restart(engine, self.op, -1)
        if tape != NULL or engine.traced is not None:
            begin_call(engine, self.op, self.choice, &self.call, 0, blocking)
        return 0

    def __call__(self, timeout=None):
        cdef Engine engine = self.engine
        cdef double deadline = deadline_of(timeout)
        check_caller()
        enter(&engine.queue)
        try:
            self.begin(deadline, True)
            run(engine, self.op, self.choice.plan, self.keep, deadline)
        finally:
            leave(&engine.queue)
        return self.keep[0]

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
        check_caller()
        enter(&self.engine.queue)
        try:
            make_room()
            self.begin(COMMON, False)
            self.request = Request(self.engine, self.choice.plan, self.keep)
            self.request.owner = self
            self.request.start(self.op)
        finally:
            leave(&self.engine.queue)
        return self

    def test(self):
        """Move the run on and say whether it is complete. Local.

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

    def _look(self, double waited, timeout=None):
        """End the run if it has `waited` too long, or for a rank that is gone. Local."""
        self.started()._look(waited, timeout)

    cdef Request started(self):
        if self.request is None:
            raise CommunicatorError(f"{self.title} was not started")
        return self.request

    def __repr__(self):
        return f"<PlannedCall of {self.title}>"
