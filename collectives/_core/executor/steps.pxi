# Steps: the test whether the operands of a step have arrived, and its pass over memory.

cdef enum:
    # Bytes of a block from which on its readers may ask the kernel for it, and from which on they
    # do so before it is known whether that is faster: an alltoall of 64 KiB on 2 ranks takes 3.7 us
    # with such reads, and 5.4 with copies (Xeon Sapphire Rapids, 2026-11-25).
    READ_LEAST = 4 << 10
    READ_FIRST = 32 << 10
    # Bytes that are read before they are folded. An allreduce of 256 KiB by all_to_all on 2 ranks
    # takes 32.8 us with pieces of 16 KiB, 26.5 with 32, then 23.5, 20.3, and 21.8 with 256.
    PIECE = 128 << 10
    MOST_SCRATCH = 512 << 10
    LENT = 4096  # bytes of a block from which on it may be lent: LENT in plans/lending.py


cdef inline int is_ready(Operation *op, Cursor *cursor, const Step *step) noexcept nogil:
    """Return 1 if all operands of a step are there, 0 if not, or -1 if one is of another call."""
    cdef const Operand *operand
    cdef const cc_publication *line
    cdef const Sharing *shared = &op.shared
    cdef int base = <int>(cursor - op.state.cursors) * op.plan.slots
    cdef int i
    if step.after_sends and cursor.pending_sends:
        return 0
    for i in range(step.operand, step.operands_end):
        operand = &op.plan.operands[i]
        if operand.space == SLOT:
            line = cc_published(
                shared.segment, operand.peer, shared.page + cursor.segment, operand.first
            )
            if line == NULL:
                cursor.awaited = operand.peer
                return 0
            if not cc_same(line.what, shared.said):
                fail(op, MISMATCHED, 0, operand.peer, cursor.round)
                return -1
            op.memory.sources[i - step.operand] = cc_payload(
                shared.segment, operand.peer, line
            )
        elif operand.need >= 0 and not op.slots.arrived[base + operand.need]:
            return 0
    return 1


cdef inline int gather(
    Operation *op, const Cursor *cursor, const Step *step, int64_t skip, cc_pass *a_pass
) noexcept nogil:
    """Point a pass to the operands of a step; is_ready() has found those that others published.
    Return the number of operands in other processes.
    """
    cdef int apart = 0
    cdef const char **sources = op.memory.sources
    cdef signed char *folds = op.memory.folds
    cdef const Operand *operand
    cdef int i
    a_pass.n = step.operands_end - step.operand
    for i in range(a_pass.n):
        operand = &op.plan.operands[step.operand + i]
        if operand.space != SLOT:
            sources[i] = address(op, cursor, operand.space, operand.first, skip)
        elif sources[i] == NULL:
            apart += 1
        folds[i] = operand.folds
    a_pass.sources = sources
    a_pass.folds = folds
    a_pass.dst = NULL
    a_pass.publication = NULL
    a_pass.scale = NULL
    a_pass.ntargets = 0
    a_pass.stream_dst = a_pass.stream_publication = a_pass.stream_targets = 0
    a_pass.by_library = op.shared.stores & CC_BY_LIBRARY
    return apart


cdef inline int run_step(Operation *op, Cursor *cursor, const Step *step) noexcept nogil:
    """Run a step that is ready. Return 0, or -1 if a fold written in Python raised."""
    cdef Sharing *shared = &op.shared
    cdef int64_t skip = 0
    cdef int64_t n = elements(op, cursor.segment, step.home_space, step.home, step.blocks, &skip)
    cdef int64_t nbytes = n * op.layout.itemsize
    cdef uint64_t page = shared.page + cursor.segment
    cdef cc_publication *line = NULL
    cdef cc_pass a_pass
    cdef uint64_t pushed = 0, lent = 0
    cdef int apart, away = 0, is_late = 0
    op.record.stepped = nbytes
    if op.device != NULL:
        return device_runs(op, cursor, step, n, skip)
    if nbytes > CC_INLINE and has_arrived(op, page, step):
        return 0
    if step.message >= 0 and step.publication < 0:
        apart = receive_late(op, cursor, step, skip, nbytes)
        if apart:
            return apart >> 1
    apart = gather(op, cursor, step, skip, &a_pass)
    if step.dst_space != NOWHERE:
        a_pass.dst = address(op, cursor, step.dst_space, step.dst, skip)
        if step.is_final:
            a_pass.stream_dst = shared.stores & CC_RESULTS
            if op.fold.scaled:
                a_pass.scale = op.fold.scale
                a_pass.factor = op.fold.factor
    if step.publication >= 0:
        line = cc_line_of(shared.segment, shared.segment.me, page, step.publication)
        a_pass.publication = line.payload
        if nbytes > CC_INLINE:
            if step.push < step.pushes_end and nbytes >= LENT:
                pushed = aim(op, page, step, &a_pass, &away)
            a_pass.publication = NULL
            if not pushed:
                lent = lendable(op, step, &a_pass, nbytes)
            is_late = step.message >= 0 and nbytes > op.layout.stride and not pushed and not lent
            if is_late and post_late(op, cursor, step, skip, nbytes):
                return -1
            if not pushed and not lent and not is_late:
                a_pass.publication = payload_of(op, cursor.segment, step.publication)
                a_pass.stream_publication = shared.stores & CC_PAYLOADS
    if n and (a_pass.dst != NULL or a_pass.publication != NULL):
        if apart or away:
            if reach(op, cursor, step, &a_pass, n, apart, away):
                return -1
        elif combine(op, cursor, &a_pass, n):
            return -1
    if line != NULL:
        if a_pass.stream_publication or (lent and a_pass.stream_dst) or pushed:
            cc_fence_streams()
        if lent:
            shared.lent = 1
        elif nbytes > CC_INLINE and not pushed and not is_late:
            lent = cc_reference(shared.segment, 0, a_pass.publication)
        show(op, line, page, lent, nbytes, pushed)
    return 0


