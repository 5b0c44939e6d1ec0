# The start of a call that has been checked: the ranks agree, a plan is chosen, an operation runs.


cdef object launch(Engine engine, Call *call, Choice choice, tuple keep, bint blocking, str text):
    """Start what has been checked, and wait for it if it is `blocking`.

    With a `text` of what is called, the ranks agree on it first.
    """
    cdef Operation *op
    cdef object trials = None
    cdef int slot = 0
    cdef double began = 0
    cdef uint64_t start = 0
    cdef bint inside
    if tape != NULL and (engine.queue.owner or text is not None or not blocking):
        start = cc_ticks()
    inside = engine.enter_unless_inside()
    try:
        engine.check_whole()  # the thread that was inside may have broken it
        if engine.ahead is not None and call.whole < 0:
            begin_ahead(engine)
            engine.check_whole()
        if not blocking:
            make_room()
        if text is not None:
            engine.agree(name_of(call), text, True, engine.deadline(call.timeout))
        if choice.trials is not None and not call.announced and call.device == NULL:
            trials = choice.trials
            choice = trial_of(engine, choice, blocking, call.timeout, &slot)
            began = now() if slot >= 0 else 0
        if call.device != NULL:
            call.scaled = call.x  # the device has scaled it
        elif call.prescale != 1.0:
            keep = place_scaled(call, keep)
            prescale(call)
        op = idle_operation(engine)
        configure(engine, op, call, choice)
        if call.user != NULL:
            (<UserFold>call.user).lend(engine.segment, keep)
        restart(engine, op, -1)
        if tape != NULL or engine.traced is not None:
            begin_call(engine, op, choice, call, start, blocking)
        if not blocking:
            return Request(engine, choice.plan, keep).start(op)
        run(engine, op, choice.plan, keep, call.timeout)
        if began != 0:
            trials.note(slot, now() - began)
        recycle(engine, op)
    finally:
        if not inside:
            leave(&engine.queue)
    return finished(keep[0])


cdef int begin_ahead(Engine engine) except -1:
    """Begin all of the calls on devices that were started before this one: the order of operations
    is the same on all ranks.
    """
    cdef bint held = engine.held
    engine.held = True  # they make calls inside of this one
    try:
        engine.ahead()
    finally:
        engine.held = held
    return 0


cdef int refuse(Engine engine, str name, error, double timeout) except -1:
    """Tell the other ranks that this one has refused its own call."""
    with engine:
        engine.agree(name, error_text(error), False, engine.deadline(timeout))
    return 0
