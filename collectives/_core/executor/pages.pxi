# Pages: publications of the other ranks of the host that a segment needs.
#
# Data in shared memory needs no matching: a segment is a page (shared/segment.h), and a program
# names publications by page, rank and number.


cdef inline char *payload_of(
    const Operation *op, int64_t segment, int publication
) noexcept nogil:
    """Return the address of the payload of a publication."""
    cdef const cc_run *run = &op.shared.run
    return (
        op.shared.segment.memory + run.first + segment % run.slots * run.room
        + publication * op.layout.stride
    )


cdef inline uint64_t needed_before(const Operation *op, int64_t segment) noexcept nogil:
    """Return the number of pages that all ranks must have finished before a segment may publish."""
    cdef uint64_t page = op.shared.page + segment
    cdef uint64_t needed = cc_run_needs(&op.shared.run, op.shared.page, segment)
    if page >= CC_LANES and page - CC_LANES + 1 > needed:
        needed = page - CC_LANES + 1
    return needed


cdef int slowest(const Operation *op, uint64_t page) noexcept nogil:
    """Return the first rank of this host that has not finished the pages below `page`."""
    cdef const cc_segment *segment = op.shared.segment
    cdef int rank
    for rank in range(segment.p):
        if cc_read(&segment.ranks[rank].progress) < page:
            return rank
    return -1


cdef bint awaits(const Operation *op, const Cursor *cursor, int rank) noexcept nogil:
    """Return whether a cursor waits for a rank of this host: to finish a page, or to publish."""
    cdef const cc_segment *segment = op.shared.segment
    cdef uint64_t page = op.shared.page + cursor.segment
    cdef const Operand *operand
    cdef const Step *step
    cdef int i
    if cursor.segment < 0 or segment == NULL:
        return False
    if not cursor.started:
        return cc_read(&segment.ranks[rank].progress) < needed_before(op, cursor.segment)
    if cursor.round == op.plan.nrounds or cursor.step == op.plan.rounds[cursor.round].steps_end:
        return False
    step = &op.plan.steps[cursor.step]
    for i in range(step.operand, step.operands_end):
        operand = &op.plan.operands[i]
        if operand.space == SLOT and operand.peer == rank:
            if cc_published(segment, rank, page, operand.first) == NULL:
                return True
    return False


cdef bint must_give_way(const Operation *op) noexcept nogil:
    """Return whether an operation waits for a rank that last ran on the core of this one."""
    cdef const cc_segment *segment = op.shared.segment
    cdef int rank, k
    for rank in range(segment.p):
        if rank != segment.me and segment.ranks[rank].core == segment.ranks[segment.me].core:
            for k in range(op.window):
                if awaits(op, &op.state.cursors[k], rank):
                    return True
    return False
