# Messages: those of a round are posted together, and MPI is asked for complete ones.
#
# Messages of cursor k have the tag of (operation, k). MPI keeps the order of messages with one tag
# between two ranks, and by the proof their sends and receives have the same order, so messages
# match without any other mark.


cdef const Message *message_of(const Operation *op, int slot) noexcept nogil:
    """Return the message of a request slot."""
    cdef const Cursor *cursor = &op.state.cursors[slot // op.plan.slots]
    return &op.plan.messages[op.plan.rounds[cursor.round].message + slot % op.plan.slots]


cdef int post(Operation *op, int k) noexcept nogil:
    """Post the messages of the round of cursor k, if its device has completed the steps before
    them. Return 0, or -1 if MPI or the device failed.
    """
    cdef Slots *slots = &op.slots
    cdef Cursor *cursor = &op.state.cursors[k]
    cdef const Round *round = &op.plan.rounds[cursor.round]
    cdef const Message *message
    cdef int base = k * op.plan.slots
    cdef int tag = op.tag + k
    cdef int i, slot
    cdef int64_t skip = 0
    cdef int64_t total = 0
    cdef int64_t n
    cdef int settled
    if op.device != NULL and round.message < round.messages_end:
        settled = device_settles(op, k)
        if settled <= 0:
            return settled
    cursor.step = round.step
    op.state.moved = 1
    if op.record.tape != NULL:
        end_wait(op, cursor)
    for i in range(round.message, round.messages_end):
        message = &op.plan.messages[i]
        slot = base + i - round.message
        n = elements(
            op, cursor.segment, message.home_space, message.home, message.blocks, &skip
        ) * op.layout.itemsize
        slots.arrived[slot] = message.is_late or (n == 0 and not op.sends_nothing)
        if slots.arrived[slot]:
            continue
        total += n
        if post_message(op, cursor, message, slot, tag, skip, n):
            return -1
    cursor.posted = 1
    if op.record.tape != NULL and round.message < round.messages_end:
        note_until_now(op, CC_T_POST, total, -1, place_of(cursor))
    return 0


cdef inline int post_message(
    Operation *op, Cursor *cursor, const Message *message, int slot, int tag, int64_t skip,
    int64_t n,
) noexcept nogil:
    """Post a message of `n` bytes. Return 0, or -1 if MPI failed."""
    op.slots.since[slot] = op.record.clock
    if op.looks_first and not message.send:
        op.slots.expected[slot] = UNSEEN
        op.state.unseen += 1
    elif post_piece(op, cursor, message, slot, tag, skip, 0, n):
        return -1
    if message.send:
        cursor.pending_sends += 1
    cursor.pending += 1
    op.state.pending += 1
    return 0


cdef int post_seen(Operation *op) noexcept nogil:
    """Post the receives whose messages have come. Return 0, or -1 if one has another length."""
    cdef Cursor *cursor = &op.state.cursors[0]  # calls with such receives have one segment
    cdef const Round *round = &op.plan.rounds[cursor.round]
    cdef const Message *message
    cdef int64_t skip = 0
    cdef int64_t nbytes, n
    cdef int slot
    for slot in range(round.messages_end - round.message):
        message = &op.plan.messages[round.message + slot]
        if op.slots.arrived[slot] or op.slots.expected[slot] != UNSEEN:
            continue
        nbytes = op.transport.probe(op.comm, message.peer, op.tag)
        if nbytes < 0:
            continue
        n = elements(
            op, cursor.segment, message.home_space, message.home, message.blocks, &skip
        ) * op.layout.itemsize
        op.state.unseen -= 1
        if nbytes != min(n, <int64_t>MAX_PIECE):
            op.failure.got = nbytes
            op.failure.wanted = n
            fail(op, WRONG_LENGTH, 0, message.peer, cursor.round)
            return -1
        if post_piece(op, cursor, message, slot, op.tag, skip, 0, n):
            return -1
        op.state.moved = 1
    return 0


cdef int post_late(
    Operation *op, Cursor *cursor, const Step *step, int64_t skip, int64_t n
) noexcept nogil:
    """Post the late message of a step."""
    cdef int k = <int>(cursor - op.state.cursors)
    cdef int slot = k * op.plan.slots + step.message - op.plan.rounds[cursor.round].message
    op.slots.arrived[slot] = 0
    return post_message(
        op, cursor, &op.plan.messages[step.message], slot, op.tag + k, skip, n
    )


cdef inline bint has_messages(const Operation *op) noexcept nogil:
    """Return whether an operation may wait for messages."""
    return op.plan.sends or op.state.pending


cdef inline int post_piece(
    Operation *op, Cursor *cursor, const Message *message, int slot, int tag, int64_t skip,
    int64_t done, int64_t n,
) noexcept nogil:
    """Post a message of `n` bytes, of which `done` are done, up to the limit of a call of MPI."""
    cdef Slots *slots = &op.slots
    cdef char *data = address(op, cursor, message.space, message.first, skip) + done
    cdef int piece = <int>min(n - done, <int64_t>MAX_PIECE)
    cdef int error
    slots.rest[slot] = n - done - piece
    if message.send:
        slots.expected[slot] = -1
        error = op.transport.send(
            op.comm, data, piece, message.peer, tag, slots.requests, slot, op.what
        )
    else:
        slots.expected[slot] = piece
        error = op.transport.recv(
            op.comm, data, piece, message.peer, tag, slots.requests, slot, op.what
        )
    if error:
        fail(op, MPI_FAILED, error, message.peer, cursor.round)
        return -1
    return 0


cdef int post_rest(Operation *op, int slot) noexcept nogil:
    """Post the next piece of a message, after the piece before it has completed.

    Pieces of two messages between the same ranks in one round could be confused, but plans that are
    not cut into segments have one such message at most.
    """
    cdef int k = slot // op.plan.slots
    cdef Cursor *cursor = &op.state.cursors[k]
    cdef const Message *message = message_of(op, slot)
    cdef int64_t skip = 0
    cdef int64_t n = elements(
        op, cursor.segment, message.home_space, message.home, message.blocks, &skip
    ) * op.layout.itemsize
    return post_piece(op, cursor, message, slot, op.tag + k, skip, n - op.slots.rest[slot], n)


cdef int poll(Operation *op) noexcept nogil:
    """Ask for completed messages. Return their number, or -1 if the operation failed."""
    cdef const cc_transport *by = op.transport
    cdef Slots *slots = &op.slots
    cdef int count = 0
    cdef int i, slot
    cdef char *status
    cdef Cursor *cursor
    cdef int error
    if op.state.unseen:
        if post_seen(op):
            return -1
        if op.state.unseen == op.state.pending:  # MPI_Test takes no request for a complete one
            return 0
    error = by.poll(slots.requests, slots.in_use, &count, slots.done, slots.statuses)
    if error == by.err_in_status:
        for i in range(count):
            status = slots.statuses + i * by.status_size
            error = (<int *>(status + by.error_offset))[0]
            if error:
                message_failed(op, slots.done[i], error, status)
                return -1
    if error:
        message_failed(op, slots.done[0] if slots.in_use == 1 else -1, error, slots.statuses)
        return -1
    for i in range(count):
        slot = slots.done[i]
        status = slots.statuses + i * by.status_size
        cursor = &op.state.cursors[slot // op.plan.slots]
        if slots.expected[slot] >= 0 and by.length(status) != slots.expected[slot]:
            op.failure.got = by.length(status)
            op.failure.wanted = slots.expected[slot]
            fail(op, WRONG_LENGTH, 0, message_of(op, slot).peer, cursor.round)
            return -1
        if slots.rest[slot]:
            if post_rest(op, slot):
                return -1
            continue
        if slots.expected[slot] < 0:
            cursor.pending_sends -= 1
        slots.arrived[slot] = 1
        cursor.pending -= 1
        op.state.pending -= 1
    if count:
        op.state.moved = 1
        if op.record.tape != NULL:
            note_messages(op, count)
    return count


cdef void message_failed(
    Operation *op, int slot, int error, const char *status
) noexcept nogil:
    """End an operation because of an error code of its transport for a slot (-1: for all)."""
    cdef Cause cause = MPI_FAILED
    cdef int kind = 0
    if slot < 0:
        fail(op, MPI_FAILED, error, -1, op.state.cursors[0].round)
        return
    op.transport.error_class(error, &kind)
    # MPI need not give the length of a message that does not fit.
    op.failure.got = op.transport.length(status) if op.transport.heard != NULL else -1
    op.failure.wanted = op.slots.expected[slot]
    if kind == op.transport.err_truncate:
        cause = WRONG_LENGTH
    elif op.transport.heard != NULL and kind == op.transport.err_other:
        cause = OTHER_MESSAGE
        op.failure.heard = op.transport.heard(status)
    fail(
        op, cause, error, message_of(op, slot).peer,
        op.state.cursors[slot // op.plan.slots].round,
    )


cdef void fail(Operation *op, Cause cause, int error, int peer, int round) noexcept nogil:
    """End an operation, and drop its posted messages. Its memory must stay."""
    cdef Slots *slots = &op.slots
    cdef int slot
    if op.record.tape != NULL:
        end_of_call(op, CC_T_FAILED)
    op.failure.cause = cause
    op.failure.error = error
    op.failure.peer = peer
    op.failure.round = round
    for slot in range(slots.in_use if op.state.pending else 0):
        if op.transport.is_pending(slots.requests, slot):
            op.transport.drop(slots.requests, slot, slots.expected[slot] < 0)
    cc_end(op, FAILED)
