# Steps on a device: each pass over memory is given to an object, which enqueues it on a stream.
#
# Lines and words of progress lie in the memory of the host as always, and the executor waits on
# them as always. Only the payloads, temporary slots and workspace have addresses of the device. A
# line or a word of progress shows that its owner has *enqueued* a pass, which need not be complete.
# A rank that has seen it makes its stream wait for an event of the owner before it enqueues a pass
# that depends on it. The object of the operation (`devices/passes.py`) does that. It has
#
#   segment      the pages, or None
#   arena(n)     memory for temporary slots and the workspace
#   begin(page)  order later passes after all passes that ranks have enqueued for the pages below
#   run(...)     enqueue a pass, and with a publication record an event, whose number is returned
#   finish(page) record an event behind all passes of a page
#   settles(k)   whether the device has completed all passes enqueued before cursor k asked
#   error        the exception of one of them
#
# MPI reads and writes memory of the device at any time, without regard to streams. So messages of a
# round are posted when the device has completed all passes that were enqueued before: it has
# written the blocks to send, and read those that will be overwritten.


cdef enum Question:
    BEGIN, FINISH, SETTLES


cdef int reserve_on_device(Operation *op, Plan plan) except -1:
    """Point the cursors of an operation to memory of the device."""
    cdef int64_t each = cursor_bytes(op, plan)
    cdef uintptr_t arena = (<object>op.device).arena(each * op.window) if each else 0
    cdef int k
    for k in range(op.window):
        op.state.cursors[k].memory = <char *>arena + k * each
    return 0


cdef int run_on_device(
    Operation *op, const Cursor *cursor, const Step *step, int64_t n, int64_t skip
) noexcept nogil:
    """Enqueue a step that is ready. Return 0, or -1 if the device failed."""
    cdef Sharing *shared = &op.shared
    cdef cc_segment *segment = shared.segment
    cdef int64_t nbytes = n * op.layout.itemsize
    cdef uint64_t page = shared.page + cursor.segment
    cdef cc_publication *line = NULL
    cdef char *payload = NULL
    cdef int64_t event = 0
    cdef uint64_t where = 0
    cdef cc_pass a_pass
    cdef cc_aside aside
    gather(op, cursor, step, skip, &a_pass)
    find_slots(op, step, page)
    if step.dst_space != NOWHERE:
        a_pass.dst = address(op, cursor, step.dst_space, step.dst, skip)
        if step.is_final and op.fold.scaled:
            a_pass.scale = op.fold.scale
    if step.publication >= 0:
        line = cc_line_of(segment, segment.me, page, step.publication)
        where = lendable(op, step, &a_pass, nbytes)
        if where:
            shared.lent = 1
        else:
            payload = segment.memory
            if n:
                payload = a_pass.publication = payload_of(op, cursor.segment, step.publication)
            where = cc_reference(segment, cc_ring_window(segment.me), payload)
    if n:
        event = enqueue(op, step, &a_pass, n, page, line != NULL)
        if event < 0:
            fail(op, DEVICE_FAILED, 0, -1, cursor.round)
            return -1
    if line != NULL:
        aside.output = aside.way = aside.pushed = 0
        aside.event = event
        cc_publish(segment, line, page, shared.said, where, nbytes, &aside)
    return 0


cdef void find_slots(const Operation *op, const Step *step, uint64_t page) noexcept nogil:
    """Point the operands that others have published to their addresses on this device."""
    cdef const cc_segment *segment = op.shared.segment
    cdef const Operand *operand
    cdef const cc_publication *line
    cdef int i
    for i in range(step.operand, step.operands_end):
        operand = &op.plan.operands[i]
        if operand.space == SLOT:
            line = cc_line_of(segment, operand.peer, page, operand.first)
            op.memory.sources[i - step.operand] = cc_address(segment, operand.peer, line.where)


