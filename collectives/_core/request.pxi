# Requests: operations that were started and not waited for.

# Requests that have not been settled: MPI may still touch their buffers, whoever else forgets them.
cdef set live = set()

# The buffers of operations that were given up, for the same reason and for good: MPI may write into
# them even after their communicator is gone.
cdef list lost = []


def pending(Engine engine=None):
    """Return a line for each request that is not complete, of one engine or of all. Local."""
    lines = []
    for request in list(live):
        if engine is None or (<Request>request).engine is engine:
            request.test()
            lines.append(request.state())
    return [line for line in lines if line is not None]


cdef void unlist(Operation *op) noexcept:
    """Take an operation out of the list; a fold in Python may hold the lock and want the GIL."""
    with nogil:
        delist(op)


@cython.final
cdef class Request:
    cdef Engine engine
    cdef Plan plan
    cdef tuple keep
    cdef Operation *op
    cdef PlannedCall owner  # whose operation it is, if not the engine's
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
        cdef Operation *op = self.op
        if op == NULL or op.status == RUNNING:
            return 0
        if op.status == FAILED and self.error is None:
            self.error = self.engine.failure(op, self.plan, self.keep)
            unlist(op)
        if self.waiters or self.op == NULL:
            return 0
        # Claimed before the GIL is given up: two threads may come here.
        self.op = NULL
        live.discard(self)
        if op.status == DONE:
            unlist(op)
            if self.owner is None:
                op.next = self.engine.idle
                self.engine.idle = op
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
                if limit - start > self.engine.timeout and self.op != NULL:
                    unlist(self.op)
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
        return f"<Request of {self.state() or title(self.plan) + ': complete'}>"
