# Waiting, in words: for whom an operation waits.

cdef str how(error):
    return "stalled in" if isinstance(error, StallError) else "failed in"


cdef str title(Plan plan):
    return plan.source.algorithm.title(plan.source.p, plan.source.root)


cdef str waiting(Operation *op, Segment segment):
    """Say what an operation waits for: the round, and whom."""
    cdef const Cursor *cursor
    cdef const Message *message
    cdef int k, slot
    for k in range(op.window):
        cursor = &op.cursors[k]
        if cursor.segment < 0:
            continue
        where = f"round {cursor.round + 1}, segment {cursor.segment + 1} of {op.segments}"
        parts = []
        for slot in range(k * op.plan.slots, (k + 1) * op.plan.slots):
            if cursor.pending and transport.is_pending(op.requests, slot):
                message = message_of(op, slot)
                parts.append(f"for rank {message.peer} to {'receive' if message.send else 'send'}")
        silent, behind = missing(op, cursor, segment)
        parts += [f"for rank {rank} to send" for rank in silent]
        parts += [f"for rank {rank} to finish what came before" for rank in behind]
        return f"{where} waits {', '.join(parts)}"
    return "nothing was posted"


cdef set waited_for(Operation *op, Segment segment):
    """Return the ranks of this host that an operation waits for."""
    cdef int k
    ranks = set()
    for k in range(op.window):
        if op.cursors[k].segment >= 0:
            for some in missing(op, &op.cursors[k], segment):
                ranks.update(some)
    return ranks


cdef tuple missing(Operation *op, const Cursor *cursor, Segment segment):
    """Return the ranks that have not published what is next, and those that need the lane yet."""
    cdef uint64_t page = op.page + cursor.segment
    cdef const Step *step
    cdef const Operand *operand
    cdef int i
    silent, behind = [], []
    if op.segment == NULL:
        return silent, behind
    if not cursor.started:
        for i in range(op.segment.p):
            if cc_read(&op.segment.ranks[i].progress) < needed_before(op, cursor.segment):
                behind.append(segment.ranks[i])
    elif cursor.round < op.plan.nrounds:
        if cursor.step < op.plan.rounds[cursor.round].steps_end:
            step = &op.plan.steps[cursor.step]
            for i in range(step.operand, step.operands_end):
                operand = &op.plan.operands[i]
                if operand.space == SLOT:
                    if cc_published(op.segment, operand.peer, page, operand.first) == NULL:
                        silent.append(segment.ranks[operand.peer])
    return silent, behind