cdef int64_t enqueue(
    Operation *op, const Step *step, const cc_pass *a_pass, int64_t n, uint64_t page, bint publishes
) noexcept with gil:
    """Enqueue a pass. Return the number of the event behind it, 0 if there is none, or -1 if the
    device failed.
    """
    cdef const Operand *operand
    cdef const cc_publication *line
    cdef int i
    side = <object>op.device
    try:
        sources, folds, after = [], [], []
        for i in range(a_pass.n):
            sources.append(<uintptr_t>a_pass.sources[i])
            folds.append(a_pass.folds[i])
            operand = &op.plan.operands[step.operand + i]
            if operand.space == SLOT:
                line = cc_line_of(op.shared.segment, operand.peer, page, operand.first)
                after.append((operand.peer, cc_aside_of(line).event))
        return side.run(
            after, sources, folds, <uintptr_t>a_pass.dst, <uintptr_t>a_pass.publication, n,
            a_pass.scale != NULL, page if publishes else None,
        )
    except BaseException as error:
        side.error = error
        return -1


cdef int begin_on_device(Operation *op, int64_t segment) noexcept nogil:
    """Order a segment after the finished pages of other ranks that it must wait for; or, at the end
    of the operation, later work after its pages. Return 0, or -1 if the device failed.
    """
    cdef uint64_t page = op.shared.page + segment
    if op.shared.segment == NULL:
        return 0
    if segment < op.layout.segments:
        page = needed_before(op, segment)
    return ask_device(op, BEGIN, page, 0)


cdef int finish_on_device(Operation *op, const Cursor *cursor) noexcept nogil:
    """Scale the result of a segment, if steps have not, and record the end of its page. Return 0,
    or -1 if the device failed.
    """
    cdef int places = op.layout.out_places
    cdef int64_t skip = 0
    cdef int64_t n
    cdef int place
    cdef uint64_t page = op.shared.page + cursor.segment
    cdef int failed = 0
    if op.fold.scale != NULL and not op.fold.scaled:
        for place in range(1 if op.layout.whole else places):
            n = elements(op, cursor.segment, OUT, place, places if op.layout.whole else 1, &skip)
            if n and not failed:
                failed = scale_on_device(op, address(op, cursor, OUT, place, skip), n)
    if failed:
        fail(op, DEVICE_FAILED, 0, -1, cursor.round)
    elif op.shared.segment != NULL:
        failed = ask_device(op, FINISH, page, cursor.round)
    return failed


cdef int scale_on_device(Operation *op, char *data, int64_t n) noexcept with gil:
    side = <object>op.device
    try:
        side.run([], [<uintptr_t>data], [0], <uintptr_t>data, 0, n, True, None)
    except BaseException as error:
        side.error = error
        return -1
    return 0


cdef int settles_on_device(Operation *op, int k) noexcept nogil:
    """Return 1 if the device has completed all passes enqueued before cursor k came to its
    messages, 0 if not, or -1 if the device failed.
    """
    return ask_device(op, SETTLES, k, op.state.cursors[k].round)


cdef int ask_device(Operation *op, Question what, uint64_t number, int round) noexcept with gil:
    """Call a method of the object for a page or a cursor. Return its result, 0 for None, or -1 if
    the device failed.
    """
    side = <object>op.device
    try:
        if what == SETTLES:
            return side.settles(number)
        if what == BEGIN:
            side.begin(number)
        else:
            side.finish(number)
        return 0
    except BaseException as error:
        side.error = error
        fail(op, DEVICE_FAILED, 0, -1, round)
        return -1


# Calls by pointers keep these functions out of the code for arrays of the host. With them inlined,
# an allreduce of 16 bytes on one rank took 560 ns instead of 522 (throw-away program; EPYC,
# 2026-11-22).
cdef int (*device_begins)(Operation *, int64_t) noexcept nogil
cdef int (*device_runs)(
    Operation *, const Cursor *, const Step *, int64_t, int64_t
) noexcept nogil
cdef int (*device_finishes)(Operation *, const Cursor *) noexcept nogil
cdef int (*device_settles)(Operation *, int) noexcept nogil
device_begins = begin_on_device
device_runs = run_on_device
device_finishes = finish_on_device
device_settles = settles_on_device
