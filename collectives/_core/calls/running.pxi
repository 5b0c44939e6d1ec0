# The run of an operation: its number and its pages, the wait for its end, and its release.

cdef enum:
    OPERATIONS = 4096  # tags before they are used again: 4 * 4096 fit in MPI's smallest TAG_UB
    LAP = 512  # starts between two checks for operations whose tags will soon be used again
    SMALL = 1 << 16  # bytes that take less time to copy than another thread needs to wake up

cdef double SLICE = 0.05  # seconds between two checks of signals, the deadline and other ranks


cdef Operation *idle_operation(Engine engine) except NULL:
    """Return a recycled operation, or a new one."""
    cdef Operation *op = engine.idle
    if op != NULL:
        engine.idle = op.next
        return op
    op = <Operation *>calloc(1, sizeof(Operation))
    if op == NULL:
        raise MemoryError
    op.state.status = DONE
    return op


cdef inline int recycle(Engine engine, Call call) except -1:
    """Make a complete call the last of its class. Its operation stays configured for the next one,
    unless it is a planned call's, or another call of the class has ended meanwhile.
    """
    cdef int place = class_of(&call.given)
    cdef Call last
    if call.given.planned:
        return 0
    last = engine.last[place]
    if last is None or last.op == NULL:
        engine.stamps += 1
        call.stamp = engine.stamps
        engine.last[place] = call
        engine.spare = last
    else:
        call.op.next = engine.idle
        engine.idle = call.op
        call.op = NULL
        engine.spare = call
    return 0


cdef int take_number(Engine engine, Operation *op, int tag) except -1:
    """Give an operation a tag, or the next number of this communicator and its pages."""
    if tag < 0:
        if engine.sequence % LAP == 0:
            overtake(engine)
        op.number = engine.sequence
        op.tag = <int>(engine.sequence % OPERATIONS) * WINDOW
        engine.sequence += 1
        if engine.segment is not None:
            enter_segment(engine, op)
    else:
        op.tag = OPERATIONS * WINDOW + tag
    return 0


cdef void restart(Operation *op) noexcept:
    """Reset an operation to its start."""
    cdef int k
    op.state.status = RUNNING
    op.record.tape = NULL
    op.record.wait = NULL
    op.record.label = -1
    op.record.idle = op.record.watched = 0
    op.state.live = op.window
    op.state.pending = op.state.unseen = 0
    op.shared.lent = op.shared.untold = 0
    op.failure.cause = NO_FAILURE
    op.state.has_warned = 0
    for k in range(op.window):
        op.state.cursors[k].segment = k
        op.state.cursors[k].round = 0
        op.state.cursors[k].step = 0
        op.state.cursors[k].posted = 0
        op.state.cursors[k].started = 0
        op.state.cursors[k].pending = 0
        op.state.cursors[k].pending_sends = 0
        op.state.cursors[k].awaited = -1


cdef int enter_segment(Engine engine, Operation *op) except -1:
    """Put a call on record, and give an operation its pages."""
    cdef Sharing *shared = &op.shared
    cdef cc_segment *segment = &engine.segment.c
    if engine.spins < BRIEF:
        segment.ranks[segment.me].core = sched_getcpu()
    shared.call = segment.calls
    cc_begin_call(segment, shared.what, shared.said)
    if segment.shared.given_up:
        rank = engine.segment.ranks[segment.shared.given_up - 1]
        engine.broken = f"the communicator is broken: rank {rank} failed or gave up before"
        cc_flight_end(flight, op.order, CC_F_FAILED, True)
        engine.check_host("begins a call")
        engine.check_usable()
    segment = shared.segment
    if segment == NULL:
        return 0
    if op.nbytes >= LENT and op.device == NULL:
        meet_heaps(engine.segment, shared)
    shared.stores = shared.usual
    if shared.by_distance and segment.distance.is_far:
        shared.stores |= CC_PAYLOADS
    shared.page = segment.next
    segment.next += op.layout.segments
    cc_ring_take(&segment.ring, shared.page, op.layout.segments, shared.room, &shared.run)
    return 0


cdef inline int meet_heaps(Segment segment, Sharing *shared) except -1:
    """Map the heaps that other ranks have offered; lend from this one's if all have mapped it."""
    cdef int k
    if cc_read(&segment.c.shared.heaps) != segment.c.heaps_seen:
        segment.map_heaps()
    if (shared.heap[0] or shared.heap[1]) and cc_heap_is_mapped(&segment.c, cc_heap_now()):
        for k in range(2):
            if shared.heap[k]:
                shared.references[k] = shared.heap[k]
        shared.heap[0] = shared.heap[1] = 0
    return 0


cdef int overtake(Engine engine) except -1:
    """Wait for operations that are so old that their tags would soon be used again."""
    cdef Request request
    for each in list(live):
        request = each
        if request.engine is not engine or request.op == NULL:
            continue
        if request.op.tag >= OPERATIONS * WINDOW:  # a message, with a tag of the caller's
            continue
        if engine.sequence - request.op.number > OPERATIONS - 2 * LAP:
            request.wait()
    return 0


