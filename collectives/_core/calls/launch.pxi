# The start of a checked call: the ranks agree, a plan is chosen, an operation runs.


cdef inline object launch(Engine engine, Call made, tuple keep, str text):
    """Start a checked collective, and wait for it if it is blocking.

    With a `text` that describes the call, the ranks agree on it first.
    """
    cdef Arguments *call = &made.given
    cdef bint inside
    if tape != NULL and (engine.queue.owner or text is not None or not call.blocking):
        call.called_at = cc_ticks()
    inside = engine.enter_unless_inside()
    try:
        return launch_inside(engine, made, keep, text)
    finally:
        if not inside:
            leave(&engine.queue)


cdef object launch_inside(Engine engine, Call made, tuple keep, str text):
    """Launch a collective in the thread that is inside the communicator."""
    cdef Arguments *call = &made.given
    cdef Choice setting
    cdef cc_trial *trial = NULL
    cdef uint64_t began = 0
    take_place(engine, call, text)
    try:
        setting = setting_of(engine, made.choice, call, &trial)
        if trial != NULL or is_watched(made.choice, call):
            began = cc_nanoseconds()
        if call.device != NULL:
            call.scaled = call.x  # the device has scaled it
        elif call.prescale != 1.0:
            keep = place_scaled(call, keep)
            prescale(call)
        prepare(engine, made, setting, keep)
        result = begin(engine, made, keep)
        if trial != NULL:
            end_trial(engine, setting, trial, began, result)
            trial = NULL
        elif began:
            made.choice.course.watch(call, 1e-9 * (cc_nanoseconds() - began))
    finally:
        if trial != NULL:  # the call has failed
            cc_note_trial(trial, began, 0, False)
    return result


cdef int end_trial(
    Engine engine, Choice choice, cc_trial *trial, uint64_t began, object made
) except -1:
    """Note the time of a complete call, or pass the trial to the request that it has made."""
    cdef Request request
    if type(made) is Request:
        request = made
        if request.op != NULL and request.op.state.status != DONE:
            request.trial = trial
            return 0
    if not shares_cores(engine) and engine.attention != EAGER and has_lost_core(engine):
        cc_note_preempted(trial)
    else:
        note_trial(engine, choice.plan, trial, began, cc_nanoseconds())
    return 0


cdef inline void note_trial(
    Engine engine, Plan plan, cc_trial *trial, uint64_t began, uint64_t ended
) noexcept:
    cc_note_trial(trial, began, ended, plan.is_source and shares_cores(engine))


cdef inline bint shares_cores(Engine engine) noexcept:
    """Return whether ranks take the cores from each other."""
    return engine.spins < BRIEF


cdef object launch_aside(Engine engine, Call call, tuple keep, str text):
    """Launch a collective that another request or task waits for; return its request."""
    cdef bint blocking = call.given.blocking
    cdef object made = launch(engine, call, keep, text)
    if blocking:
        return None
    (<Request>made).aside = True
    return made


cdef object announce(Engine engine, Call call, x, out, root):
    """Launch a collective with which ranks announce the next call."""
    cdef tuple keep = take(engine, &call.given, x, out, None, root, 1.0, 1.0)
    choose_for(engine, call)
    text = None if engine.agree is None else description(engine, call, None)
    return launch_aside(engine, call, keep, text)


cdef inline int take_place(Engine engine, const Arguments *call, str text) except -1:
    """Take the place of a call in the order that is the same on all ranks."""
    if engine.broken is not None:  # by the thread inside before
        engine.check_usable()
    if engine.ahead is not None and call.whole < 0:
        begin_ahead(engine)
        engine.check_usable()
    if not call.blocking:
        make_room()
    if text is not None:
        engine.agree(name_of(call), text, True, engine.deadline(call.timeout))
    return 0


cdef inline int prepare(Engine engine, Call made, Choice setting, tuple keep) except -1:
    """Give a call an operation that is configured for a setting, and has its memory. That of the
    last call of its class only gets other addresses if the calls are alike.
    """
    cdef Arguments *call = &made.given
    cdef Operation *op = made.op  # of a planned call
    cdef bint is_ready = op != NULL and made.setting is setting
    cdef Call last
    if op == NULL:
        last = engine.last[class_of(call)]
        if last is not None and last.op != NULL:
            op, last.op = last.op, NULL
            is_ready = (
                last.stamp == made.twin and last.setting is setting and last.era == engine.era
            )
        else:
            op = idle_operation(engine)
    if not is_ready:
        made.op, made.setting = NULL, None
        configure(engine, op, call, setting)
    place_arrays(op, call)
    made.op, made.setting = op, setting
    if op.shared.usual & CC_LENDS and max(op.nbytes, op.layout.stride) >= READ_LEAST:
        op.shared.is_readable = are_from_numpy(keep)
        offer_output(op, call)
    if call.user != NULL:
        (<UserFold>call.user).lend(engine.segment, keep)
    return 0


cdef inline void offer_output(Operation *op, const Arguments *call) noexcept:
    """Set the address to which other ranks may push results, if the output is private."""
    cdef Sharing *shared = &op.shared
    cdef int64_t nbytes = call.out.count * call.out.itemsize
    cdef int64_t me = shared.segment.ranks[shared.segment.me].pid
    if not shared.way or shared.references[1] or not nbytes or op.layout.output == NULL:
        return
    if shared.is_readable or cc_is_readable(me, op.layout.output, nbytes):
        shared.references[1] = CC_KERNEL_REFERENCE | <uint64_t><uintptr_t>op.layout.output


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


cdef inline object begin(Engine engine, Call call, tuple keep):
    """Start the operation of a call, and wait for it if the call is blocking."""
    cdef Operation *op = call.op
    cdef Choice setting = call.setting
    if call.resumes == NO_CALL:
        note_start(engine, call)
        take_number(engine, op, call.given.tag)
    else:
        op.shared.call = call.resumes
    restart(op)
    if (tape != NULL or engine.traced is not None) and not op.looks:
        begin_record(engine, op, setting, &call.given)
    if not call.given.blocking:
        return Request(engine, setting.plan, keep).start(op, call)
    run(engine, op, setting.plan, keep, call.given.timeout)
    if call.given.own_only:
        call.untold = op.shared.untold
        if op.looks:
            return None
    recycle(engine, call)
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