cdef int receive_late(
    Operation *op, Cursor *cursor, const Step *step, int64_t skip, int64_t nbytes
) noexcept nogil:
    """Compare the length of a publication with that of its place, and receive its message if it has
    no payload. Return 1 if there is nothing to copy, 0 if there is, or -1 if the lengths or the
    counts of the two ranks differ, or MPI failed.
    """
    cdef const Operand *operand = &op.plan.operands[step.operand]
    cdef const cc_publication *line = cc_line_of(
        op.shared.segment, operand.peer, op.shared.page + cursor.segment, operand.first
    )
    if line.nbytes >> CC_OFFSET_BITS != op.shared.mark or op.shared.told:
        if is_other_mark(op, line.nbytes >> CC_OFFSET_BITS):
            fail(op, OTHER_COUNTS, 0, op.plan.messages[step.message].peer, cursor.round)
            return -1
        if op.shared.untold:
            return 1
    if cc_length(line) != nbytes:
        op.failure.got = cc_length(line)
        op.failure.wanted = nbytes
        fail(op, WRONG_LENGTH, 0, op.plan.messages[step.message].peer, cursor.round)
        return -1
    if nbytes <= CC_INLINE or line.where & ~CC_HAS_ASIDE:
        return 0
    return -1 if post_late(op, cursor, step, skip, nbytes) else 1


cdef inline bint is_other_mark(Operation *op, uint64_t mark) noexcept nogil:
    """Return whether a rank that was given counts has others than the root. Note that a root has
    none.
    """
    cdef uint64_t mine = op.shared.mark
    op.failure.got = mark
    if not op.shared.told:
        return mark and mark != mine
    op.shared.untold = not mark
    return mine and mark != mine


cdef inline bint has_arrived(
    const Operation *op, uint64_t page, const Step *step
) noexcept nogil:
    """Return whether a step would only copy a block that its owner has pushed already."""
    cdef const cc_segment *segment = op.shared.segment
    cdef const Operand *operand = &op.plan.operands[step.operand]
    cdef const cc_aside *aside
    if step.operands_end - step.operand != 1 or operand.space != SLOT or not step.is_final:
        return False
    if step.publication >= 0 or segment.me >= 64:
        return False
    aside = cc_aside_of(cc_line_of(segment, operand.peer, page, operand.first))
    return aside != NULL and aside.pushed >> segment.me & 1


cdef uint64_t aim(
    Operation *op, uint64_t page, const Step *step, cc_pass *a_pass, int *away
) noexcept nogil:
    """Make a pass write its result into the outputs of all ranks that read it; return their bits,
    or 0 if some of these outputs cannot be written. `away` is the number of outputs that the kernel
    must write.
    """
    cdef const cc_segment *segment = op.shared.segment
    cdef const cc_aside *aside
    cdef const Push *push
    cdef uint64_t pushed = 0
    cdef char *output
    cdef int i
    for i in range(step.push, step.pushes_end):
        push = &op.plan.pushes[i]
        aside = offer(segment, page, push)
        if aside == NULL or not aside.way & push.when or not aside.output:
            away[0] = a_pass.ntargets = 0
            return 0
        output = cc_address(segment, push.peer, aside.output)
        if output == NULL:
            away[0] += 1
        else:
            op.memory.targets[a_pass.ntargets] = output + (a_pass.dst - op.layout.output)
            a_pass.ntargets += 1
        pushed |= <uint64_t>1 << push.peer
    a_pass.targets = op.memory.targets
    a_pass.stream_targets = op.shared.stores & (CC_PAYLOADS | CC_RESULTS) != 0
    return pushed