cdef int run(Engine engine, Operation *op, Plan plan, keep, double timeout) except -1:
    """Wait for an operation, mostly without the GIL, and check the other ranks at intervals."""
    cdef int status = RUNNING
    cdef int i
    if (
        (op.plan.slots == 0 or not (op.plan.sends or serialized)) and op.nbytes < SMALL
        and op.layout.stride < SMALL and op.fold.user == NULL and in_flight == NULL
    ):
        # Releasing the GIL would take longer.
        for i in range(BRIEF):
            status = advance(op)
            if status != RUNNING or engine.spins < BRIEF:
                break
            cc_pause()
    if status == RUNNING:
        status = await_end(engine, op, plan, keep, timeout)
    if status == FAILED:
        raise told(engine, failed(engine, op, plan, keep))
    if came_alone(op):
        error = unlike(engine, op)
        if error is not None:
            abandon(engine, op, plan, keep, "failed in", error)
            raise told(engine, error)
    if op.looks:
        return 0
    end_call(engine, op)
    if op.record.label >= 0:
        end_record(engine, op)
    return 0


cdef inline void end_call(Engine engine, const Operation *op) noexcept:
    """Put the end of a call on record."""
    if op.shared.call != NO_CALL:
        cc_end_call(&engine.segment.c, op.shared.call)
    cc_flight_end(flight, op.order, CC_F_ENDED, False)


cdef inline bint came_alone(const Operation *op) noexcept:
    """Return whether no data of a call on record came with a fingerprint."""
    return op.shared.segment == NULL and op.shared.call != NO_CALL


cdef object unlike(Engine engine, Operation *op):
    """Return the error of a complete call if another rank of the host has made another one."""
    try:
        if engine.segment is not None:
            engine.segment.check_calls(op.shared.call, op.shared.what)
    except CollectivesError as error:
        return error


cdef int await_end(Engine engine, Operation *op, Plan plan, keep, double timeout) except -1:
    """Wait for the end without the GIL, with checks at intervals; return the status."""
    global inside
    cdef int status
    cdef double start = now()
    cdef double looked
    cdef bint drowsy = False
    cdef int looks = 0
    inside += 1
    try:
        while True:
            if not is_too_late():
                with nogil:
                    looked = now()
                    status = wait(op, False, engine.polls(op), looked + SLICE, drowsy)
                if status != RUNNING:
                    if looks:
                        end_long_wait(engine, op.order)
                    return status
                start += stopped(looked)  # also while this thread waited for the GIL
            drowsy = not has_messages(op)
            looks += 1
            try:
                PyErr_CheckSignals()
                show_wait(engine, op, plan, now() - start, timeout)
                error = trouble(engine, op, plan, now() - start, timeout)
            except BaseException:  # also a warning that is an error
                abandon(engine, op, plan, keep, "was interrupted in")
                raise
            if error is not None:
                abandon(engine, op, plan, keep, how(error), error)
                raise told(engine, error)
    finally:
        inside -= 1


cdef int abandon(Engine engine, Operation *op, Plan plan, keep, str how, error=None) except -1:
    """Give an operation up, and tell the reason to the other ranks that can be told."""
    drop(engine, op, plan, keep, how)
    if is_too_late():  # the others hear that this rank has left in good order
        return 0
    why = f"it {how} {title_of(op, plan)}"
    if isinstance(error, PeerLostError):
        why = str(error)
    elif error is not None:
        why = error_text(error)
    cc_flight_end(flight, op.order, CC_F_FAILED, True)
    tell(engine, {"failed": why[:300], "line": line_of_caller()})
    try:
        why = name_file(engine, error or sys.exc_info()[1], why)
    finally:  # whatever interrupts it
        logs.note("ERROR", why)
        engine.give_up(why, error)
    return 0


cdef int drop(Engine engine, Operation *op, Plan plan, keep, str how) except -1:
    """End an operation, and keep its arrays, because others may still write to them; and the memory
    of the ranks, if MPI or UCX may.
    """
    cdef bint may_write = op.plan.slots and not (engine.has_mail() and engine.hosts is None)
    with nogil:
        lock_in_flight()
        if op.state.status == RUNNING:
            fail(op, STALLED, 0, -1, 0)
        unlock_in_flight()
    lost.append((keep, engine.segment if may_write else None))
    if engine.broken is None:
        engine.broken = f"the communicator is broken: rank {engine.rank} {how} {title_of(op, plan)}"
    return 0


# For each communicator that a request has broken, until the program is told: the error, and the
# place where the request was started.
cdef dict unheard = {}


cdef object told(Engine engine, error):
    """Return an error of a communicator, and note that the program is told of it."""
    unheard.pop(engine, None)
    return error if error is None or engine.converts is None else engine.converts(error)


cdef object failed(Engine engine, Operation *op, Plan plan, keep):
    """Give up an operation that failed; return its exception."""
    with nogil:  # another thread may still be writing the reason of the failure
        lock_in_flight()
        unlock_in_flight()
    error = failure_of(engine, op, plan)
    abandon(engine, op, plan, keep, "failed in", error)
    return error
