# Sums that are rounded once: checked calls whose contributions are moved, and added by rows.


cdef inline bint is_exact(op) noexcept:
    """Return whether an operation rounds once. Other checks refuse objects that are none."""
    if type(op) is Reduction:
        return (<Reduction>op).exact
    return isinstance(op, str) and op.upper() == "SUM_REPRODUCIBLE"


cdef int sum_at_once(Engine engine, Arguments *call) except -1:
    """Make a checked call add all contributions to an element in one step. Integers, whose sums are
    exact, and two contributions, whose sum is rounded once, are added as always.
    """
    cdef int kind = exact_kind(call.x.dtype)
    cdef bint is_scan = call.kind == SCAN or call.kind == EXSCAN
    if kind < 0 or (engine.size == 2 and not is_scan):
        return 0
    call.rows = exacts.rows[kind]
    call.parts = exact_parts(call.x.dtype)
    call.scale = scales[call.x.dtype]
    return 0


@cython.final
cdef class ExactCall:
    """A checked call of ``SUM_REPRODUCIBLE``.

    Attributes
    ----------
    engine : Engine
    kind, root : int
    count : int
        The elements of the input.
    itemsize : int
    dtype : str
    counts : numpy.ndarray or None
        In a vector form, the elements of each part.
    is_whole : bool
        Whether any algorithm gives an exact sum, since contributions are integers, or only two.
    """

    cdef readonly Engine engine
    cdef Call call
    cdef tuple keep
    cdef Parts parts
    cdef object op

    def __cinit__(
        self, Engine engine, int kind, x, out, op, root, timeout, prescale, postscale,
        bint blocking, Parts parts,
    ):
        cdef Arguments *call
        self.engine = engine
        self.op = op
        self.parts = parts
        self.call = open_call(engine, kind, blocking, None, None)
        call = &self.call.given
        call.exact = True
        if parts is not None:
            take_parts(call, parts)
        call.timeout = deadline_of(timeout)
        self.keep = take(engine, call, x, out, op, root, prescale, postscale)

    @property
    def kind(self):
        return self.call.given.kind

    @property
    def root(self):
        return self.call.given.root

    @property
    def count(self):
        return self.call.given.x.count

    @property
    def itemsize(self):
        return self.call.given.x.itemsize

    @property
    def counts(self):
        return None if self.parts is None else self.parts.counts

    @property
    def dtype(self):
        return dtype_text(self.call.given.x.dtype)

    @property
    def is_whole(self):
        cdef Arguments call = self.call.given
        sum_at_once(self.engine, &call)
        return call.rows == NULL

    def run(self, algorithm, bits=None, then=None):
        """Run the call. Collective.

        A function `then` is called once with the result of the call, and returns the new result.
        """
        cdef tuple keep = self.keep
        cdef Call call = copy_of(self.call)
        cdef str text = None
        call.algorithm, call.bits = algorithm, bits
        sum_at_once(self.engine, &call.given)
        choose_for(self.engine, call)
        if self.engine.agree is not None:
            text = description(self.engine, call, self.op)
        if then is not None:
            keep = (pending_place(keep[0], once(then)), *keep)
        return launch(self.engine, call, keep, text)

    def scale(self):
        """Scale the input, if the call has a `prescale`. Local."""
        cdef Arguments *call = &self.call.given
        if call.prescale != 1.0:
            call.scaled = call.x
            self.keep = (*self.keep, scratch_like(&call.scaled))
            prescale(call)
            call.x = call.scaled

    def span(self, bint output, int64_t first, int64_t count):
        """Return a span of elements of the output or the input. Local."""
        cdef const View *view = &self.call.given.out if output else &self.call.given.x
        return self.spanned(<uintptr_t>view.data + first * view.itemsize, count, self.keep)

    def scratch(self, int64_t count):
        """Return memory for `count` elements. Local."""
        cdef View view = View(NULL, count, self.call.given.x.itemsize, self.call.given.x.dtype)
        memory = scratch_like(&view)
        return self.spanned(<uintptr_t>view.data, count, memory)

    cdef Span spanned(self, uintptr_t address, int64_t count, object owner):
        cdef const View *view = &self.call.given.x
        return Span(address, (count,), dtype_text(view.dtype), view.itemsize, owner)

    def cut(self, Span whole, int64_t first, int64_t count):
        """Return a part of a span. Local."""
        return self.spanned(whole.address + first * whole.itemsize, count, whole)

    def words(self):
        """Return the input as words. Local."""
        cdef Arguments *call = &self.call.given
        cdef int kind = exact_kind(call.x.dtype)
        cdef int64_t n = call.x.count * exact_parts(call.x.dtype)
        cdef npy_intp length = n * (cc_exact_dtypes[kind].limbs + 1)
        cdef ndarray made = PyArray_ZEROS(1, &length, NPY_INT64, 0)
        cdef int64_t *words = <int64_t *>PyArray_DATA(made)
        with nogil:
            exacts.columns[kind](words, call.x.data, 0, 1, n)
        return made

    def round(self, ndarray words):
        """Round words to the output, and scale it. Local."""
        cdef Arguments *call = &self.call.given
        cdef int64_t n = call.out.count * exact_parts(call.x.dtype)
        with nogil:
            cc_exact_rounded(
                call.out.data, <const int64_t *>PyArray_DATA(words), n, exact_kind(call.x.dtype)
            )
            if call.factor != 1.0:
                call.scale(call.out.data, call.out.data, call.factor, call.out.count)

    def add(self, Span out, Span x, int64_t rows):
        """Write the scaled sums of the columns of the first rows of `x`. Local."""
        cdef Arguments *call = &self.call.given
        cdef char *dst = <char *>out.address
        cdef const char *source = <const char *>x.address
        with nogil:
            sum_rows(dst, source, rows, out.count, call.x.dtype)
            if call.factor != 1.0:
                call.scale(dst, dst, call.factor, out.count)

    def finish(self):
        """Return the caller's result, when the call is complete. Local."""
        return finished(self.keep[0])

    def move(self, int kind, Span x, Span out, counts=None, received=None):
        """Run a collective that moves elements for this call. Collective."""
        cdef Engine engine = self.engine
        cdef Call call = open_call(engine, kind, True, None, None)
        cdef tuple keep
        cdef str text = None
        if counts is not None:
            take_parts(&call.given, Parts(counts, received))
        call.given.timeout = self.call.given.timeout
        keep = take(engine, &call.given, x, out, self.op, 0, 1.0, 1.0)
        call.given.operation = self.call.given.operation
        choose_for(engine, call)
        if engine.agree is not None:
            text = f"{description(engine, call, self.op)}, for {self.text()}"
        launch(engine, call, keep, text)

    cdef str text(self):
        """Return the part of the call that all ranks must have in common, in words."""
        reduction = self.op if type(self.op) is Reduction else reduction_called(self.op)
        return f"{name_of(&self.call.given)} of {reduction.name}"


cdef object once(function):
    """Return a function that calls another once, on any thread, and returns its result."""
    cdef object lock = threading.Lock()
    cdef list made = []

    def call(result):
        with lock:
            if not made:
                made.append(function(result))
        return made[0]

    return call