cdef inline const cc_aside *offer(
    const cc_segment *segment, uint64_t page, const Push *push
) noexcept nogil:
    """Return the aside in which a rank describes its output for a push, or NULL."""
    cdef const cc_publication *line = cc_line_of(segment, push.peer, page, push.after)
    return cc_aside_of(line) if cc_length(line) > CC_INLINE and push.peer < 64 else NULL


cdef inline void show(
    const Operation *op, cc_publication *line, uint64_t page, uint64_t where, int64_t nbytes,
    uint64_t pushed,
) noexcept nogil:
    """Publish a payload, with an aside on the output and on ranks that have the result, if needed.
    """
    cdef const Sharing *shared = &op.shared
    cdef cc_aside aside
    cdef bint tells = nbytes > CC_INLINE and (pushed or shared.references[1])
    if tells:
        aside.output = shared.references[1]
        aside.way = shared.way
        aside.pushed = pushed
        aside.event = 0
    cc_publish(
        shared.segment, line, page, shared.said, where,
        <uint64_t>nbytes | shared.mark << CC_OFFSET_BITS, &aside if tells else NULL,
    )


cdef inline uint64_t lendable(
    const Operation *op, const Step *step, const cc_pass *a_pass, int64_t nbytes
) noexcept nogil:
    """Return the reference to the caller's memory that a step may publish in place, or 0."""
    cdef const cc_segment *segment = op.shared.segment
    cdef const char *data = a_pass.sources[0]
    cdef int space = step.dst_space
    if not step.lends & op.shared.way or nbytes < LENT or a_pass.scale != NULL:
        return 0
    if space == NOWHERE:
        space = op.plan.operands[step.operand].space
    else:
        data = a_pass.dst
    if op.shared.references[space]:
        if space == OUT:
            return op.shared.references[OUT] + (data - op.layout.output)
        return op.shared.references[IN] + (data - op.layout.input)
    if op.shared.stores & CC_LENDS and nbytes >= READ_LEAST:
        if op.shared.is_readable or cc_is_readable(segment.ranks[segment.me].pid, data, nbytes):
            return CC_KERNEL_REFERENCE | <uint64_t><uintptr_t>data
    return 0


