# The places of the blocks of an operation, for each segment.

cdef extern from *:
    int __builtin_clzll(unsigned long long) noexcept nogil


cdef inline int bit_length(uint64_t n) noexcept nogil:
    return 64 - __builtin_clzll(n) if n else 0


cdef inline int64_t ceiling(int64_t a, int64_t b) noexcept nogil:
    """Return a / b, rounded up, for a >= 0 (division is C's here)."""
    return (a + b - 1) // b


cdef inline int64_t place_start(const Operation *op, int space, int64_t place) noexcept nogil:
    """Return the element at which a place of a space starts."""
    cdef const Layout *layout = &op.layout
    cdef const int64_t *starts = layout.starts[space]
    if starts != NULL:
        return starts[place]
    if layout.cut == 1:  # a division takes longer than the rest
        return layout.part * place
    return layout.part * place // layout.cut


cdef inline int64_t elements(
    const Operation *op, int64_t segment, int space, int first, int count, int64_t *skip
) noexcept nogil:
    """Return the elements of a run of blocks in the segment; `skip` gets those before them."""
    cdef int64_t length
    skip[0] = 0
    if op.layout.whole:
        return place_start(op, space, first + count) - place_start(op, space, first)
    length = place_start(op, space, first + 1) - place_start(op, space, first)
    skip[0] = length * segment // op.layout.segments
    return length * (segment + 1) // op.layout.segments - skip[0]


cdef inline char *address(
    const Operation *op, const Cursor *cursor, int space, int first, int64_t skip
) noexcept nogil:
    """Return the address of a run of blocks of the cursor's segment; elements() has set `skip`."""
    cdef const Layout *layout = &op.layout
    if space == IN:
        return layout.input + (place_start(op, IN, first) + skip) * layout.itemsize
    if space == OUT:
        return layout.output + (place_start(op, OUT, first) + skip) * layout.itemsize
    if space == TMP:
        return cursor.memory + first * layout.stride
    if layout.whole:
        return cursor.memory + layout.work_offset + place_start(op, WORK, first) * layout.itemsize
    return cursor.memory + layout.work_offset + first * layout.stride
