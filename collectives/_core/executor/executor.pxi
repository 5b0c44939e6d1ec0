# The executor: runs plans over the transport. No GIL, no Python objects, no algorithm.
#
# An operation has up to WINDOW cursors; cursor k runs segments k, k + WINDOW, ... one after the
# other, each through the whole program. advance() moves every cursor as far as it goes and returns,
# so that the caller decides how to wait. Messages of cursor k carry the tag of (operation, k):
# MPI keeps the order of messages with one tag between two ranks, and the proof says that the order
# of sends and receives between two ranks agrees, so no more is needed to match them.
#
# What goes through shared memory needs no matching: a segment is a page (segment.h), and a program
# names publications by page, rank and number.

cdef extern from "<sched.h>" nogil:
    int sched_getcpu()
    int sched_yield()

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int, timespec *)
    int nanosleep(const timespec *, timespec *)

# Operations started by i-calls. Whoever waits for anything advances all of them, as ranks may
# complete them in different orders; the lock is for whoever advances or changes the list.
cdef Operation *in_flight = NULL


cdef timespec NAP_TIME
NAP_TIME.tv_sec = 0
NAP_TIME.tv_nsec = 50000


cdef double now() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec + 1e-9 * t.tv_nsec


cdef inline int64_t place_start(const Operation *op, int space, int64_t place) noexcept nogil:
    """Return the element at which a place of a space starts."""
    cdef const int64_t *starts = op.starts[space]
    return starts[place] if starts != NULL else op.part * place // op.cut


cdef inline int64_t elements(
    const Operation *op, int64_t segment, int space, int first, int count, int64_t *skip
) noexcept nogil:
    """Return how many elements of a run of blocks are in the segment, after how many others."""
    cdef int64_t length
    skip[0] = 0
    if op.whole:
        return place_start(op, space, first + count) - place_start(op, space, first)
    length = place_start(op, space, first + 1) - place_start(op, space, first)
    skip[0] = length * segment // op.segments
    return length * (segment + 1) // op.segments - skip[0]


cdef inline char *address(
    const Operation *op, const Cursor *cursor, int space, int first, int64_t skip
) noexcept nogil:
    """Return where a run of blocks of the cursor's segment lies; elements() gave `skip`."""
    if space == IN:
        return op.input + (place_start(op, IN, first) + skip) * op.itemsize
    if space == OUT:
        return op.output + (place_start(op, OUT, first) + skip) * op.itemsize
    if space == TMP:
        return cursor.memory + first * op.stride
    if op.whole:
        return cursor.memory + op.work_offset + place_start(op, WORK, first) * op.itemsize
    return cursor.memory + op.work_offset + first * op.stride


cdef inline int is_ready(Operation *op, Cursor *cursor, const Step *step) noexcept nogil:
    """Say whether all operands of a step are there: 1 or 0, or -1 if one is of another call."""
    cdef const Operand *operand
    cdef const cc_publication *line
    cdef int base = <int>(cursor - op.cursors) * op.plan.slots
    cdef int i
    if step.after_sends and cursor.pending_sends:
        return 0
    for i in range(step.operand, step.operands_end):
        operand = &op.plan.operands[i]
        if operand.space == SLOT:
            line = cc_published(
                op.segment, operand.peer, op.page + cursor.segment, operand.first
            )
            if line == NULL:
                cursor.awaited = operand.peer
                return 0
            if not cc_same(line.what, op.said):
                fail(op, MISMATCHED, 0, operand.peer, cursor.round)
                return -1
            op.sources[i - step.operand] = cc_payload(op.segment, line)
        elif operand.need >= 0 and not op.arrived[base + operand.need]:
            return 0
    return 1


