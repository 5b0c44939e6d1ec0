# Operations: a checked call, written down as what the executor runs.

cdef int configure(Engine engine, Operation *op, Call *call, Choice choice) except -1:
    """Fill an operation with what a call does; nothing is allocated that it has already."""
    cdef Plan plan = choice.plan
    cdef int64_t block  # elements of the longest one
    cdef int64_t largest = choice.segment if 0 < choice.segment < MAX_PIECE else MAX_PIECE
    # Where ranks do not know each other's counts, they could not agree on segments.
    cdef bint ragged = call.kind == EXCHANGE or (call.kind == ALLTOALL and call.counts != NULL)
    cdef bint fits = True
    op.segment = &engine.segment.c if plan.lines and engine.segment is not None else NULL
    op.call = NO_CALL
    op.comm = engine.comm
    op.input = call.x.data if call.prescale == 1.0 else call.scaled.data
    op.output = call.out.data
    op.itemsize = call.x.itemsize
    op.cut = plan.cut
    op.part = call.part
    op.out_places = plan.places[<int>OUT]
    op.starts[<int>IN] = op.starts[<int>OUT] = op.starts[<int>WORK] = NULL
    if call.counts != NULL or (plan.has_parcels and plan.cut > 1):
        block = tabulate(engine, op, call, plan)
    else:
        block = ceiling(call.part, plan.cut)
    if engine.segment is not None and call.kind != EXCHANGE:
        fingerprint(call, choice, call.nbytes // call.x.itemsize, op.what)
    if plan.room:
        # Lanes have room for all publications of a segment, on whichever host.
        largest = min(largest, plan.room)
        fits = ((block * op.itemsize + 63) & ~63) <= plan.room
    op.segments = 1
    if block * op.itemsize > largest and not ragged:
        op.segments = ceiling(block, max(1, largest // op.itemsize))
    op.whole = op.segments == 1 and fits and (ragged or call.nbytes <= MAX_PIECE)
    op.plan = &plan.whole if op.whole else &plan.split
    # A message that is sent and not received, as the lengths differ, would meet the next.
    op.sends_nothing = call.kind == EXCHANGE
    op.window = <int>min(op.segments, <int64_t>WINDOW)
    op.fold = call.fold
    op.nbytes = call.nbytes
    op.user = call.user
    op.scale = call.scale if call.factor != 1.0 and call.out.data != NULL else NULL
    op.factor = call.factor
    op.scaled = op.plan.scaled
    choose_stores(op, call.kind, engine.stores)
    op.windows[0] = op.windows[1] = op.way = 0
    if op.segment != NULL and op.segment.nwindows > 1:
        find_windows(op, call)
    # A temporary slot holds the longest piece; slots of 64 bytes keep vectors on cache lines.
    op.stride = (ceiling(block, op.segments) * op.itemsize + 63) & ~63
    if plan.room and op.stride > plan.room:
        release(op)
        raise ArgumentError(
            f"x has items of {call.x.itemsize} bytes, and lanes have room for {plan.room} at a "
            f"time (COLLECTIVES_SHM_LANE)"
        )
    op.work_offset = (plan.tmp + (plan.span if op.user != NULL else 0)) * op.stride
    op.span = plan.span
    op.slots = op.window * op.plan.slots
    if reserve(op, plan):
        release(op)
        raise MemoryError(f"no memory for the temporary blocks of {title(plan)}")
    return 0


cdef void choose_stores(Operation *op, int kind, int stores) noexcept:
    """Decide what is written past the cache, or that it is to be learned."""
    cdef int64_t everywhere = op.nbytes * (op.segment.p if op.segment != NULL else 1)
    op.habit = -1
    op.usual = CC_RESULTS if everywhere >= STREAMED else 0
    if stores == 2:
        op.usual |= CC_PAYLOADS
    op.stores = op.usual
    if op.segment != NULL and stores == 0 and everywhere >= LEARNED:
        # Kinds of operations, by powers of two of their bytes.
        op.habit = 8 * kind + min(max(bit_length(op.nbytes) - 20, 0), 7)


cdef void find_windows(Operation *op, const Call *call) noexcept:
    """Note which of the caller's arrays are in shared memory, and whether they are one."""
    op.way = 2 if overlap(&call.x, &call.out) else 1
    if op.scale != NULL and not op.scaled:  # which happens at the end of a segment, where they lie
        return
    if op.input == call.x.data and call.x.count:
        op.windows[0] = cc_window_of(op.segment, op.input, call.x.count * call.x.itemsize)
    if call.out.count:
        op.windows[1] = cc_window_of(op.segment, op.output, call.out.count * call.out.itemsize)


cdef int64_t tabulate(Engine engine, Operation *op, Call *call, Plan plan) except -1:
    """Write down where each place starts; return the elements of the longest block."""
    cdef int64_t longest = 0
    cdef int64_t size, start, length
    cdef int64_t *table
    cdef int space, i, part, k
    if reserve_tables(op, plan.places[0] + plan.places[1] + plan.places[2] + 3):
        raise MemoryError
    table = op.tables
    for space in range(3):
        op.starts[space] = table
        start = 0
        for i in range(plan.places[space]):
            part = plan.blocks[space][i] // plan.cut
            k = plan.blocks[space][i] % plan.cut
            table[i] = start
            size = part_size(engine, call, part)
            length = size * (k + 1) // plan.cut - size * k // plan.cut
            start += length
            longest = max(longest, length)
        table[plan.places[space]] = start
        table += plan.places[space] + 1
    # Ranks agree on the longest block although each has places for some of them only.
    if call.counts != NULL and call.kind < KINDS and call.kind != ALLTOALL:
        for i in range(engine.size):
            longest = max(longest, ceiling(call.counts[i], plan.cut))
    return longest


cdef int64_t part_size(Engine engine, const Call *call, int part) noexcept:
    """Return the elements of a part."""
    if call.counts == NULL:
        return call.part
    if call.kind != ALLTOALL:
        return call.counts[part]
    if part // engine.size == engine.rank:
        return call.counts[part % engine.size]
    return call.receive_counts[part // engine.size]
