# The timeline of an operation: its actions and their times, as records on the tape of the process.
#
# An operation that is not recorded has no tape, and nothing else is checked then. A recorded one
# has a clock, which is the end of its last record. The next record lasts from there until now, so
# that most records read the time once. A wait is recorded when an advance without work is followed
# by one with work, and earlier if it is long.


cdef inline uint32_t place_of(const Cursor *cursor) noexcept nogil:
    return <uint32_t>(cursor.round & 0xFFFF) | <uint32_t>cursor.segment << 16


cdef inline void note(
    Operation *op, int kind, uint64_t start, uint64_t end, int64_t nbytes, int peer, uint32_t place
) noexcept nogil:
    cdef Recording *record = &op.record
    cdef cc_record *made = cc_next_record(record.tape, &record.next, &record.left)
    cc_fill(made, kind, start, end, record.whole.call, nbytes, peer + 1, place)


cdef inline void note_until_now(
    Operation *op, int kind, int64_t nbytes, int peer, uint32_t place
) noexcept nogil:
    """Record an action that has lasted since the last record."""
    cdef uint64_t end = cc_ticks()
    note(op, kind, op.record.clock, end, nbytes, peer, place)
    op.record.clock = end


cdef void note_wait(Operation *op, int kind, int peer, uint32_t place) noexcept nogil:
    """Record a wait that has ended."""
    cdef Recording *record = &op.record
    cdef uint64_t end = cc_ticks()
    if record.wait != NULL:
        cc_fill(record.wait, kind, record.clock, end, record.whole.call, 0, peer + 1, place)
        record.wait = NULL
    else:
        note(op, kind, record.clock, end, 0, peer, place)
    record.clock = end
    record.idle = 0


cdef inline void end_wait(Operation *op, Cursor *cursor) noexcept nogil:
    """Record the wait of a cursor that goes on, if it has waited."""
    if op.record.idle:
        note_wait(op, CC_T_AWAIT, cursor.awaited, place_of(cursor))
        cursor.awaited = -1


cdef void keep_waiting(Operation *op) noexcept nogil:
    """Record a continuing wait, or update its record."""
    cdef Recording *record = &op.record
    cdef int kind = CC_T_AWAIT
    cdef int peer = op.state.cursors[0].awaited
    cdef uint32_t place = 0
    cdef int k, slot
    for k in range(op.window):
        if op.state.cursors[k].segment >= 0:
            peer = op.state.cursors[k].awaited
            place = place_of(&op.state.cursors[k])
            break
    if peer < 0 and op.state.pending:
        for slot in range(op.slots.in_use):
            if op.transport.is_pending(op.slots.requests, slot):
                kind = CC_T_WAIT
                peer = message_of(op, slot).peer
                break
    if record.tape == NULL or not record.idle:
        return
    if record.wait == NULL:
        record.wait = cc_next_record(record.tape, &record.next, &record.left)
    cc_fill(record.wait, kind, record.clock, cc_ticks(), record.whole.call, 0, peer + 1, place)


cdef void note_step(Operation *op, const Cursor *cursor, const Step *step) noexcept nogil:
    """Record a step that was run just now."""
    cdef const Operand *operand = &op.plan.operands[step.operand]
    cdef int kind = CC_T_COPY
    cdef int peer = -1
    if op.record.stepped == 0:
        return
    if step.operands_end - step.operand > 1:
        kind = CC_T_FOLD
    elif operand.space == SLOT:
        kind = CC_T_TAKE
        peer = operand.peer
    elif step.publication >= 0:
        kind = CC_T_PUBLISH
    note_until_now(op, kind, op.record.stepped, peer, place_of(cursor))


cdef void note_messages(Operation *op, int count) noexcept nogil:
    """Record the messages that MPI has completed."""
    cdef const Message *message
    cdef const Cursor *cursor
    cdef int64_t skip = 0
    cdef int64_t n
    cdef int i, slot
    for i in range(count):
        slot = op.slots.done[i]
        if not op.slots.arrived[slot]:  # more pieces follow
            continue
        message = message_of(op, slot)
        cursor = &op.state.cursors[slot // op.plan.slots]
        if op.record.idle:
            note_wait(op, CC_T_WAIT, message.peer, place_of(cursor))
        n = elements(op, cursor.segment, message.home_space, message.home, message.blocks, &skip)
        note(
            op, CC_T_SENT if message.send else CC_T_RECEIVED, op.slots.since[slot], cc_ticks(),
            n * op.layout.itemsize, message.peer, place_of(cursor),
        )


cdef void end_of_call(Operation *op, int kind) noexcept nogil:
    """Record that a call is over."""
    cdef Recording *record = &op.record
    if kind == CC_T_FAILED:
        if record.idle:
            keep_waiting(op)
        record.clock = cc_ticks()
    elif record.idle:
        note_wait(op, CC_T_AWAIT, op.state.cursors[0].awaited, 0)
    elif op.fold.scale != NULL and not op.fold.scaled:
        record.clock = cc_ticks()
    if record.clock <= record.whole.start:
        # There was no work, but a call of no duration would read as one without an end.
        record.clock = max(cc_ticks(), record.whole.start + 1)
    record.whole.span = <uint64_t>kind << CC_T_KIND | (record.clock - record.whole.start)
    record.tape = NULL
