# Collectives between neighbours, as calls: their arrays have a block for each neighbour.

@cython.final
cdef class Neighbors:
    """One collective between neighbours, with the role of this rank.

    `inputs` and `outputs` are the blocks of its arrays; `choose` returns the plan for the bytes of
    a block, or for -1, if each block has a count of its own.
    """

    cdef int kind, inputs, outputs
    cdef uint64_t checksum
    cdef bint has_gaps  # whether this rank has a place for a block that no rank sends
    cdef bint has_repeats  # whether a rank is a neighbour of this one several times
    cdef bint is_connected
    cdef object choose
    cdef dict choices

    def __init__(
        self, str collective, int inputs, int outputs, uint64_t checksum, choose, *,
        bint has_gaps, bint has_repeats, bint is_connected,
    ):
        self.kind = NEIGHBORS + BETWEEN_NEIGHBORS.index(collective)
        self.inputs, self.outputs = inputs, outputs
        self.checksum = checksum
        self.has_gaps, self.has_repeats = has_gaps, has_repeats
        self.is_connected = is_connected
        self.choose = choose
        self.choices = {}

    cdef Choice choice(self, const Arguments *call):
        """Return the plan for a checked call."""
        cdef int64_t nbytes = -1 if call.counts != NULL else call.part * call.x.itemsize
        cdef int key = -1 if nbytes < 0 else bit_length(nbytes)
        choice = self.choices.get(key)
        if choice is None:
            choice = self.choices[key] = self.choose(nbytes)
        return choice


cdef tuple check_neighbors(Arguments *call, Neighbors at, x, out):
    """Check the arguments; return (the caller's result, *objects that must stay alive)."""
    call.role = Role(at.inputs, 0, at.outputs, 0)
    call.checksum = at.checksum
    kept_x = view_of_x(call, x, True)
    if out is not None:
        kept_out = view_of_out(call, out, True)
        if at.has_gaps and type(kept_out) is Pending:
            raise BufferError(
                "out is in Fortran's order, and has blocks that are not written; pass an array in "
                "C's order"
            )
        if call.out.dtype != call.x.dtype:
            raise different_dtypes(call)
    count_blocks(call, out)
    if at.has_repeats and call.counts != NULL:
        check_lengths(call)
    keep = None
    if call.displs != NULL:
        keep = pack_parts(call)
    if out is None:
        shape = blocks_shape(call, shape_of(kept_x))
        result = kept_out = result_like(x, kept_x, &call.x, shape, &call.out)
        if at.has_gaps:
            memset(call.out.data, 0, call.out.count * call.out.itemsize)
        kept = result, kept_x, kept_out, keep
    else:
        if call.receive_displs != NULL:
            kept_out = scattered_result(call, out, kept_out)
        compare_output(call)
        if overlap(&call.x, &call.out):
            if call.planned:
                raise BufferError(
                    "out overlaps x, and a planned call reads x where it lies; pass arrays that "
                    "share no memory"
                )
            source = call.x.data
            keep = scratch_like(&call.x)
            memcpy(call.x.data, source, call.x.count * call.x.itemsize)
        kept = kept_out if type(kept_out) is Pending else out, kept_x, kept_out, keep
    # Ranks compare it, if they are connected and must have the same.
    call.nbytes = call.part * call.x.itemsize if at.is_connected else 0
    return kept


cdef int count_blocks(Arguments *call, out) except -1:
    """Find the number of elements of a block, or compare the counts of all blocks with `x`."""
    cdef int inputs = call.role.inputs
    if call.counts != NULL:
        compare_lengths(call, max(elements_of(call.counts, inputs, 0), result_count(call)))
    elif inputs:
        if call.x.count % inputs:
            raise ArgumentError(
                f"x has {call.x.count} elements, which {inputs} destinations cannot share equally; "
                f"neighbor_alltoallv takes a count for each destination"
            )
        call.part = call.x.count // inputs
    elif call.x.count:
        raise ArgumentError(
            f"x has {call.x.count} elements, and this rank has no destination: pass an empty array"
        )
    elif call.role.outputs:
        if out is None:
            raise ArgumentError(
                "out is None, and this rank has no destination, so that x does not say how many "
                "elements come from each source: pass out"
            )
        if call.out.count % call.role.outputs:
            raise BufferError(
                f"out has {call.out.count} elements, which {call.role.outputs} sources cannot "
                f"share equally"
            )
        call.part = call.out.count // call.role.outputs
    return 0


cdef int check_lengths(const Arguments *call) except -1:
    """Refuse blocks that need several messages, which those of other blocks could separate."""
    cdef int64_t longest = 0
    cdef int i
    for i in range(call.role.inputs):
        longest = max(longest, call.counts[i])
    for i in range(call.role.outputs):
        longest = max(longest, call.receive_counts[i])
    if longest > MAX_PIECE // call.x.itemsize:
        raise ArgumentError(
            f"a block has {longest} elements of {call.x.itemsize} bytes, and where a rank is a "
            f"neighbour several times, blocks may have {MAX_PIECE} bytes; pass shorter ones"
        )
    return 0


cdef tuple blocks_shape(const Arguments *call, tuple shape):
    """Return the shape of a new result: blocks joined along the first axis, or for an allgather
    without counts in an axis of their own.
    """
    cdef int64_t count = result_count(call)
    cdef int64_t row = 1
    if call.kind == NEIGHBORS and call.counts == NULL:
        return call.role.outputs, *shape
    for n in shape[1:]:
        row *= n
    return (count // row, *shape[1:]) if row and count % row == 0 else (count,)


cdef str neighbors_text(const Arguments *call):
    """Return the part of a call that all ranks must have in common, in words."""
    size = f"count={call.part}, " if call.nbytes else ""
    neighbourhood = f"neighbourhood {call.checksum:08x}"
    return f"{size}dtype={dtype_text(call.x.dtype)}, {neighbourhood}"


cdef object not_on_devices(const Arguments *call):
    """Return the error of a call whose arrays are on a device."""
    return BufferError(
        f"{name_of(call)} takes arrays in host memory, and x or out is on a device; copy it first"
    )
