# Messages between two ranks: send, recv and sendrecv, as calls.


cdef tuple check_messages(Call *call, x, out):
    """Check the arrays of messages; return what must stay alive."""
    kept_x = kept_out = None
    call.x = View(NULL, 0, 1, 0)
    call.out = View(NULL, 0, 1, 0)
    if x is not None:
        kept_x = view_of(x, &call.x, "x", False, True)
    call.planned = False
    if out is not None:
        kept_out = view_of_out(call, out, True)
    if x is None:
        call.x = View(NULL, 0, call.out.itemsize, call.out.dtype)
    elif out is not None:
        if call.x.dtype != call.out.dtype:
            raise different_dtypes(call)
        if overlap(&call.x, &call.out):
            raise BufferError("out overlaps x; pass arrays that share no memory")
    return kept_out if type(kept_out) is Pending else out, kept_x, kept_out


cdef void set_messages(Call *call, bint sends, int64_t *counts) noexcept:
    """Write messages down as a call: parts of `counts` elements, sent and received."""
    call.kind = EXCHANGE
    call.part = 0
    call.nbytes = max(call.x.count, call.out.count) * call.x.itemsize
    call.operation = NO_OPERATION
    call.checksum = 0
    call.announced = 0
    call.whole = -1
    call.device = NULL
    call.fold = NULL
    call.user = NULL
    call.scale = NULL
    call.factor = call.prescale = call.postscale = 1.0
    counts[0] = call.x.count if sends else call.out.count
    counts[1] = call.out.count
    call.counts = counts
    call.receive_counts = NULL


cdef list cut_into(int64_t count, int64_t most):
    """Return the elements of pieces that have `most` at most."""
    whole, rest = divmod(count, most)
    return [most] * whole + ([rest] if rest or not whole else [])


cdef object launch_messages(
    Engine engine, Call *call, Plan plan, tuple keep, int tag, bint blocking
):
    """Start messages that have been checked, and wait for them if they are `blocking`."""
    cdef Choice choice
    cdef Operation *op
    if not blocking:
        make_room()
    op = idle_operation(engine)
    choice = Choice(plan, 0, "")
    configure(engine, op, call, choice)
    restart(engine, op, tag)
    if tape != NULL or engine.traced is not None:
        begin_exchange(engine, op, choice, call.nbytes, blocking)
    if not blocking:
        return Request(engine, plan, keep).start(op)
    run(engine, op, plan, keep, call.timeout)
    recycle(engine, op)
    return finished(keep[0])
