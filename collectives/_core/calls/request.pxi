# Requests: operations that were started and not waited for.

# Requests that have not been settled, kept here because MPI may still touch their buffers.
cdef set live = set()

# Operations in flight that are no Requests: calls on devices, with `engine`, `state` and `where`.
cdef set staged = set()

# The number of live requests at which ended and forgotten ones are settled.
cdef Py_ssize_t sweep_at = 16

# The buffers of operations that were given up, kept for good: MPI may write into them even after
# their communicator is gone.
cdef list lost = []


def pending(Engine engine=None):
    """Return a line for each incomplete request of an engine, or of all communicators that are not
    broken, since requests of broken ones never complete. Local.

    Raise the error of that engine, if the program was not told of it, with the place that started
    the failed operation.
    """
    cdef Request request
    lines = []
    for each in list(live):
        request = each
        if request.aside or engine is not None and request.engine is not engine:
            continue
        request.move()
        text = request.state()
        if text is not None and (engine is not None or request.engine.broken is None):
            lines.append(f"{text}, started at {request.where()}")
    for each in list(staged):
        if each.engine is engine or engine is None and each.engine.broken is None:
            lines.append(f"{each.state()}, started at {each.where()}")
    if engine in unheard:
        error, where = unheard.pop(engine)
        if not isinstance(error, CollectivesError):  # of a user's fold
            raise error
        raise type(error)(f"{error}, started at {where}") from error
    return lines


def note_staged(each, bint begins):
    """Note that a call on a device is in flight, or no longer is. Local."""
    if begins:
        staged.add(each)
    else:
        staged.discard(each)


# The function behind awaited(): the package sets it, because event loops are above the core.
cdef object coroutine_of = None


def set_awaits(function):
    """Set the function that is called with each awaited request. Local."""
    global coroutine_of
    coroutine_of = function


def awaited(request):
    """Return the steps of a coroutine that waits for a request of any class. Local."""
    return coroutine_of(request)


def heard(Engine engine):
    """Note that the program has been told of the error of an engine, if there is one. Local."""
    told(engine, None)


def untold():
    """Return a line for each communicator that a request has broken, if the program was not told.
    Local.
    """
    return [
        f"{error if isinstance(error, CollectivesError) else error_text(error)}, started at {where}"
        for error, where in unheard.values()
    ]


def end_requests(threads):
    """End the requests of these threads at the end of the program: the next access to one of them
    raises CommunicatorError.
    Local.

    Parameters
    ----------
    threads : set of int
        Their numbers by ``threading.get_ident``.
    """
    cdef Request request
    for each in list(live):
        request = each
        if request.thread in threads:
            request.give_up(None, too_late())