cdef inline int run_step(Operation *op, const Cursor *cursor, const Step *step) noexcept nogil:
    """Run a step that is ready. Returns 0, or -1 if a fold written in Python raised."""
    cdef int64_t skip = 0
    cdef int64_t n = elements(op, cursor.segment, step.home_space, step.home, step.count, &skip)
    cdef uint64_t page = op.page + cursor.segment
    cdef const Operand *operand
    cdef cc_publication *line = NULL
    cdef cc_pass a_pass
    cdef char *lent = NULL
    cdef int window = 0
    cdef int i
    op.stepped = n * op.itemsize
    a_pass.n = step.operands_end - step.operand
    for i in range(a_pass.n):
        operand = &op.plan.operands[step.operand + i]
        if operand.space != SLOT:
            op.sources[i] = address(op, cursor, operand.space, operand.first, skip)
        op.sides[i] = operand.is_left
    a_pass.sources = op.sources
    a_pass.is_left = op.sides
    a_pass.dst = NULL
    a_pass.publication = NULL
    a_pass.scale = NULL
    a_pass.stream_dst = a_pass.stream_publication = 0
    if step.dst_space != NOWHERE:
        a_pass.dst = address(op, cursor, step.dst_space, step.dst, skip)
        if step.is_final:
            a_pass.stream_dst = op.stores & CC_RESULTS
            if op.scaled:
                a_pass.scale = op.scale
                a_pass.factor = op.factor
    if step.publication >= 0:
        line = cc_line_of(op.segment, op.segment.me, page, step.publication)
        a_pass.publication = line.payload
        if n * op.itemsize > CC_INLINE:
            lent = lendable(op, step, &a_pass, n * op.itemsize, &window)
            a_pass.publication = NULL
            if lent == NULL:
                a_pass.publication = (
                    cc_buffer_of(op.segment, buffer_number(op, cursor.segment))
                    + step.publication * op.stride
                )
                a_pass.stream_publication = op.stores & CC_PAYLOADS
    if n and (a_pass.dst != NULL or a_pass.publication != NULL):
        if op.fold != NULL or a_pass.n == 1:
            cc_combine(&a_pass, op.fold, n, op.itemsize)
        elif combine_by_user(op, cursor, &a_pass, n):
            fail(op, FOLD_RAISED, 0, -1, cursor.round)
            return -1
    if line != NULL:
        if a_pass.stream_publication or (lent != NULL and a_pass.stream_dst):
            cc_fence_streams()
        if lent == NULL:
            lent = a_pass.publication
        else:
            op.lent = 1
        cc_publish(op.segment, line, page, op.said, window, lent, n * op.itemsize)
    return 0


cdef inline char *lendable(
    const Operation *op, const Step *step, const cc_pass *a_pass, int64_t nbytes, int *window
) noexcept nogil:
    """Return the caller's memory that a step may publish as it is, or NULL; and its window."""
    cdef int space = step.dst_space
    if not step.lends & op.way or nbytes < LENT or a_pass.scale != NULL:
        return NULL
    if space == NOWHERE:
        space = op.plan.operands[step.operand].space
    window[0] = op.windows[space]
    if window[0] == 0:
        return NULL
    return a_pass.dst if a_pass.dst != NULL else <char *>a_pass.sources[0]


cdef int combine_by_user(
    Operation *op, const Cursor *cursor, const cc_pass *a_pass, int64_t n
) noexcept nogil:
    """Fold with a function of Python, in memory beside the temporary slots until the last fold."""
    cdef char *made = <char *>a_pass.sources[0]
    cdef char *other
    cdef char *to
    cdef int k
    for k in range(1, a_pass.n):
        other = <char *>a_pass.sources[k]
        to = cursor.memory + op.work_offset - op.span * op.stride
        if k == a_pass.n - 1:
            to = a_pass.dst if a_pass.dst != NULL else a_pass.publication
        if a_pass.is_left[k]:
            if user_fold(op.user, to, other, made, n):
                return -1
        elif user_fold(op.user, to, made, other, n):
            return -1
        made = to
    if a_pass.publication != NULL and a_pass.publication != made:
        memcpy(a_pass.publication, made, n * op.itemsize)
    if a_pass.scale != NULL:
        a_pass.scale(made, made, a_pass.factor, n)
    return 0


cdef inline int buffer_number(const Operation *op, int64_t segment) noexcept nogil:
    """Return which of this rank's buffers a segment publishes in.

    Operations of many segments use as few buffers as they have cursors: what is used again soon is
    still in the cache.
    """
    if op.segments > 1:
        return <int>(segment % WINDOW)
    return <int>(op.page % CC_LANES)


cdef inline uint64_t needed_before(const Operation *op, int64_t segment) noexcept nogil:
    """Return how many pages all ranks must have finished before a segment may publish."""
    cdef uint64_t page = op.page + segment
    cdef uint64_t needed = op.needed
    if page >= CC_LANES and page - CC_LANES + 1 > needed:
        needed = page - CC_LANES + 1
    if segment >= WINDOW and page - WINDOW + 1 > needed:
        needed = page - WINDOW + 1
    return needed


cdef void fail(Operation *op, Failure why, int error, int peer, int round) noexcept nogil:
    """End an operation; what it had posted is let go of, and its memory must stay."""
    cdef int slot
    if op.tape != NULL:
        end_of_call(op, CC_T_FAILED)
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
    cdef int i, slot
    cdef int64_t skip = 0
    cdef int64_t total = 0
    cdef int64_t n
    if op.tape != NULL:
        end_wait(op, cursor)
    for i in range(round.message, round.messages_end):
        message = &op.plan.messages[i]
        slot = base + i - round.message
        n = elements(
            op, cursor.segment, message.home_space, message.home, message.count, &skip
        ) * op.itemsize
        op.arrived[slot] = n == 0 and not op.sends_nothing
        if op.arrived[slot]:
            continue
        op.since[slot] = op.clock
        total += n
        if post_piece(op, cursor, message, slot, tag, skip, 0, n):
            return -1
        if message.send:
            cursor.pending_sends += 1
        cursor.pending += 1
        op.pending += 1
    cursor.posted = 1
    if op.tape != NULL and round.message < round.messages_end:
        note_until_now(op, CC_T_POST, total, -1, place_of(cursor))
    return 0


