# Planned calls: arguments checked and memory reserved once, for calls that are made many times.

cdef object immutable_result(x):
    """Return the error of a planned call whose result could be written only once."""
    return BufferError(
        f"x is a {frameworks.LABELS[kind_of(type(x)).framework]}, and so its result would "
        f"be, which is immutable: no second run could write it; pass a NumPy array as out"
    )


@cython.final
cdef class PlannedCall:
    """A collective with its arguments, made by `Communicator.plan`, to be run any number of times.
    Collective, as the collective that it runs.

    Call it, or ``start()`` it and ``wait()``; both take the ``timeout`` of this run, as the
    collective does. It holds its buffers: each run reads the input as it is then, and writes the
    same output, which is what it returns.
    """

    cdef Engine engine
    cdef Choice choice  # that of its class
    cdef Choice setting  # that of the configured operation
    cdef tuple keep
    cdef Call call
    cdef Operation *op
    cdef Request request
    cdef str title
    cdef str text  # the description that ranks agree on

    def __cinit__(self):
        self.op = NULL

    def __dealloc__(self):
        # MPI may still write to the memory of a call that failed.
        if self.op != NULL and self.op.state.status == DONE:
            release(self.op)

    cdef inline object run(self, double timeout, bint blocking):
        """Run the operation, and return the result; start it if it is not `blocking`."""
        cdef Engine engine = self.engine
        cdef cc_trial *trial = NULL
        cdef uint64_t began = 0
        check_caller()
        enter(&engine.queue)
        try:
            engine.check_whole()
            if self.request is not None and not self.request.test():
                raise CommunicatorError(
                    f"{self.title} is in flight; wait for it before the next run"
                )
            if self.request is not None and self.request.op != NULL:  # other threads look at it
                self.request.owner = None
                self.op, self.setting = NULL, None
            self.request = None
            self.call.timeout, self.call.blocking = timeout, blocking
            take_place(engine, &self.call, None if engine.agree is None else self.text)
            self.prepare(setting_of(engine, self.choice, &self.call, &trial))
            if trial != NULL:
                began = cc_nanoseconds()
            if self.call.prescale != 1.0:
                prescale(&self.call)
            result = begin(engine, self.op, self.setting, &self.call, self.keep, self)
            if trial != NULL:
                request = None if blocking else <Request>result
                end_trial(engine, self.setting, trial, began, request)
            if not blocking:
                self.request = result
            return result
        except BaseException:
            if trial != NULL:
                cc_note_trial(trial, began, 0, False)
            raise
        finally:
            leave(&engine.queue)

    cdef inline int prepare(self, Choice setting) except -1:
        """Configure the operation for a setting."""
        cdef Operation *op
        if setting is self.setting:
            return 0
        op = prepared(self.engine, &self.call, setting, self.keep)
        op.state.status = DONE
        if self.op != NULL:
            release(self.op)
        self.op = op
        self.setting = setting
        self.title = title(setting.plan)
        return 0

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
            raise CommunicatorError(f"{self.title} was not started")
        return self.request

    def __repr__(self):
        state = None if self.request is None else self.request.state()
        return f"<PlannedCall of {self.title}{'' if state is None else ': in flight'}>"
