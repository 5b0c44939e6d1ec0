# The executor: runs plans over the transport. No GIL, no Python objects, no algorithm.
#
# An operation has up to WINDOW cursors; cursor k runs segments k, k + WINDOW, ... one after the
# other, each through the whole plan. advance() moves every cursor as far as it goes and returns,
# so that the caller decides how to wait. Messages of cursor k carry the tag of (operation, k):
# MPI keeps the order of messages with one tag between two ranks, and the proof says that the order
# of sends and receives between two ranks agrees, so no more is needed to match them.

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int, timespec *)

# Operations started by i-calls. Whoever waits for anything advances all of them, as ranks may
# complete them in different orders; the lock is for whoever advances or changes the list.
cdef Operation *in_flight = NULL


cdef double now() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec + 1e-9 * t.tv_nsec


cdef inline int64_t block_start(const Operation *op, int64_t block) noexcept nogil:
    return op.count * block // op.nblocks


cdef inline int64_t elements(
    const Operation *op, int64_t segment, int first, int count, int64_t *start
) noexcept nogil:
    """Return how many elements of a run of blocks are in the segment, and where they start."""
    cdef int64_t begin = block_start(op, first)
    cdef int64_t length
    if op.whole:
        start[0] = begin
        return block_start(op, first + count) - begin
    length = block_start(op, first + 1) - begin
    start[0] = begin + length * segment // op.segments
    return begin + length * (segment + 1) // op.segments - start[0]


cdef inline char *address(
    const Operation *op, const Cursor *cursor, int space, int first, int64_t start
) noexcept nogil:
    """Return where a run of blocks of the cursor's segment lies; elements() gave `start`."""
    if space == IN:
        return op.input + start * op.itemsize
    if space == OUT:
        return op.output + start * op.itemsize
    if space == TMP:
        return cursor.memory + first * op.stride
    if op.whole:
        return cursor.memory + op.work_offset + start * op.itemsize
    return cursor.memory + op.work_offset + first * op.stride


cdef inline void run_step(
    const Operation *op, const Cursor *cursor, const Step *step
) noexcept nogil:
    cdef int64_t start = 0
    cdef int64_t n = elements(op, cursor.segment, step.block, step.count, &start)
    if n == 0:
        return
    cdef char *dst = address(op, cursor, step.dst_space, step.dst, start)
    cdef char *left = address(op, cursor, step.left_space, step.left, start)
    if not step.is_copy:
        op.fold(dst, left, address(op, cursor, step.right_space, step.right, start), n)
    elif dst != left:
        memcpy(dst, left, n * op.itemsize)


cdef void fail(Operation *op, Failure why, int error, int peer, int round) noexcept nogil:
    """End an operation; what it had posted is let go of, and its memory must stay."""
    cdef int slot
    op.status = FAILED
    op.failure = why
    op.error = error
    op.peer = peer
    op.round = round
    for slot in range(op.slots if op.pending else 0):
        if transport.is_pending(op.requests, slot):
            transport.drop(op.requests, slot, op.expected[slot] < 0)


cdef int post(Operation *op, int k) noexcept nogil:
    """Post the messages of the round that cursor k has come to. Returns 0, or -1 if MPI failed."""
    cdef Cursor *cursor = &op.cursors[k]
    cdef const Round *round = &op.plan.rounds[cursor.round]
    cdef const Message *message
    cdef int base = k * op.plan.slots
    cdef int tag = op.tag + k
    cdef int i, slot, error
    cdef int64_t start = 0
    cdef int64_t n
    cdef char *data
    for i in range(round.message, round.messages_end):
        message = &op.plan.messages[i]
        slot = base + i - round.message
        n = elements(op, cursor.segment, message.block, message.count, &start) * op.itemsize
        op.arrived[slot] = n == 0
        if n == 0:
            continue
        data = address(op, cursor, message.space, message.first, start)
        if message.send:
            op.expected[slot] = -1
            error = transport.send(op.comm, data, <int>n, message.peer, tag, op.requests, slot)
            cursor.pending_sends += 1
        else:
            op.expected[slot] = <int>n
            error = transport.recv(op.comm, data, <int>n, message.peer, tag, op.requests, slot)
        if error:
            fail(op, MPI_FAILED, error, message.peer, cursor.round)
            return -1
        cursor.pending += 1
        op.pending += 1
    cursor.posted = 1
    return 0


cdef void finish_segment(const Operation *op, const Cursor *cursor) noexcept nogil:
    """Scale the result, while it is in the cache."""
    cdef int64_t start = 0
    cdef int64_t n
    cdef int block
    if op.scale == NULL:
        return
    for block in range(1 if op.whole else op.nblocks):
        n = elements(op, cursor.segment, block, op.nblocks if op.whole else 1, &start)
        if n:
            op.scale(op.output + start * op.itemsize, op.output + start * op.itemsize, op.factor, n)