cdef inline int post_piece(
    Operation *op, Cursor *cursor, const Message *message, int slot, int tag, int64_t skip,
    int64_t done, int64_t n,
) noexcept nogil:
    """Post a message of `n` bytes, of which some are `done`, as far as MPI counts in one call."""
    cdef char *data = address(op, cursor, message.space, message.first, skip) + done
    cdef int piece = <int>min(n - done, <int64_t>MAX_PIECE)
    cdef int error
    op.rest[slot] = n - done - piece
    if message.send:
        op.expected[slot] = -1
        error = transport.send(op.comm, data, piece, message.peer, tag, op.requests, slot)
    else:
        op.expected[slot] = piece
        error = transport.recv(op.comm, data, piece, message.peer, tag, op.requests, slot)
    if error:
        fail(op, MPI_FAILED, error, message.peer, cursor.round)
        return -1
    return 0


cdef int post_rest(Operation *op, int slot) noexcept nogil:
    """Post the next piece of a message, the one before it having completed.

    The pieces of different messages would meet if a round had two between the same ranks; the
    plans that are not cut into segments have one at most.
    """
    cdef int k = slot // op.plan.slots
    cdef Cursor *cursor = &op.cursors[k]
    cdef const Message *message = message_of(op, slot)
    cdef int64_t skip = 0
    cdef int64_t n = elements(
        op, cursor.segment, message.home_space, message.home, message.count, &skip
    ) * op.itemsize
    return post_piece(op, cursor, message, slot, op.tag + k, skip, n - op.rest[slot], n)


cdef void finish_segment(const Operation *op, const Cursor *cursor) noexcept nogil:
    """Scale the result, if steps have not, while it is in the cache; leave the page."""
    cdef int64_t skip = 0
    cdef int64_t n
    cdef int place
    cdef char *data
    if op.segment != NULL:
        cc_finish(op.segment, op.page + cursor.segment)
    if op.scale == NULL or op.scaled:
        return
    for place in range(1 if op.whole else op.out_places):
        n = elements(op, cursor.segment, OUT, place, op.out_places if op.whole else 1, &skip)
        if n:
            data = address(op, cursor, OUT, place, skip)
            op.scale(data, data, op.factor, n)


cdef int move(Operation *op, int k) noexcept nogil:
    """Move cursor k as far as it goes without waiting. Returns 0, or -1 if MPI failed."""
    cdef Cursor *cursor = &op.cursors[k]
    cdef const Round *round
    cdef const Step *step
    cdef int ready
    while cursor.segment >= 0:
        # Receives come first. What others send would pile up in MPI while this rank waits for its
        # page, and MPICH runs out of room for what ranks need to come that far.
        if cursor.round < op.plan.nrounds and not cursor.posted:
            cursor.step = op.plan.rounds[cursor.round].step
            op.moved = 1
            if post(op, k):
                return -1
        if not cursor.started:
            if op.segment != NULL and not cc_all_finished(
                op.segment, needed_before(op, cursor.segment)
            ):
                if op.tape != NULL and not op.idle:
                    cursor.awaited = slowest(op, needed_before(op, cursor.segment))
                return 0
            cursor.started = 1
            if op.tape != NULL:
                end_wait(op, cursor)
        if cursor.round == op.plan.nrounds:
            finish_segment(op, cursor)
            op.moved = 1
            cursor.segment += op.window
            cursor.round = 0
            cursor.step = 0
            cursor.started = 0
            if cursor.segment >= op.segments:
                cursor.segment = -1
                op.live -= 1
            continue
        round = &op.plan.rounds[cursor.round]
        while cursor.step < round.steps_end:
            step = &op.plan.steps[cursor.step]
            ready = is_ready(op, cursor, step)
            if ready <= 0:
                return ready
            if op.tape != NULL:
                end_wait(op, cursor)
            if run_step(op, cursor, step):
                return -1
            if op.tape != NULL:
                note_step(op, cursor, step)
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
        if op.expected[slot] >= 0 and transport.length(status) != op.expected[slot]:
            op.got = transport.length(status)
            op.wanted = op.expected[slot]
            fail(op, WRONG_LENGTH, 0, message_of(op, slot).peer, cursor.round)
            return -1
        if op.rest[slot]:
            if post_rest(op, slot):
                return -1
            continue
        if op.expected[slot] < 0:
            cursor.pending_sends -= 1
        op.arrived[slot] = 1
        cursor.pending -= 1
        op.pending -= 1
    if count:
        op.moved = 1
        if op.tape != NULL:
            note_messages(op, count)
    return count


