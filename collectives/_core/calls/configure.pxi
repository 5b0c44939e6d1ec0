# The configuration of an operation, which the executor runs, for a checked call.

cdef enum:
    PAST = 4 << 10  # bytes of payloads in a page from which on it pays to write for far cores
    STREAMED = 32 << 20  # bytes from which on results are taken not to stay in the cache


cdef int configure(Engine engine, Operation *op, Arguments *call, Choice choice) except -1:
    """Configure an operation for a call; memory that it has already is used again."""
    cdef Plan plan = choice.plan
    cdef int64_t count, room
    op.device = call.device
    op.shared.segment = &engine.segment.c if plan.lines and engine.segment is not None else NULL
    room = plan.room
    if op.device != NULL:
        room = use_pages_of(op, plan)
    op.shared.call = NO_CALL
    op.transport = engine.transport
    op.comm = engine.comm
    op.nbytes = call.nbytes
    op.announced = call.announced
    op.looks = call.looks
    op.shared.mark = call.mark
    op.shared.told = call.own_only and call.kind == SCATTER
    count = call.nbytes // call.x.itemsize if call.whole < 0 else call.whole
    fingerprint(call, choice, count, op.shared.what)
    op.what = message_word(op.shared.what)
    lay_out(engine, op, call, plan, choice.segment if op.device == NULL else 0, room)
    op.plan = &plan.whole if op.layout.whole else &plan.split
    # Ranks without the counts of others may send too much, and a rank in a barrier may get an array
    # of another call. Open MPI 5 writes messages of a size from about 4 KiB on behind the end of
    # their receive before it reports that.
    op.looks_first = op.transport.overruns and (
        call.kind == BARRIER or is_ragged(call) and call.kind < KINDS
    )
    # If the lengths differ, a message that is sent and not received would meet the next receive.
    op.sends_nothing = call.kind == EXCHANGE or (call.kind >= NEIGHBORS and call.counts != NULL)
    op.window = <int>min(op.layout.segments, <int64_t>WINDOW)
    op.slots.in_use = op.window * op.plan.slots
    set_fold(op, call, plan)
    op.shared.room = plan.lines * op.layout.stride
    if op.shared.room <= CC_INLINE and op.device == NULL:
        op.shared.room = 0
    note_stores(op, call.kind, engine.stores if op.device == NULL else 1, choice.ways)
    if room and op.layout.stride > room:
        release(op)
        raise ArgumentError(
            f"x has items of {call.x.itemsize} bytes, and lanes have room for {room} at a "
            f"time (COLLECTIVES_SHM_LANE)"
        )
    # The temporary slots come first, then the memory of folds in Python.
    op.layout.work_offset = plan.tmp * op.layout.stride
    if op.fold.user != NULL:
        op.layout.work_offset += plan.span * op.layout.stride
    if reserve(op, plan):
        release(op)
        raise MemoryError(f"no memory for the temporary blocks of {title(plan)}")
    if op.device != NULL:
        try:
            reserve_on_device(op, plan)
        except BaseException:
            release(op)
            raise
    return 0


cdef int64_t use_pages_of(Operation *op, Plan plan) except -1:
    """Set the pages of an operation to those of its device; return the most bytes of a publication.
    """
    cdef object segment = (<object>op.device).segment
    if op.shared.segment == NULL or segment is None:
        return 0
    op.shared.segment = &(<Segment>segment).c
    return op.shared.segment.lane_bytes // plan.lines & ~63