cdef int make_room() except -1:
    """Ensure that one more request can start, before any part of it has begun.

    Settle ended requests, when there are twice as many requests as after the last time.
    """
    global sweep_at
    start_progress()
    if len(live) < sweep_at:
        return 0
    for request in list(live):
        (<Request>request).settle()
    sweep_at = min(max(16, 2 * len(live)), OPERATIONS // 2)
    if len(live) >= OPERATIONS // 2:
        raise CommunicatorError(f"{len(live)} operations are in flight; wait for some")
    return 0


def advance_all():
    """Advance every operation in flight, for a wait for something else. Local."""
    with nogil:
        lock_in_flight()
        advance_in_flight()
        unlock_in_flight()
    move_mails()


def forsaken(Engine engine):
    """Return the incomplete requests of an engine that is being collected. Local.

    Wait for nothing, not even for a lock, because a finalizer calls this at any place.
    """
    if not (forked or finalised or funneled and pthread_self() != main_thread):
        if try_lock_in_flight():
            advance_in_flight()
            unlock_in_flight()
    return [
        each for each in list(live)
        if (<Request>each).engine is engine and each.state() is not None
        and not (<Request>each).aside
    ] + [each for each in list(staged) if each.engine is engine]


@cython.final
cdef class Request:
    """An operation that was started, and holds its arrays until it is complete.

    The nonblocking forms return it (`Communicator.iallreduce` and the others). Messages move only
    inside calls of the library, such as `test` and `wait`; with ``COLLECTIVES_PROGRESS=thread``, a
    thread moves them at all times. In a coroutine of asyncio or trio, ``await request`` waits while
    others run.
    """

    cdef Engine engine
    cdef Plan plan
    cdef tuple keep
    cdef Operation *op
    cdef Call call
    cdef object error
    cdef readonly bint taken  # whether the program knows that it is complete
    cdef bint late  # given up at the end of the program
    cdef unsigned long thread  # that started it
    cdef int waiters  # threads that use the operation, and may release the GIL meanwhile
    cdef double looked  # the time of the last check of other ranks by test()
    cdef cc_trial *trial  # NULL, or the trial that gets its time
    cdef uint64_t began, ended  # nanoseconds: of the first wait for it, and of its end
    cdef bint is_aside
    cdef object code  # of the caller, and the place in it
    cdef int at
    cdef readonly object origin  # the whole stack, in development mode

    def __cinit__(self, Engine engine, Plan plan, tuple keep):
        self.engine = engine
        self.plan = plan
        self.keep = keep

    cdef Request start(self, Operation *op, Call call):
        cdef PyObject *code = cc_caller(package_folder, between_file, &self.at)
        if code != NULL:
            self.code = <object>code
            Py_DECREF(self.code)  # cc_caller's
        if developing or self.engine.agree is not None:
            self.origin = Origin()
        self.call = call
        self.op = op
        self.thread = pthread_self()
        live.add(self)
        count_start(self.engine, 1)
        with nogil:
            enlist(op)
        if self.engine.started is not None:
            self.engine.started(self)
        return self

    @property
    def aside(self):
        """True if another request, or a blocking call, waits for it and reports on it."""
        return self.is_aside

    @aside.setter
    def aside(self, bint is_aside):
        count_start(self.engine, self.is_aside - is_aside)
        self.is_aside = is_aside

    cdef int settle(self) except -1:
        """Release the operation if it has ended. Keep its error for later waits."""
        cdef Operation *op = self.op
        if op == NULL or cc_status(op) == RUNNING:
            return 0
        if cc_status(op) == FAILED and self.error is None:
            whole = self.engine.broken is None
            error = failed(self.engine, op, self.plan, self.keep)
            if self.error is None:
                self.keep_error(error, whole)
        elif cc_status(op) == DONE and came_alone(op) and self.error is None:
            whole = self.engine.broken is None
            error = unlike(self.engine, op)
            if error is not None:
                abandon(self.engine, op, self.plan, self.keep, "failed in", error)
                self.keep_error(error, whole)
        if self.waiters or self.op == NULL:
            return 0
        if cc_status(op) == DONE:
            if op.shared.call != NO_CALL and self.engine.segment is not None:
                cc_leave_call(&self.engine.segment.c, op.shared.call)
            cc_flight_end(flight, op.order, CC_F_ENDED, False)
            if op.record.label >= 0:
                end_record(self.engine, op)
            if self.trial != NULL:
                # The end of an operation that was complete before the first wait is not known.
                note_trial(self.engine, self.plan, self.trial, self.began, self.ended)
                self.trial = NULL
        # Only when no other thread can find the operation any more, the GIL is released.
        self.op = NULL
        live.discard(self)
        if try_lock_in_flight():
            unlink(op)
            unlock_in_flight()
        else:
            with nogil:
                delist(op)
        if cc_status(op) == DONE:
            recycle(self.engine, self.call)
            self.call = None
        return 0

    cdef int keep_error(self, error, bint breaks) except -1:
        """Keep an error for later waits, and note it if it `breaks` the communicator."""
        self.error = error
        if breaks:
            unheard[self.engine] = error, self.where()
        return 0

    cdef int watch(self, int change) except -1:
        """Count waiting threads, so that a timeline separates waits from work of the program."""
        cdef Operation *op = self.op
        if op == NULL or op.record.tape == NULL:
            return 0
        self.waiters += 1
        with nogil:
            lock_in_flight()
            if op.record.tape != NULL:
                if op.record.watched == 0:
                    op.record.clock = cc_ticks()
                    op.record.idle = 0
                op.record.watched += change
            unlock_in_flight()
        self.waiters -= 1
        return 0

    cdef int look_around(self, double waited, double timeout) except -1:
        """End the operation if it cannot complete, or has waited too long."""
        cdef Operation *op = self.op
        if is_too_late():
            self.late = True
        if op == NULL:
            return 0
        self.waiters += 1
        try:
            error = trouble(self.engine, op, self.plan, waited, timeout)
        finally:
            self.waiters -= 1
        if error is not None:
            # The program need not be told of an error at its end.
            self.give_up(None if self.late else how(error), error)
        return 0

    cdef int give_up(self, str how, error) except -1:
        """End the operation with an error, if it is not complete. If `how` is None, because the
        program ends, the other ranks are not told.
        """
        cdef Operation *op = self.op
        if op == NULL:
            return 0
        self.waiters += 1
        with nogil:
            delist(op)
        self.waiters -= 1
        if cc_status(op) != RUNNING or self.error is not None:
            return 0
        # The error comes first: other waiting threads look for it as soon as the operation ends.
        self.keep_error(error, how is not None and self.engine.broken is None)
        if how is None:
            self.late = True
            drop(self.engine, op, self.plan, self.keep, "has ended, and gave up")
        else:
            abandon(self.engine, op, self.plan, self.keep, how, error)
        return 0

    cdef int check_thread(self) except -1:
        """Raise unless this thread may communicate; end the operation if the program ends."""
        if is_too_late():
            self.look_around(0, COMMON)
        else:
            check_caller()
        return 0

    cdef int move(self) except -1:
        """Advance the operations in flight, and settle this one if it has ended."""
        cdef double moment
        cdef Operation *op = self.op
        if op != NULL and not self.late and not finalised:
            self.waiters += 1
            with nogil:
                lock_in_flight()
                advance_in_flight()
                if cc_status(op) == RUNNING:
                    move_others(op)
                unlock_in_flight()
            self.waiters -= 1
            if self.op != NULL and cc_status(self.op) == RUNNING:
                moment = now()
                if self.looked == 0:
                    self.looked = moment
                elif moment - self.looked > SLICE:
                    self.looked = moment
                    self.look_around(0, deadline_of(None))
        return self.settle()

    def test(self):
        """Advance the operations in flight; return whether this one is complete.
        Local.

        Returns
        -------
        bool

        Raises
        ------
        MismatchError, PeerLostError, PeerAbortedError, MPIError
            If the operation failed, at each call; the communicator is broken then.
        """
        self.check_thread()
        self.move()
        if self.error is not None:
            raise told(self.engine, self.error)
        if self.op != NULL and cc_status(self.op) != DONE:
            return False
        self.taken = type(self.keep[0]) is not Pending or (<Pending>self.keep[0]).arrived()
        return self.taken

    def wait(self, timeout=None):
        """Wait until the operation is complete; return its result.
        Local, but it waits for the other ranks.

        Parameters
        ----------
        timeout : float, optional
            Seconds from now after which it raises `StallError`; by default the communicator's. Time
            for which this process was stopped does not count. To check for completion without
            waiting, use `test`.

        Returns
        -------
        array or None
            The result of the blocking form.

        Raises
        ------
        ArgumentError
            If `timeout` is not a positive number. The operation goes on.
        StallError
            If the deadline passes; the communicator is broken then.
        MismatchError, PeerLostError, PeerAbortedError, MPIError
            If the operation failed, at each call; the communicator is broken then.
        """
        cdef double start
        cdef double deadline = deadline_of(timeout)
        cdef int looks = 0
        cdef uint64_t order = 0
        self.check_thread()
        start = now() if self.op != NULL else 0
        if self.op != NULL:
            order = flight.places[self.engine.place].awaited = self.op.order
        self.watch(1)
        self.waiters += 1
        try:
            while self.op != NULL and cc_status(self.op) == RUNNING:
                start += self.poll(SLICE, looks > 0 and not has_messages(self.op))
                if cc_status(self.op) == RUNNING:
                    PyErr_CheckSignals()
                    show_wait(self.engine, self.op, self.plan, now() - start, deadline)
                    self.look_around(now() - start, deadline)
                    looks += 1
        finally:
            self.waiters -= 1
            self.watch(-1)
            if flight.places[self.engine.place].awaited == order:
                flight.places[self.engine.place].awaited = 0
        self.settle()
        if self.error is not None:
            raise told(self.engine, self.error)
        if looks:
            end_long_wait(self.engine, order)
        self.taken = True
        return finished(self.keep[0])

    @classmethod
    def __class_getitem__(cls, result):
        """Return the class, for annotations that name the type of the result. Local."""
        return cls

    def __await__(self):
        """Wait for the result in a coroutine of asyncio or trio, while others run. Local."""
        return awaited(self)

    def _look(self, double waited, timeout=None):
        """End the operation if it has `waited` too long, or waits for a rank that is gone; `test`
        raises the error.
        Local.
        """
        self.look_around(waited, deadline_of(timeout))

    def _spin(self, double seconds):
        """Wait for a moment; return whether the operation is complete. Local."""
        check_caller()
        if self.op != NULL and cc_status(self.op) == RUNNING:
            self.poll(seconds, False)
        return self.test()

    cdef double poll(self, double seconds, bint drowsy) except -1:
        """Wait without the GIL until the operation ends, or for `seconds`; return the seconds for
        which this process was stopped.
        """
        global inside
        cdef Operation *op = self.op
        cdef double began = now()
        cdef double away = 0
        self.waiters += 1
        inside += 1
        if self.began == 0:
            self.began = <uint64_t>(1e9 * began)
        with nogil:
            if wait(op, True, self.engine.polls(op), began + seconds, drowsy) == RUNNING:
                away = stopped(began)
            elif self.trial != NULL:
                self.ended = cc_nanoseconds()
        inside -= 1
        self.waiters -= 1
        return away

    def _awaited(self):
        """Return the ranks that the request waits for, in order. Local."""
        cdef Operation *op = self.op
        if op == NULL or cc_status(op) != RUNNING:
            return []
        self.waiters += 1
        try:
            return sorted(waited_for(op, self.engine.segment))
        finally:
            self.waiters -= 1

    def where(self):
        """Return the place in the program that started the operation. Local."""
        if self.code is None:
            return "an unknown place"
        return f"{self.code.co_filename}:{cc_line(self.code, self.at)}"

    def state(self):
        """Return the state of the request's wait as text, or None if it has completed. Local."""
        cdef Operation *op = self.op
        if op == NULL or cc_status(op) != RUNNING:
            return None
        self.waiters += 1
        try:
            text = f"{title(self.plan)}: {waiting(self.engine, op)}"
        finally:
            self.waiters -= 1
        # Another thread may have completed it in the meantime.
        return text if cc_status(op) == RUNNING else None

    def __repr__(self):
        return f"<Request of {self.state() or title(self.plan) + ': complete'}>"