cdef int reach(
    Operation *op, const Cursor *cursor, const Step *step, cc_pass *a_pass, int64_t n, int apart,
    int away,
) noexcept nogil:
    """Run a pass with operands or outputs in other processes, piece by piece, so that data is
    folded and written while it is in the cache. One operand is read to the place of the result, if
    no other operand lies there. Return 0, or -1 if the kernel refuses, or a fold raised.
    """
    cdef int64_t itemsize = op.layout.itemsize
    cdef bint is_copy = a_pass.n == 1
    cdef bint is_free = is_copy or is_apart(op, a_pass, n * itemsize)
    cdef bint only_read = (
        is_copy and not away and a_pass.scale == NULL and a_pass.ntargets == 0
        and (a_pass.dst == NULL or a_pass.publication == NULL)
    )
    cdef int64_t most = n if only_read else PIECE // itemsize
    cdef cc_pass part = a_pass[0]
    cdef int64_t at = 0
    cdef int64_t count
    cdef char *to
    cdef char *spare
    cdef int i
    if apart > is_free:
        most = (min(<int64_t>PIECE, op.memory.scratch_bytes // apart) & ~63) // itemsize
    part.sources = op.memory.parts
    while at < n:
        count = min(n - at, most)
        if a_pass.dst != NULL:
            part.dst = a_pass.dst + at * itemsize
        if a_pass.publication != NULL:
            part.publication = a_pass.publication + at * itemsize
        # Alignment to cache lines like that of the result saves an eighth of the time at 512 KiB.
        spare = op.memory.scratch + (<uintptr_t>part.dst & 63)
        to = spare
        if is_free:
            to = part.dst if part.dst != NULL else part.publication
        for i in range(a_pass.n):
            op.memory.parts[i] = to
            if a_pass.sources[i] != NULL:
                op.memory.parts[i] = a_pass.sources[i] + at * itemsize
            elif read_of(op, cursor, &op.plan.operands[step.operand + i], to, at, count):
                return -1
            elif to == part.dst:
                to = spare
            else:
                to += most * itemsize
        if not only_read and combine(op, cursor, &part, count):
            return -1
        if away and write_to(op, cursor, step, part.dst, count * itemsize):
            return -1
        for i in range(a_pass.ntargets):
            a_pass.targets[i] += count * itemsize
        at += count
    return 0


cdef inline bint is_apart(
    const Operation *op, const cc_pass *a_pass, int64_t nbytes
) noexcept nogil:
    """Return whether an operand may be read to the place of the result, which no other one uses."""
    cdef const char *source
    cdef int i
    if a_pass.dst == NULL or a_pass.stream_dst or op.fold.kernel == NULL:
        return False
    for i in range(a_pass.n):
        source = a_pass.sources[i]
        if source != NULL and source < a_pass.dst + nbytes and a_pass.dst < source + nbytes:
            return False
    return True


cdef int read_of(
    Operation *op, const Cursor *cursor, const Operand *operand, char *to, int64_t at, int64_t count
) noexcept nogil:
    """Read elements of an operand in the memory of its owner. Return 0, or -1 if that fails."""
    cdef const cc_segment *segment = op.shared.segment
    cdef const cc_publication *line = cc_line_of(
        segment, operand.peer, op.shared.page + cursor.segment, operand.first
    )
    cdef int64_t itemsize = op.layout.itemsize
    cdef int error = cc_read_process(
        segment.ranks[operand.peer].pid, to, (line.where & CC_OFFSET) + at * itemsize,
        count * itemsize,
    )
    if error:
        fail(op, UNREADABLE, error, operand.peer, cursor.round)
    return -1 if error else 0


cdef int write_to(
    Operation *op, const Cursor *cursor, const Step *step, const char *data, int64_t nbytes
) noexcept nogil:
    """Write data of this rank's output to the private outputs of others. Return 0, or -1 if that
    fails.
    """
    cdef const cc_segment *segment = op.shared.segment
    cdef const Push *push
    cdef uint64_t output
    cdef int error, i
    for i in range(step.push, step.pushes_end):
        push = &op.plan.pushes[i]
        output = offer(segment, op.shared.page + cursor.segment, push).output
        if cc_address(segment, push.peer, output) != NULL:
            continue
        error = cc_write_process(
            segment.ranks[push.peer].pid,
            (output & CC_OFFSET) + (data - op.layout.output), data, nbytes,
        )
        if error:
            fail(op, UNREADABLE, error, push.peer, cursor.round)
            return -1
    return 0


cdef inline int combine(
    Operation *op, const Cursor *cursor, const cc_pass *a_pass, int64_t n
) noexcept nogil:
    """Run a pass. Return 0, or -1 if a fold written in Python raised."""
    if op.fold.rows != NULL and a_pass.n > 1:
        cc_combine_rows(a_pass, op.fold.rows, op.fold.parts, n, op.layout.itemsize)
    elif op.fold.kernel != NULL or a_pass.n == 1:
        cc_combine(a_pass, op.fold.kernel, n, op.layout.itemsize)
    elif combine_by_user(op, cursor, a_pass, n):
        fail(op, FOLD_RAISED, 0, -1, cursor.round)
        return -1
    return 0


cdef int combine_by_user(
    Operation *op, const Cursor *cursor, const cc_pass *a_pass, int64_t n
) noexcept nogil:
    """Fold with a Python function, with intermediate results beside the temporary slots."""
    cdef int64_t stride = (n * op.layout.itemsize + 63) & ~63
    cdef char *spare = cursor.memory + op.layout.work_offset - op.fold.span * op.layout.stride
    cdef char *values[CC_HEIGHT]
    cdef char *made
    cdef bint is_left
    cdef int k
    cdef int height = 0
    cdef int folds
    for k in range(a_pass.n):
        is_left = a_pass.folds[k] < 0
        values[height] = <char *>a_pass.sources[k]
        height += 1
        for folds in range(1 if is_left else a_pass.folds[k]):
            height -= 1
            made = spare + (height - 1) * stride
            if k == a_pass.n - 1 and height == 1:
                made = a_pass.dst if a_pass.dst != NULL else a_pass.publication
            if is_left:
                if user_fold(op, made, values[height], values[height - 1], n):
                    return -1
            elif user_fold(op, made, values[height - 1], values[height], n):
                return -1
            values[height - 1] = made
    made = values[0]
    if a_pass.publication != NULL and a_pass.publication != made:
        memcpy(a_pass.publication, made, n * op.layout.itemsize)
    if a_pass.scale != NULL:
        a_pass.scale(made, made, a_pass.factor, n)
    for k in range(a_pass.ntargets):
        memcpy(a_pass.targets[k], made, n * op.layout.itemsize)
    return 0