cdef int move(Operation *op, int k) noexcept nogil:
    """Move cursor k as far as it goes without waiting. Returns 0, or -1 if MPI failed."""
    cdef Cursor *cursor = &op.cursors[k]
    cdef const Round *round
    cdef const Step *step
    cdef int base = k * op.plan.slots
    while cursor.segment >= 0:
        if cursor.round == op.plan.nrounds:
            finish_segment(op, cursor)
            op.moved = 1
            cursor.segment += op.window
            cursor.round = 0
            cursor.step = 0
            if cursor.segment >= op.segments:
                cursor.segment = -1
                op.live -= 1
            continue
        round = &op.plan.rounds[cursor.round]
        if not cursor.posted:
            cursor.step = round.step
            op.moved = 1
            if post(op, k):
                return -1
        while cursor.step < round.steps_end:
            step = &op.plan.steps[cursor.step]
            if step.need >= 0 and not op.arrived[base + step.need]:
                return 0
            if step.other_need >= 0 and not op.arrived[base + step.other_need]:
                return 0
            if step.after_sends and cursor.pending_sends:
                return 0
            run_step(op, cursor, step)
            op.moved = 1
            cursor.step += 1
        if cursor.pending:
            return 0
        cursor.round += 1
        cursor.posted = 0
    return 0


cdef const Message *message_of(const Operation *op, int slot) noexcept nogil:
    """Return the message that a request slot stands for."""
    cdef const Cursor *cursor = &op.cursors[slot // op.plan.slots]
    return &op.plan.messages[op.plan.rounds[cursor.round].message + slot % op.plan.slots]


cdef void message_failed(Operation *op, int slot, int error) noexcept nogil:
    """End an operation because of MPI's error code for a slot (-1: it does not say which)."""
    cdef int kind = 0
    if slot < 0:
        fail(op, MPI_FAILED, error, -1, op.cursors[0].round)
        return
    cc_mpi.error_class(error, &kind)
    op.got = -1
    op.wanted = op.expected[slot]
    fail(
        op, WRONG_LENGTH if kind == cc_mpi.err_truncate else MPI_FAILED, error,
        message_of(op, slot).peer, op.cursors[slot // op.plan.slots].round,
    )


cdef int poll(Operation *op) noexcept nogil:
    """Ask MPI what has completed. Returns the number, or -1 if the operation failed."""
    cdef int count = 0
    cdef int i, slot
    cdef char *status
    cdef Cursor *cursor
    cdef int error = transport.poll(op.requests, op.slots, &count, op.done, op.statuses)
    if error == cc_mpi.err_in_status:
        for i in range(count):
            status = op.statuses + i * cc_mpi.status_size
            error = (<int *>(status + cc_mpi.error_offset))[0]
            if error:
                message_failed(op, op.done[i], error)
                return -1
    if error:
        message_failed(op, op.done[0] if op.slots == 1 else -1, error)
        return -1
    for i in range(count):
        slot = op.done[i]
        status = op.statuses + i * cc_mpi.status_size
        cursor = &op.cursors[slot // op.plan.slots]
        if op.expected[slot] < 0:
            cursor.pending_sends -= 1
        elif transport.length(status) != op.expected[slot]:
            op.got = transport.length(status)
            op.wanted = op.expected[slot]
            fail(op, WRONG_LENGTH, 0, message_of(op, slot).peer, cursor.round)
            return -1
        op.arrived[slot] = 1
        cursor.pending -= 1
        op.pending -= 1
    if count:
        op.moved = 1
    return count


cdef Status advance(Operation *op) noexcept nogil:
    """Move all cursors, ask MPI once, and move them again if something had completed."""
    cdef int k, again
    op.moved = 0
    for again in range(2):
        for k in range(op.window):
            if op.cursors[k].segment >= 0 and move(op, k):
                return op.status
        if op.live == 0:
            op.status = DONE
            return DONE
        if again or not op.pending or poll(op) <= 0:
            break
    return op.status


cdef void advance_in_flight() noexcept nogil:
    """Advance every operation in the list; the caller holds the lock."""
    cdef Operation *op = in_flight
    while op != NULL:
        if op.status == RUNNING:
            advance(op)
        op = op.next


cdef Status wait(Operation *op, int listed, int patience, double limit) noexcept nogil:
    """Advance until the operation ends, or `limit` on the clock has passed.

    A ladder: poll `patience` times, then give way to other processes between polls. An operation
    that is `listed` may be advanced by any thread, and only under the lock; where MPI takes one
    thread at a time, any other, too.
    """
    cdef int idle = 0
    cdef int moved
    while True:
        if listed or serialized:
            lock_in_flight()
            op.moved = 0
            if not listed:
                advance(op)
            advance_in_flight()
            moved = op.moved
            unlock_in_flight()
        else:
            advance(op)
            moved = op.moved
        if op.status != RUNNING:
            return op.status
        if moved:
            idle = 0
            continue
        if not listed and in_flight != NULL and try_lock_in_flight():
            advance_in_flight()
            unlock_in_flight()
        idle += 1
        if idle > patience:
            sched_yield()
        if idle & 63 == 0 and now() > limit:
            return RUNNING


cdef void enlist(Operation *op) noexcept nogil:
    """Put an operation into the list, after one first step."""
    global in_flight
    lock_in_flight()
    advance(op)
    op.next = in_flight
    in_flight = op
    unlock_in_flight()


cdef void unlink(Operation *op) noexcept nogil:
    """Take an operation out of the list, if it is there; the caller holds the lock."""
    cdef Operation **place = &in_flight
    while place[0] != NULL and place[0] != op:
        place = &place[0].next
    if place[0] == op:
        place[0] = op.next


cdef void delist(Operation *op) noexcept nogil:
    """Wait for the lock, and take an operation out of the list."""
    lock_in_flight()
    unlink(op)
    unlock_in_flight()
