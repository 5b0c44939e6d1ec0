# The timeline of an operation: what it did, and when, as records on the tape of the process.
#
# An operation that is not recorded has no tape; that is all that is looked at then. One that is has
# a clock, at the end of its last record: what is recorded next lasts from there until now, so that
# most records read the time once. A wait is recorded where an advance that found nothing to do is
# followed by one that does, and goes on record before that if it is long.


cdef inline uint32_t place_of(const Cursor *cursor) noexcept nogil:
    return <uint32_t>(cursor.round & 0xFFFF) | <uint32_t>cursor.segment << 16


cdef inline void note(
    Operation *op, int kind, uint64_t start, uint64_t end, int64_t nbytes, int peer, uint32_t place
) noexcept nogil:
    cdef cc_record *record = cc_next_record(op.tape, &op.next_record, &op.records_left)
    cc_fill(record, kind, start, end, op.record.call, nbytes, peer + 1, place)


cdef inline void note_until_now(
    Operation *op, int kind, int64_t nbytes, int peer, uint32_t place
) noexcept nogil:
    """Record what has lasted since the last record."""
    cdef uint64_t end = cc_ticks()
    note(op, kind, op.clock, end, nbytes, peer, place)
    op.clock = end


cdef void note_wait(Operation *op, int kind, int peer, uint32_t place) noexcept nogil:
    """Record a wait that has ended."""
    cdef uint64_t end = cc_ticks()
    if op.open != NULL:
        cc_fill(op.open, kind, op.clock, end, op.record.call, 0, peer + 1, place)
        op.open = NULL
    else:
        note(op, kind, op.clock, end, 0, peer, place)
    op.clock = end
    op.idle = 0


cdef inline void end_wait(Operation *op, Cursor *cursor) noexcept nogil:
    """Record the wait, if there was one, for what a cursor goes on with."""
    if op.idle:
        note_wait(op, CC_T_AWAIT, cursor.awaited, place_of(cursor))
        cursor.awaited = -1


cdef void keep_waiting(Operation *op) noexcept nogil:
    """Record a wait that goes on, or how long it is by now."""
    cdef int kind = CC_T_AWAIT
    cdef int peer = op.cursors[0].awaited
    cdef uint32_t place = 0
    cdef int k, slot
    for k in range(op.window):
        if op.cursors[k].segment >= 0:
            peer = op.cursors[k].awaited
            place = place_of(&op.cursors[k])
            break
    if peer < 0 and op.pending:
        for slot in range(op.slots):
            if transport.is_pending(op.requests, slot):
                kind = CC_T_WAIT
                peer = message_of(op, slot).peer
                break
    if op.tape == NULL or not op.idle:
        return
    if op.open == NULL:
        op.open = cc_next_record(op.tape, &op.next_record, &op.records_left)
    cc_fill(op.open, kind, op.clock, cc_ticks(), op.record.call, 0, peer + 1, place)


cdef void note_step(Operation *op, const Cursor *cursor, const Step *step) noexcept nogil:
    """Record a step that was run just now."""
    cdef const Operand *operand = &op.plan.operands[step.operand]
    cdef int kind = CC_T_COPY
    cdef int peer = -1
    if op.stepped == 0:
        return
    if step.operands_end - step.operand > 1:
        kind = CC_T_FOLD
    elif operand.space == SLOT:
        kind = CC_T_TAKE
        peer = operand.peer
    elif step.publication >= 0:
        kind = CC_T_PUBLISH
    note_until_now(op, kind, op.stepped, peer, place_of(cursor))


cdef void note_messages(Operation *op, int count) noexcept nogil:
    """Record the messages of which MPI says that they are complete."""
    cdef const Message *message
    cdef const Cursor *cursor
    cdef int64_t skip = 0
    cdef int64_t n
    cdef int i, slot
    for i in range(count):
        slot = op.done[i]
        if not op.arrived[slot]:  # more pieces follow
            continue
        message = message_of(op, slot)
        cursor = &op.cursors[slot // op.plan.slots]
        if op.idle:
            note_wait(op, CC_T_WAIT, message.peer, place_of(cursor))
        n = elements(op, cursor.segment, message.home_space, message.home, message.count, &skip)
        note(
            op, CC_T_SENT if message.send else CC_T_RECEIVED, op.since[slot], cc_ticks(),
            n * op.itemsize, message.peer, place_of(cursor),
        )


cdef int slowest(const Operation *op, uint64_t page) noexcept nogil:
    """Return the first rank of this host that has not finished the pages below `page`."""
    cdef int rank
    for rank in range(op.segment.p):
        if cc_read(&op.segment.ranks[rank].progress) < page:
            return rank
    return -1


cdef void end_of_call(Operation *op, int kind) noexcept nogil:
    """Record that a call is over."""
    if kind == CC_T_FAILED:
        if op.idle:
            keep_waiting(op)
        op.clock = cc_ticks()
    elif op.idle:
        note_wait(op, CC_T_AWAIT, op.cursors[0].awaited, 0)
    elif op.scale != NULL and not op.scaled:
        op.clock = cc_ticks()
    if op.clock <= op.record.start:  # nothing was to be done; but no time is a call without an end
        op.clock = max(cc_ticks(), op.record.start + 1)
    op.record.span = <uint64_t>kind << CC_T_KIND | (op.clock - op.record.start)
    op.tape = NULL
