# The executor: runs plans over the transport. No GIL, no Python objects, no algorithm.
#
# An operation has up to WINDOW cursors; cursor k runs segments k, k + WINDOW, ... one after the
# other, each through the whole program. advance() moves every cursor as far as it goes and returns,
# so that the caller decides how to wait.


cdef Status advance(Operation *op) noexcept nogil:
    """Move all cursors, ask MPI once, and move them again if something had completed."""
    cdef int k, again
    op.state.moved = 0
    if op.record.tape != NULL and not op.record.watched:
        op.record.clock = cc_ticks()
        op.record.idle = 0
        op.record.wait = NULL
    for again in range(2):
        for k in range(op.window):
            if op.state.cursors[k].segment >= 0 and move(op, k):
                return op.state.status
        if op.state.live == 0:
            if op.shared.lent and are_reading(op):
                return RUNNING
            if op.shared.lent and op.device != NULL and device_begins(op, op.layout.segments):
                return FAILED
            if op.shared.stores & CC_RESULTS:
                cc_fence_streams()
            if op.record.tape != NULL:
                end_of_call(op, CC_T_CALL)
            cc_end(op, DONE)
            return DONE
        if again or not op.state.pending or poll(op) <= 0:
            break
    if op.record.tape != NULL and not op.state.moved:
        op.record.idle = 1
    return op.state.status


cdef bint are_reading(Operation *op) noexcept nogil:
    """Return whether other ranks still read the caller's arrays."""
    cdef uint64_t end = op.shared.page + op.layout.segments
    if cc_all_finished(op.shared.segment, end):
        return False
    if op.record.tape != NULL and not op.record.idle:
        op.record.idle = 1
        op.state.cursors[0].awaited = slowest(op, end)
    return True


cdef int move(Operation *op, int k) noexcept nogil:
    """Move cursor k as far as it goes without waiting. Return 0, or -1 if MPI failed."""
    cdef Cursor *cursor = &op.state.cursors[k]
    cdef const Round *round
    cdef const Step *step
    cdef int ready
    while cursor.segment >= 0:
        # Receives come first. Otherwise, messages of others would pile up in MPI while this rank
        # waits for its page, and MPICH would run out of room for those that all ranks wait for.
        if cursor.round < op.plan.nrounds and not cursor.posted:
            if post(op, k):
                return -1
            if not cursor.posted:
                return 0
        if not cursor.started:
            if op.shared.segment != NULL and not cc_all_finished(
                op.shared.segment, needed_before(op, cursor.segment)
            ):
                if op.record.tape != NULL and not op.record.idle:
                    cursor.awaited = slowest(op, needed_before(op, cursor.segment))
                return 0
            cursor.started = 1
            if op.device != NULL and device_begins(op, cursor.segment):
                return -1
            if op.record.tape != NULL:
                end_wait(op, cursor)
        if cursor.round == op.plan.nrounds:
            if op.device != NULL and device_finishes(op, cursor):
                return -1
            finish_segment(op, cursor)
            op.state.moved = 1
            cursor.segment += op.window
            cursor.round = 0
            cursor.step = 0
            cursor.started = 0
            if cursor.segment >= op.layout.segments:
                cursor.segment = -1
                op.state.live -= 1
            continue
        round = &op.plan.rounds[cursor.round]
        while cursor.step < round.steps_end:
            step = &op.plan.steps[cursor.step]
            ready = is_ready(op, cursor, step)
            if ready <= 0:
                return ready
            if op.record.tape != NULL:
                end_wait(op, cursor)
            if not op.looks and run_step(op, cursor, step):
                return -1
            if op.record.tape != NULL:
                note_step(op, cursor, step)
            op.state.moved = 1
            cursor.step += 1
        if cursor.pending:
            return 0
        cursor.round += 1
        cursor.posted = 0
    return 0


cdef void finish_segment(const Operation *op, const Cursor *cursor) noexcept nogil:
    """Scale the result, if steps have not, while it is in the cache; leave the page."""
    cdef int64_t skip = 0
    cdef int64_t n
    cdef int places = op.layout.out_places
    cdef int place
    cdef char *data
    if op.shared.segment != NULL and not op.looks:
        cc_finish(op.shared.segment, op.shared.page + cursor.segment)
    if op.fold.scale == NULL or op.fold.scaled or op.device != NULL:
        return
    for place in range(1 if op.layout.whole else places):
        n = elements(op, cursor.segment, OUT, place, places if op.layout.whole else 1, &skip)
        if n:
            data = address(op, cursor, OUT, place, skip)
            op.fold.scale(data, data, op.fold.factor, n)