cdef Status advance(Operation *op) noexcept nogil:
    """Move all cursors, ask MPI once, and move them again if something had completed."""
    cdef int k, again
    op.moved = 0
    if op.tape != NULL and not op.watched:
        op.clock = cc_ticks()
        op.idle = 0
        op.open = NULL
    for again in range(2):
        for k in range(op.window):
            if op.cursors[k].segment >= 0 and move(op, k):
                return op.status
        if op.live == 0:
            if op.lent and not cc_all_finished(op.segment, op.page + op.segments):
                if op.tape != NULL and not op.idle:
                    op.idle = 1
                    op.cursors[0].awaited = slowest(op, op.page + op.segments)
                return RUNNING
            if op.stores & CC_RESULTS:
                cc_fence_streams()
            if op.tape != NULL:
                end_of_call(op, CC_T_CALL)
            op.status = DONE
            return DONE
        if again or not op.pending or poll(op) <= 0:
            break
    if op.tape != NULL and not op.moved:
        op.idle = 1
    return op.status


cdef void advance_in_flight() noexcept nogil:
    """Advance every operation in the list; the caller holds the lock."""
    cdef Operation *op = in_flight
    while op != NULL:
        if op.status == RUNNING:
            advance(op)
        op = op.next


cdef bint awaits(const Operation *op, const Cursor *cursor, int rank) noexcept nogil:
    """Say whether a cursor waits for a rank of this host: to finish a page, or to publish."""
    cdef uint64_t page = op.page + cursor.segment
    cdef const Operand *operand
    cdef const Step *step
    cdef int i
    if cursor.segment < 0 or op.segment == NULL:
        return False
    if not cursor.started:
        return cc_read(&op.segment.ranks[rank].progress) < needed_before(op, cursor.segment)
    if cursor.round == op.plan.nrounds or cursor.step == op.plan.rounds[cursor.round].steps_end:
        return False
    step = &op.plan.steps[cursor.step]
    for i in range(step.operand, step.operands_end):
        operand = &op.plan.operands[i]
        if operand.space == SLOT and operand.peer == rank:
            if cc_published(op.segment, rank, page, operand.first) == NULL:
                return True
    return False


cdef bint must_give_way(const Operation *op) noexcept nogil:
    """Say whether an operation waits for a rank that was last seen on the core of this one."""
    cdef const cc_segment *segment = op.segment
    cdef int rank, k
    for rank in range(segment.p):
        if rank != segment.me and segment.ranks[rank].core == segment.ranks[segment.me].core:
            for k in range(op.window):
                if awaits(op, &op.cursors[k], rank):
                    return True
    return False


cdef Status wait(
    Operation *op, int listed, int patience, double limit, int drowsy
) noexcept nogil:
    """Advance until the operation ends, or `limit` on the clock has passed.

    A ladder: poll `patience` times, then give way to other processes between polls; if `drowsy`,
    as who has waited for long, sleep for a moment instead. (A futex would need a look at who sleeps
    with every publication.) An operation
    that is `listed` may be advanced by any thread, and only under the lock; where MPI takes one
    thread at a time, any other, too.
    """
    cdef bint at_flags = op.plan.slots == 0 and op.segment != NULL
    cdef int idle = 0
    cdef int moved
    cdef int looks = 0
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
        if drowsy and idle > patience:
            nanosleep(&NAP_TIME, NULL)
        elif idle <= patience:
            cc_pause()
        elif at_flags and patience < BRIEF and looks < AWAY and not must_give_way(op):
            looks += 1
            cc_pause()
        else:
            looks = 0
            sched_yield()
        if idle & 63 and not drowsy:
            continue
        if op.tape != NULL:
            if listed:
                lock_in_flight()
            keep_waiting(op)
            if listed:
                unlock_in_flight()
        if not op.pending:
            # What the program has sent with MPI itself moves in MPI's calls only, and another rank
            # may wait for that before it comes.
            if serialized:
                lock_in_flight()
            transport.nudge(op.comm)
            if serialized:
                unlock_in_flight()
        if now() > limit:
            return RUNNING


cdef void enlist(Operation *op) noexcept nogil:
    """Put an operation into the list, after one first step."""
    global in_flight
    lock_in_flight()
    if op.tape != NULL:
        note_until_now(op, CC_T_QUEUE, 0, -1, 0)
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