cdef inline int lay_out(
    Engine engine, Operation *op, Arguments *call, Plan plan, int64_t segment, int64_t room
) except -1:
    """Set the places of blocks, and the number of segments of `segment` bytes that they are cut
    into; a publication may have `room` bytes.
    """
    cdef Layout *layout = &op.layout
    cdef int64_t block  # elements of the longest one
    cdef int64_t largest = segment if 0 < segment < MAX_PIECE else MAX_PIECE
    # Ranks that do not know each other's counts cannot agree on segments.
    cdef bint ragged = call.kind == EXCHANGE or is_ragged(call)
    cdef bint fits = True
    layout.itemsize = call.x.itemsize
    layout.cut = plan.cut
    layout.part = call.part
    layout.out_places = plan.places[<int>OUT]
    layout.starts[<int>IN] = layout.starts[<int>OUT] = layout.starts[<int>WORK] = NULL
    if call.counts != NULL or (plan.has_parcels and plan.cut > 1):
        block = tabulate(engine, op, call, plan)
    else:
        block = ceiling(call.part, plan.cut)
    if room:
        # Lanes of all hosts have room for all publications of a segment.
        largest = min(largest, room)
        fits = ((block * layout.itemsize + 63) & ~63) <= room
    layout.segments = 1
    if block * layout.itemsize > largest and not ragged:
        layout.segments = ceiling(block, max(1, largest // layout.itemsize))
    layout.whole = layout.segments == 1 and (ragged or (fits and call.nbytes <= MAX_PIECE))
    # A temporary slot holds the longest piece; slots of 64 bytes keep vectors on cache lines.
    layout.stride = (ceiling(block, layout.segments) * layout.itemsize + 63) & ~63
    if ragged and room:
        layout.stride = min(layout.stride, room)  # longer blocks are lent, or go by messages
    return 0


cdef inline void set_fold(Operation *op, const Arguments *call, Plan plan) noexcept:
    """Set the kernels that fold and scale; the plan of the operation is set already."""
    op.fold.kernel = call.fold
    op.fold.rows = call.rows
    op.fold.parts = call.parts
    op.fold.user = call.user
    # Scaling by 1 also gives elements that are only moved the NaN of exact sums.
    cdef bint is_scaled = call.factor != 1.0 or (call.rows != NULL and plan.width == 1)
    op.fold.scale = call.scale if is_scaled and call.out.data != NULL else NULL
    op.fold.factor = call.factor
    op.fold.scaled = op.plan.scaled
    op.fold.span = plan.span


cdef inline void note_stores(Operation *op, int kind, int stores, int ways) noexcept:
    """Set which blocks are written past the cache, or whether that depends on the distance of other
    ranks, and whether private arrays are lent.
    """
    cdef Sharing *shared = &op.shared
    cdef int64_t everywhere = op.nbytes * (shared.segment.p if shared.segment != NULL else 1)
    shared.by_distance = stores == 0 and ways < 0 and shared.room >= PAST
    shared.usual = CC_RESULTS if everywhere >= STREAMED else 0
    if stores == 2:
        shared.usual |= CC_PAYLOADS
    if stores == 0 and ways >= 0:
        shared.usual = ways
    elif op.layout.stride >= READ_FIRST and lends_at_first(op, kind):
        shared.usual |= CC_LENDS
    if op.device != NULL or shared.segment == NULL or not shared.segment.reads:
        shared.usual &= ~CC_LENDS
    elif shared.segment.reads == 2:
        shared.usual |= CC_LENDS
    shared.stores = shared.usual


cdef inline bint lends_at_first(const Operation *op, int kind) noexcept:
    """Return whether private arrays are lent before it is known whether that is faster.

    If blocks are only moved, it saves one of two copies: 256 KiB on 2 ranks take 8.6 us instead
    of 19 in an alltoall, 5.6 instead of 11 in a scatter, 9.7 instead of 21 in a broadcast, 12
    instead of 18 in a reduce_scatter. In an allreduce or a reduce it depends on the algorithm (Xeon
    Sapphire Rapids, cached stores, throw-away program, 2026-11-25).
    """
    return kind == REDUCE_SCATTER or (op.fold.kernel == NULL and op.fold.user == NULL)


cdef inline void place_arrays(Operation *op, const Arguments *call) noexcept:
    """Set the addresses of the arrays of a call; note whether input and output are the same array,
    and which of them are in shared memory.
    """
    cdef Sharing *shared = &op.shared
    cdef int64_t input_bytes = call.x.count * call.x.itemsize
    cdef int64_t output_bytes = call.out.count * call.out.itemsize
    cdef bint is_placed  # whether the (scaled) input is in the output
    op.layout.input = call.x.data if call.prescale == 1.0 else call.scaled.data
    op.layout.output = call.out.data
    shared.references[0] = shared.references[1] = shared.heap[0] = shared.heap[1] = 0
    shared.is_readable = False
    shared.way = 0
    # A result that no step scales is scaled in place, at the end of its segment. Short blocks are
    # not lent; only where ranks do not know each other's counts can a block be long and `nbytes` 0.
    if shared.segment == NULL or (op.fold.scale != NULL and not op.fold.scaled):
        return
    if op.nbytes < LENT and not is_ragged(call) and op.device == NULL:
        return
    is_placed = (
        op.layout.input < op.layout.output + output_bytes
        and op.layout.output < op.layout.input + input_bytes
    )
    shared.way = 2 if is_placed else 1
    shared.references[0] = reference_of(shared.segment, op.layout.input, input_bytes)
    shared.references[1] = reference_of(shared.segment, op.layout.output, output_bytes)
    if op.device == NULL and op.nbytes >= LENT:
        shared.heap[0] = cc_heap_reference(op.layout.input, input_bytes)
        shared.heap[1] = cc_heap_reference(op.layout.output, output_bytes)


cdef inline uint64_t reference_of(
    const cc_segment *segment, const char *data, int64_t nbytes
) noexcept nogil:
    """Return the reference to memory of this rank; 0 if others cannot see it, or it is empty."""
    cdef int window = cc_window_of(segment, data, nbytes) if nbytes else 0
    return cc_reference(segment, window, data) if window else 0


cdef int64_t tabulate(Engine engine, Operation *op, Arguments *call, Plan plan) except -1:
    """Tabulate the starts of all places; return the elements of the longest block."""
    cdef int64_t longest = 0
    cdef int64_t size, start, length
    cdef int64_t *table
    cdef int space, i, part, k
    if reserve_tables(op, plan.places[0] + plan.places[1] + plan.places[2] + 3):
        raise MemoryError
    table = op.memory.tables
    for space in range(3):
        op.layout.starts[space] = table
        start = 0
        for i in range(plan.places[space]):
            part, k = plan.blocks[space][i], 0
            if plan.cut > 1:  # a division takes longer than the rest
                part, k = part // plan.cut, part % plan.cut
            table[i] = start
            if call.kind < NEIGHBORS:
                size = part_size(engine, call, part)
            elif call.counts == NULL:
                size = call.part
            else:
                size = (call.counts if space == IN else call.receive_counts)[i]
            length = size
            if plan.cut > 1:
                length = size * (k + 1) // plan.cut - size * k // plan.cut
            start += length
            longest = max(longest, length)
        table[plan.places[space]] = start
        table += plan.places[space] + 1
    # Ranks agree on the longest block, although each has places for only some blocks.
    if call.counts != NULL and call.kind < KINDS and not is_ragged(call):
        for i in range(engine.size):
            longest = max(longest, call.counts[i])
        longest = ceiling(longest, plan.cut)
    return longest


cdef int64_t part_size(Engine engine, const Arguments *call, int part) noexcept:
    """Return the elements of a part."""
    if call.counts == NULL:
        return call.part
    if call.kind != ALLTOALL:
        return call.counts[part]
    if part // engine.size == engine.rank:
        return call.counts[part % engine.size]
    return call.receive_counts[part // engine.size]
