# The start of a checked call: the ranks agree, a plan is chosen, an operation runs.


cdef object launch(Engine engine, Call *call, Choice choice, tuple keep, str text):
    """Start a checked collective, and wait for it if it is blocking.

    With a `text` that describes the call, the ranks agree on it first.
    """
    cdef cc_trial *trial = NULL
    cdef uint64_t began = 0
    cdef bint inside
    if tape != NULL and (engine.queue.owner or text is not None or not call.blocking):
        call.called_at = cc_ticks()
    inside = engine.enter_unless_inside()
    try:
        take_place(engine, call, text)
        choice = setting_of(engine, choice, call, &trial)
        if trial != NULL:
            began = cc_nanoseconds()
        if call.device != NULL:
            call.scaled = call.x  # the device has scaled it
        elif call.prescale != 1.0:
            keep = place_scaled(call, keep)
            prescale(call)
        result = begin(engine, prepared(engine, call, choice, keep), choice, call, keep, None)
        if trial != NULL:
            end_trial(engine, choice, trial, began, None if call.blocking else <Request>result)
    except BaseException:
        if trial != NULL:
            cc_note_trial(trial, began, 0, False)
        raise
    finally:
        if not inside:
            leave(&engine.queue)
    return result


cdef int end_trial(
    Engine engine, Choice choice, cc_trial *trial, uint64_t began, Request request
) except -1:
    """Note the time of a complete call, or pass the trial to its request."""
    if request is None or request.op == NULL or request.op.state.status == DONE:
        note_trial(engine, choice.plan, trial, began, cc_nanoseconds())
    else:
        request.trial = trial
    return 0


cdef inline void note_trial(
    Engine engine, Plan plan, cc_trial *trial, uint64_t began, uint64_t ended
) noexcept:
    cc_note_trial(trial, began, ended, plan.is_source and engine.spins < BRIEF)


cdef object launch_aside(Engine engine, Call *call, Choice choice, tuple keep, str text):
    """Launch a collective that another request or task waits for; return its request."""
    cdef object made = launch(engine, call, choice, keep, text)
    if call.blocking:
        return None
    (<Request>made).aside = True
    return made


cdef object announce(Engine engine, Call *call, x, out, root):
    """Launch a collective with which ranks announce the next call."""
    cdef tuple keep = check(engine, call, x, out, None, root, 1.0, 1.0)
    cdef Choice choice = choice_for(engine, call, None)
    text = None if engine.agree is None else description(engine, call, None, choice)
    return launch_aside(engine, call, choice, keep, text)


cdef inline int take_place(Engine engine, const Call *call, str text) except -1:
    """Take the place of a call in the order that is the same on all ranks."""
    engine.check_whole()  # the thread inside before may have broken the communicator
    if engine.ahead is not None and call.whole < 0:
        begin_ahead(engine)
        engine.check_whole()
    if not call.blocking:
        make_room()
    if text is not None:
        engine.agree(name_of(call), text, True, engine.deadline(call.timeout))
    return 0


cdef inline Operation *prepared(Engine engine, Call *call, Choice choice, tuple keep) except NULL:
    """Return an operation that is configured for a call, and has its memory."""
    cdef Operation *op = NULL
    cdef int form = 0
    if call.kind == BARRIER:
        form = form_of_barrier(engine, choice)
        op = engine.last_barrier
        engine.last_barrier = NULL
        if op != NULL and op.form == form:
            return op
    if op == NULL:
        op = idle_operation(engine)
    configure(engine, op, call, choice)
    op.form = form
    if op.shared.usual & CC_LENDS and max(op.nbytes, op.layout.stride) >= READ_LEAST:
        op.shared.is_readable = are_from_numpy(keep)
        offer_output(op, call)
    if call.user != NULL:
        (<UserFold>call.user).lend(engine.segment, keep)
    return op


cdef inline void offer_output(Operation *op, const Call *call) noexcept:
    """Set the address to which other ranks may push results, if the output is private."""
    cdef Sharing *shared = &op.shared
    cdef int64_t nbytes = call.out.count * call.out.itemsize
    cdef int64_t me = shared.segment.ranks[shared.segment.me].pid
    if not shared.way or shared.references[1] or not nbytes or op.layout.output == NULL:
        return
    if shared.is_readable or cc_is_readable(me, op.layout.output, nbytes):
        shared.references[1] = CC_KERNEL_REFERENCE | <uint64_t><uintptr_t>op.layout.output


cdef inline int form_of_barrier(Engine engine, Choice choice) noexcept:
    """Return the number that all barriers with this configuration have."""
    if engine.barrier_choice is not choice:
        engine.barrier_choice = choice
        engine.forms += 1
    return engine.forms


cdef bint are_from_numpy(tuple keep) noexcept:
    """Return whether NumPy has allocated all arrays of a call."""
    for each in keep:
        if each is None or type(each) is UserFold:
            continue
        if not PyArray_CheckExact(each):
            return False
        if not PyArray_CHKFLAGS(<ndarray>each, NPY_ARRAY_OWNDATA):
            base = each.base
            if not PyArray_CheckExact(base) or not PyArray_CHKFLAGS(
                <ndarray>base, NPY_ARRAY_OWNDATA
            ):
                return False
    return True


cdef object begin(
    Engine engine, Operation *op, Choice choice, const Call *call, tuple keep, PlannedCall owner
):
    """Start an operation, and wait for it if it is blocking. Without an `owner`, the engine uses it
    again when it has ended.
    """
    restart(engine, op, call.tag)
    if tape != NULL or engine.traced is not None:
        begin_record(engine, op, choice, call)
    if not call.blocking:
        return Request(engine, choice.plan, keep).start(op, owner)
    run(engine, op, choice.plan, keep, call.timeout)
    if owner is None:
        recycle(engine, op)
    return finished(keep[0])


cdef int begin_ahead(Engine engine) except -1:
    """Begin all calls on devices that were started before this one, so that all ranks have the same
    order of operations.
    """
    engine.hold()  # they make calls inside this one
    try:
        engine.ahead()
    finally:
        engine.held -= 1
    return 0


cdef int refuse(Engine engine, str name, error, double timeout) except -1:
    """Tell the other ranks that this one has refused its own call."""
    with engine:
        engine.agree(name, error_text(error), False, engine.deadline(timeout))
    return 0
